"""Tables that are rendered together: those of all models, and for each null those of the studies in it."""

from dataclasses import dataclass

import pandas as pd

from sparse_control.records.paths import NULL_NAMES, NULLS
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.nulls import TAKEN_AWAY
from sparse_control.tables.registry import TABLES
from sparse_control.tables.table import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Records whose tables are rendered together.

    Attributes:
        records: what the tables are made of.
        null: what was taken away from model or corpus in all of them; else `none`.
    """

    records: Records
    null: str = "none"

    @property
    def tables(self) -> list[Table]:
        """Every table; of a null those that every study of ISS has."""
        return [table for table in TABLES.values() if self.null == "none" or table.of_a_study]

    @property
    def folder(self) -> str:
        """Below `paper/tables`; empty for the tables of all models."""
        return "" if self.null == "none" else f"{NULLS}/{self.null}"

    def path(self, name: str) -> str:
        """A file of this part, or a table's files without their suffix, below `paper/tables`."""
        return f"{self.folder}/{name}" if self.folder else name

    def titled(self, text: str) -> str:
        """A title, with the null in words behind it."""
        return text if self.null == "none" else f"{text} ({self.title})"

    @property
    def title(self) -> str:
        """The null in words."""
        return self.null.replace("_", " ")

    @property
    def notes(self) -> list[str]:
        """What captions say of the null, if there is one."""
        return [] if self.null == "none" else [f"Null: {TAKEN_AWAY[self.null]}."]


def parts(records: Records) -> list[Part]:
    """The records of all models, then those of each null that some were measured with."""
    found = [Part(records=records)]
    for null in NULL_NAMES:
        models = [ModelRecords(name=m.name, iss=m.nulls[null]) for m in records.models if null in m.nulls]
        found += [Part(records=Records(models=tuple(models)), null=null)] if models else []
    return found


def all_tables(records: Records) -> dict[str, pd.DataFrame]:
    """Every table by the path of its files; of a null those that have rows.

    Raises:
        InputError: values in the records that have no finite statistic, such as readouts beyond 1e300.
    """
    frames = {}
    for part in parts(records):
        for table in part.tables:
            frame = table.frame(part.records)
            if len(frame) or part.null == "none":
                frames[part.path(table.name)] = frame
    return frames
