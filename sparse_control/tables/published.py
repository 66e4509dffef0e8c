"""The figures of the source document, read from paper/published.yaml, beside ours."""

from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import model_validator

from sparse_control.errors import InputError
from sparse_control.files import read_text
from sparse_control.records.base import Name, Record, validate
from sparse_control.tables.common import MEASURED, Records, Table, data_frame, rows_of
from sparse_control.tables.protocol import AXES, axis_table


class PublishedFigure(Record):
    """One cell of the source document."""

    task: Name
    condition: Literal["P", "F"]
    statistic: Name  # a column of our table
    selector: Name | None = None  # where it is not the document's usual one
    printed: Name | None = None  # the cell as printed
    note: Name | None = None  # what stands there instead of a number, or beside it


class Published(Record):
    """paper/published.yaml."""

    document: Name
    model: Name
    selector: Name  # unless an entry says otherwise
    tables: dict[Name, list[PublishedFigure]]

    @model_validator(mode="after")
    def _columns_exist(self) -> "Published":
        every = {statistic for columns, _ in AXES.values() for statistic in columns}
        for table, figures in self.tables.items():
            if table not in AXES and table != "summary":
                raise ValueError(f"tables: no table {table!r}; there are: {', '.join(AXES)}, summary")
            for index, figure in enumerate(figures):
                if figure.statistic not in (every if table == "summary" else AXES[table][0]):
                    raise ValueError(f"tables.{table}.{index}: statistic: no such column, got {figure.statistic!r}")
        return self


def read_published(project: Path) -> dict[str, Any]:
    """The figures of the source document, `paper/published.yaml`; empty where the project folder has none.

    Raises:
        InputError: the file is not YAML; or names the field and the value.
    """
    path = Path(project, "paper", "published.yaml")
    if not path.exists():
        return {}
    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return validate(Published, content, str(path)).model_dump(exclude_unset=True)


TOTALS = {
    "passes_0.40": "n_seeds",
    "passes": "n_seeds",
    "ordered": "n_seeds",
    "reversed": "n_seeds",
    "hits": "endpoints",
    "seed_mean_passes": "n_seeds",
    "every_prompt_passes": "n_seeds",
}
PUBLISHED_COLUMNS = (
    "source_table",
    "task",
    "selector",
    "condition",
    "statistic",
    "published",
    "published_note",
    "model",
    "ours",
    "ours_of",
)


def published(records: Records) -> pd.DataFrame:
    """The figures of the source document, on its own model, beside ours of the same task, selector and condition."""
    frames = {name: axis_table(records, columns, statistic) for name, (columns, statistic) in AXES.items()}
    axis_of = {statistic: name for name, (columns, _) in AXES.items() for statistic in columns}
    models = sorted({record.model for record in records.measurements}) or [None]
    rows = []
    for table, entries in records.published.get("tables", {}).items():
        for entry in entries:
            selector = entry.get("selector", records.published.get("selector"))
            key = {"task": entry["task"], "selector": selector, "condition": entry["condition"]}
            for model in models:
                frame = frames[axis_of[entry["statistic"]] if table == "summary" else table]
                ours = _matching(frame, key | {"model": model})
                total = ours.get(TOTALS.get(entry["statistic"]))
                rows.append(
                    {
                        "source_table": table,
                        **key,
                        "statistic": entry["statistic"],
                        "published": entry.get("printed"),
                        "published_note": entry.get("note"),
                        "model": model,
                        "ours": ours.get(entry["statistic"]),
                        "ours_of": total,
                    }
                )
    return data_frame(PUBLISHED_COLUMNS, rows)


def _matching(frame: pd.DataFrame, key: dict[str, Any]) -> dict[str, Any]:
    """The row of `frame` with these values as a dict; empty where there is none, or it was not measured."""
    for row in rows_of(frame):
        if row["status"] == MEASURED and all(row[name] == value for name, value in key.items()):
            return row
    return {}


TABLES: dict[str, Table] = {
    "published": published,
}
