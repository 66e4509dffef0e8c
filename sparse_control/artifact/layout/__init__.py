"""How each table is shown: columns, headings, rounding and captions."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sparse_control.artifact.layout import estimator, official, protocol, published, setup
from sparse_control.artifact.layout.columns import MODEL, Layout
from sparse_control.artifact.layout.protocol import score_rows
from sparse_control.artifact.tables.common import Records
from sparse_control.artifact.tables.setup import preset

__all__ = ["LAYOUTS", "Shown", "headline", "score_rows", "shown"]

LAYOUTS: dict[str, Layout] = {
    **setup.LAYOUTS,
    **official.LAYOUTS,
    **estimator.LAYOUTS,
    **protocol.LAYOUTS,
    **published.LAYOUTS,
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table ready for a template: nothing in it but strings."""

    name: str
    group: str
    title: str
    caption: str
    headings: tuple[str, ...]
    aligns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shown(name: str, frame: pd.DataFrame, records: Records) -> Shown:
    """Round and caption one table."""
    layout = LAYOUTS[name]
    models = sorted({model for model in frame["model"] if model is not None})
    columns = ((MODEL,) if len(models) > 1 else ()) + layout.columns
    rows = layout.printed(frame.to_dict("records"))
    facts = [layout.caption, f"Model: {', '.join(models) or 'none measured'}."]
    if layout.group in ("protocol", "published"):
        facts.append(f"Seeds: {_list({record.seed for record in records.measurements})}.")
    elif name in ("rank_curve", "seed_stability"):
        facts.append(f"Sketch seeds: {_list(_sketch_seeds(name, records))}.")
    facts.append(f"Source document: {layout.section}.")
    return Shown(
        name=name,
        group=layout.group,
        title=layout.title,
        caption=" ".join(facts),
        headings=tuple(column.heading for column in columns),
        aligns=tuple(column.align for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
    )


def headline(records: Records) -> str:
    """What the records are of: models and preset."""
    models = {record.model for record in records.measurements}
    models |= {records.iss.freeze.model} if records.iss.freeze else set()
    chosen = preset(records)
    return (", ".join(sorted(models)) or "no model measured") + (f", preset {chosen}" if chosen else "")


def _sketch_seeds(name: str, records: Records) -> set[int]:
    if name == "rank_curve":
        return {row.seed for row in records.iss.comparison.rows} if records.iss.comparison else set()
    return {seed for row in records.iss.seed_stability for seed in row.seeds}


def _list(numbers: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
