"""A table is one declaration: what it reads, how its rows are made, and how they are shown.

A cell that has no number is None and another column of its row says why; NaN is never in a table.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.records.base import printable
from sparse_control.records.paths import ISS_FILES, JACOBIAN_ISS, NULLS, SIX_AXIS
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.columns import Column, Row

Rows = Iterable[Row]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the paper.

    Attributes:
        name: of its files.
        title: as printed.
        caption: what the columns are; `{median_cosine}` and the like are thresholds of the freeze.
        section: of the source document.
        group: setup, iss, protocol or published.
        reads: the records it is made of: `six_axis`, `published`, fields of `IssRecords`, and fields of the nulls'
            `IssRecords` as `nulls.FIELD`.
        fields: columns of the .csv, unrounded; the model comes before those of `rows`.
        columns: as shown, rounded; the model comes before them where there are several.
        rows: rows of one model; the table has those of every model.
        across: rows of all models together, `model` among their fields; given instead of `rows`.
        printed: the rows of one model that are shown; the .csv has all.
        sketch_seeds: those behind the rows of one model, for the caption.
    """

    name: str
    title: str
    caption: str
    section: str
    group: str
    reads: tuple[str, ...]
    fields: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Callable[[ModelRecords], Rows] | None = None
    across: Callable[[Records], Rows] | None = None
    printed: Callable[[list[Row]], list[Row]] = list
    sketch_seeds: Callable[[ModelRecords], Iterable[int]] | None = None

    @property
    def of_a_study(self) -> bool:
        """Whether it is of one study of ISS, so that a null has it as well."""
        return self.group == "iss" and self.rows is not None and not any("." in field for field in self.reads)

    def files(self, null: str = "none") -> list[str]:
        """Patterns of the measured files it is made of, below a model's folder.

        Args:
            null: whose table it is; a null has the ISS tables of its own study.
        """
        return files_read(self.reads, null)

    def frame(self, records: Records) -> pd.DataFrame:
        """The unrounded table over all models.

        Raises:
            InputError: values in the records that have no finite statistic, such as readouts beyond 1e300.
        """
        try:
            if self.across is not None:
                frame = data_frame(self.fields, self.across(records))
            else:
                rows = (row | {"model": model.name} for model in records.models for row in self.rows(model))
                frame = data_frame(("model", *self.fields), rows)
        except (ValueError, OverflowError) as error:
            raise error if isinstance(error, InputError) else InputError(f"table {self.name}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:  # frozen settings are typed only where they are read
            message = f"the records hold a value of another kind than expected ({error})"
            raise InputError(f"table {self.name}: {message}") from error
        self._check_finite(frame)
        return frame

    def _check_finite(self, frame: pd.DataFrame) -> None:
        for row in rows_of(frame):
            for column, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    which = printable(", ".join(str(part) for part in list(row.values())[:4]))
                    message = f"{column} of {which} is {value}; the records hold values out of range"
                    raise InputError(f"table {self.name}: {message}")


def files_read(reads: Sequence[str], null: str = "none") -> list[str]:
    """Patterns of the measured files behind what a table or figure reads, below a model's folder.

    Args:
        reads: as of `Table`.
        null: whose study it is.
    """
    study = JACOBIAN_ISS if null == "none" else f"{NULLS}/{null}/{JACOBIAN_ISS}"
    patterns = []
    for name in reads:
        of_nulls, _, field = name.rpartition(".")
        if of_nulls:
            patterns.append(f"{of_nulls}/*/{JACOBIAN_ISS}/{ISS_FILES[field]}")
        elif field in ISS_FILES:
            patterns.append(f"{study}/{ISS_FILES[field]}")
        elif field == SIX_AXIS and null == "none":
            patterns.append(f"{SIX_AXIS}/*.jsonl")
    return patterns


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are there; None without any."""
    return over_seeds.mean_or_none([value for value in values if value is not None])


def data_frame(columns: Sequence[str], rows: Rows) -> pd.DataFrame:
    """Rows as a data frame of Python objects, so that whole numbers and None stay what they are."""
    return pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns), dtype=object)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame that `data_frame` made; many times faster than `to_dict("records")`."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.to_numpy().tolist()]


def cell_text(value: Any) -> str:
    """A cell as the .csv has it: repr of floats, empty for None."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
