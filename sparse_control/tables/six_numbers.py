"""The six numbers of some six-axis files, for the terminal at the end of a run."""

from collections.abc import Sequence
from pathlib import Path

from sparse_control.metrics.over_seeds import mean_or_none
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import Measurement
from sparse_control.records.six_axis_files import read_measurements
from sparse_control.tables.columns import Column, Row, fixed
from sparse_control.tables.protocol import COUNTS, KEYS, WHICH, Seeds, axis_rows, every_axis
from sparse_control.tables.summary import SUMMARY

PUSH = Column("Push", lambda row: fixed(row["push"], 2))
COLUMNS = (*WHICH, SUMMARY.columns[1], PUSH, *SUMMARY.columns[2:])
HEADINGS = tuple(column.heading.replace("\n", " ") for column in COLUMNS)
FIELDS = dict.fromkeys(("model", *KEYS, *COUNTS, "push", *SUMMARY.fields, "reason"))


def push(record: Measurement) -> float | None:
    """What is added at dose 1 over what is there, in norms, as a mean over sites; None without a site."""
    norms = zip(record.strengths, record.norms.direction, record.norms.activation, strict=True)
    return mean_or_none([abs(strength) * added / there for strength, added, there in norms if there > 0])


def numbers(root: Path, files: Sequence[str]) -> list[Row]:
    """A row for each (task, selector, direction rule), unrounded, over every seed that its file has.

    `reason` says why none of its seeds is supported by the model.

    Args:
        root: the folder measured into.
        files: six-axis files relative to it.

    Raises:
        InputError: as `read_measurements`.
    """
    records = [record for name in dict.fromkeys(files) for record in read_measurements(root, Path(root, name))]
    reasons = {(record.model, record.task): record.reason for record in records if not record.supported}
    rows: list[Row] = []
    for model in dict.fromkeys(record.model for record in records):
        own = ModelRecords(name=model, six_axis=tuple(record for record in records if record.model == model))
        rows += [
            {"model": model, "reason": None if row["n_seeds"] else reasons.get((model, row["task"]))} | row
            for row in axis_rows(own, _statistics)
        ]
    return [{name: row.get(name) for name in FIELDS} for row in rows]


def _statistics(seeds: Seeds) -> Row:
    pushes = [size for record in seeds if (size := push(record)) is not None]
    return every_axis(seeds) | {"push": mean_or_none(pushes)}


def number_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The rows rounded, in the columns of `HEADINGS`."""
    return [tuple(column.text(row) for column in COLUMNS) for row in rows]
