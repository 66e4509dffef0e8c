"""The figures of the source document, `paper/published.yaml`: typed once, and never changed."""

from pathlib import Path
from typing import Any

from sparse_control.files import read_yaml
from sparse_control.records.base import Count, Name, Record, validate
from sparse_control.records.paths import PAPER
from sparse_control.records.six_axis import Condition


class PublishedFigure(Record):
    """One cell of the source document."""

    task: Name
    condition: Condition
    statistic: Name  # a column of our table
    selector: Name | None = None  # where it is not the document's usual one
    printed: Name | None = None  # the cell as printed
    note: Name | None = None  # what stands there instead of a number, or beside it
    seeds: Count | None = None  # where they are fewer than those of the task's other figures


class Published(Record):
    """paper/published.yaml."""

    document: Name
    model: Name
    selector: Name  # unless an entry says otherwise
    tables: dict[Name, list[PublishedFigure]]


def published_path(project: Path) -> Path:
    """The file of a project folder."""
    return Path(project, PAPER, "published.yaml")


def read_published(project: Path) -> dict[str, Any]:
    """The figures of the source document; empty where the project folder has none.

    Raises:
        InputError: the file is not YAML; or names the field and the value.
    """
    path = published_path(project)
    if not path.exists():
        return {}
    return validate(Published, read_yaml(path), str(path)).model_dump(exclude_unset=True)
