"""One cell of a table, as claims and quoted numbers name it: the table, values that select one row, a column."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.tables.table import rows_of

Scalar = bool | int | float | str


def cell(frames: Mapping[str, pd.DataFrame], table: str, where: Mapping[str, Scalar], column: str) -> Any:
    """The value of `column` in the one row of `table` with the values of `where`; None where it is empty.

    Raises:
        InputError: no such table or column, or not exactly one row.
    """
    if table not in frames:
        raise InputError(f"no table {table!r}; there are: {', '.join(frames)}")
    frame = frames[table]
    if missing := sorted({*where, column} - set(frame.columns)):
        raise InputError(f"table {table} has no column {missing[0]!r}; there are: {', '.join(frame.columns)}")
    rows = [row for row in rows_of(frame) if all(row[name] == value for name, value in where.items())]
    if len(rows) != 1:
        raise InputError(f"table {table} has {len(rows)} rows with {dict(where)}, expected one")
    return rows[0][column]
