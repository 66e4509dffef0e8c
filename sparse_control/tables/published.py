"""The figures of the source document, read from paper/published.yaml, beside ours."""

from typing import Any

import pandas as pd

from sparse_control.tables.common import MEASURED, Records, Table, data_frame, rows_of
from sparse_control.tables.protocol import AXES, axis_table

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
