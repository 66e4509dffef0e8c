"""What every table is made from and of: the records, and rows as a data frame."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from sparse_control.records.read import Records

NOT_SUPPORTED = "not supported by this model"
MEASURED = "measured"


Table = Callable[[Records], pd.DataFrame]


def data_frame(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a data frame of Python objects, so that whole numbers and None stay what they are."""
    return pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns), dtype=object)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame that `data_frame` made; many times faster than `to_dict("records")`."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.to_numpy().tolist()]


def cell_text(value: Any) -> str:
    """A cell as it stands in a .csv: repr of floats, empty for None."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
