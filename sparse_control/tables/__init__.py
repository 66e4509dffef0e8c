"""Records in, data frames out: every table of the paper with unrounded values.

A cell that has no number is None and another column of its row says why; NaN never stands in a table. Rounding,
captions and column headings belong to `layout`.
"""

import math

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.records.base import printable
from sparse_control.records.published import read_published
from sparse_control.records.read import Records, read_records
from sparse_control.tables import (
    alternatives,
    controls,
    estimator,
    findings,
    nulls,
    official,
    protocol,
    published,
    setup,
    transfer,
    uncertainty,
)
from sparse_control.tables.common import Table, rows_of

__all__ = ["TABLES", "Records", "all_tables", "parts", "read_published", "read_records"]


OF_A_ROOT: dict[str, Table] = {  # what every root of ISS records has, the nulls and the medium model as well
    **official.TABLES,
    **uncertainty.TABLES,
    **estimator.TABLES,
    **alternatives.TABLES,
}
ACROSS: dict[str, Table] = {**nulls.TABLES, **transfer.TABLES, **findings.TABLES}  # made of sub-roots, too
TABLES: dict[str, Table] = {
    **setup.TABLES,
    **OF_A_ROOT,
    **ACROSS,
    **protocol.TABLES,
    **controls.TABLES,
    **published.TABLES,
}


def parts(records: Records) -> dict[str, Records]:
    """The records of each sub-root, by the folder that its tables stand in below those of the root."""
    return {name: Records(iss=iss) for name, iss in records.sub_roots.items()}


def all_tables(records: Records) -> dict[str, pd.DataFrame]:
    """Every table by name; those of a sub-root as `{sub-root}/{name}`, where they have rows.

    Raises:
        InputError: values in the records that have no finite statistic, such as readouts beyond 1e300.
    """
    frames = {name: _finite(name, table, records) for name, table in TABLES.items()}
    for folder, part in parts(records).items():
        found = {f"{folder}/{name}": _finite(f"{folder}/{name}", table, part) for name, table in OF_A_ROOT.items()}
        frames |= {name: frame for name, frame in found.items() if len(frame)}
    return frames


def _finite(name: str, table: Table, records: Records) -> pd.DataFrame:
    try:
        frame = table(records)
    except (ValueError, OverflowError) as error:
        raise error if isinstance(error, InputError) else InputError(f"table {name}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # settings at the freeze are typed only where they are read
        raise InputError(f"table {name}: the records hold a value of another kind than expected ({error})") from error
    for row in rows_of(frame):
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                place = printable(", ".join(str(part) for part in list(row.values())[:4]))
                raise InputError(f"table {name}: {column} of {place} is {value}; the records hold values out of range")
    return frame
