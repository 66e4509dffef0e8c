"""Records in, data frames out: every table of the paper with unrounded values.

A cell that has no number is None and another column of its row says why; NaN never stands in a table. Rounding,
captions and column headings belong to `layout`.
"""

import math
from pathlib import Path

import pandas as pd

from sparse_control.artifact.iss_files import read_iss
from sparse_control.artifact.measurements import read_all_measurements
from sparse_control.artifact.records import printable
from sparse_control.artifact.tables import estimator, official, protocol, published, setup
from sparse_control.artifact.tables.common import Records, Table
from sparse_control.artifact.tables.published import read_published
from sparse_control.errors import InputError

__all__ = ["TABLES", "Records", "all_tables", "read_published", "read_records"]


def read_records(root: Path, project: Path) -> Records:
    """Read every record below `root`, and the published figures of the project folder.

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    return Records(
        measurements=tuple(read_all_measurements(root)), iss=read_iss(root), published=read_published(project)
    )


TABLES: dict[str, Table] = {  # in the order of paper/main.tex
    **setup.TABLES,
    **official.TABLES,
    **estimator.TABLES,
    **protocol.TABLES,
    **published.TABLES,
}


def all_tables(records: Records) -> dict[str, pd.DataFrame]:
    """Every table by name.

    Raises:
        InputError: values in the records that have no finite statistic, such as readouts beyond 1e300.
    """
    return {name: _finite(name, table, records) for name, table in TABLES.items()}


def _finite(name: str, table: Table, records: Records) -> pd.DataFrame:
    try:
        frame = table(records)
    except (ValueError, OverflowError) as error:
        raise error if isinstance(error, InputError) else InputError(f"table {name}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # settings at the freeze are typed only where they are read
        raise InputError(f"table {name}: the records hold a value of another kind than expected ({error})") from error
    for row in frame.to_dict("records"):
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                place = printable(", ".join(str(part) for part in list(row.values())[:4]))
                raise InputError(f"table {name}: {column} of {place} is {value}; the records hold values out of range")
    return frame
