"""How each table is shown: columns, headings, rounding and captions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sparse_control.records.jacobian_iss.freeze import Thresholds
from sparse_control.tables.common import Records, rows_of
from sparse_control.tables.layout import (
    alternatives,
    controls,
    estimator,
    nulls,
    official,
    protocol,
    published,
    setup,
    uncertainty,
)
from sparse_control.tables.layout.columns import EMPTY, MODEL, Layout
from sparse_control.tables.layout.protocol import once_where_unsupported, score_rows
from sparse_control.tables.setup import preset

__all__ = ["LAYOUTS", "PARTS", "Shown", "headline", "score_rows", "shown"]

LAYOUTS: dict[str, Layout] = {
    **setup.LAYOUTS,
    **official.LAYOUTS,
    **uncertainty.LAYOUTS,
    **estimator.LAYOUTS,
    **alternatives.LAYOUTS,
    **nulls.LAYOUTS,
    **protocol.LAYOUTS,
    **controls.LAYOUTS,
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

    @property
    def short(self) -> str:
        """The name without the folder of a sub-root."""
        return self.name.rpartition("/")[2]

    @property
    def label(self) -> str:
        """The name as a LaTeX label has it, of letters alone."""
        return "".join(filter(str.isalpha, self.name))


# what a sub-root is, behind the titles and in the captions of its tables
PARTS = {
    "nulls/shuffled_tokens": ("shuffled tokens", "Null: Jacobians over windows of shuffled tokens."),
    "nulls/redrawn_weights": ("redrawn weights", "Null: every weight matrix of the model redrawn."),
    "experiment_b": ("medium model", "Experiment B: a medium model."),
}


def shown(name: str, frame: pd.DataFrame, records: Records) -> Shown:
    """Round and caption one table; that of a sub-root is named `{sub-root}/{table}`."""
    folder, _, table = name.rpartition("/")
    layout = LAYOUTS[table]
    records = Records(iss=records.sub_roots[folder]) if folder else records
    models = sorted({model for model in frame["model"] if model is not None})
    columns = ((MODEL,) if len(models) > 1 else ()) + layout.columns
    rows = layout.printed(rows_of(frame))
    if layout.group == "protocol":
        rows = once_where_unsupported(rows)
    facts = [_caption(layout, records), f"Model: {', '.join(models) or 'none measured'}."]
    if layout.group in ("protocol", "published"):
        facts.append(f"Seeds: {_list({record.seed for record in records.measurements})}.")
    elif table in ("rank_curve", "seed_stability"):
        facts.append(f"Sketch seeds: {_list(_sketch_seeds(table, records))}.")
    facts += [PARTS[folder][1]] if folder else []
    facts.append(f"Source document: {layout.section}.")
    return Shown(
        name=name,
        group=layout.group,
        title=layout.title + (f" ({PARTS[folder][0]})" if folder else ""),
        caption=" ".join(facts),
        headings=tuple(column.heading for column in columns),
        aligns=tuple(column.align for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
    )


def _caption(layout: Layout, records: Records) -> str:
    """The caption, with the frozen thresholds where it names them; before a freeze without these."""
    if layout.group != "iss":
        return layout.caption
    thresholds = records.iss.freeze.settings.validation if records.iss.freeze else None
    names = {name: getattr(thresholds, name, None) for name in Thresholds.model_fields}
    text = layout.caption.format(**{name: EMPTY if value is None else f"{value:g}" for name, value in names.items()})
    return re.sub(rf" \([≥≤] {EMPTY}\)", "", text)


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
