"""Rows of a table, and records of made-up models, for tests alone."""

from sparse_control.records.read import ModelRecords, Records
from tests.support.measured_root import MODEL


def rows(frame, **where):
    """The rows with these values."""
    return [row for row in frame.to_dict("records") if all(row[name] == value for name, value in where.items())]


def only(frame, **where):
    """The one row with these values."""
    (row,) = rows(frame, **where)
    return row


def of_model(name=MODEL, published=None, **parts):
    """Records of one model: six_axis, iss and nulls, as given."""
    return Records(models=(ModelRecords(name=name, **parts),), published=published or {})
