"""Tables of records rounded and captioned, as `printed.Shown`."""

import re
from collections.abc import Iterable
from itertools import groupby

import pandas as pd

from sparse_control.records.jacobian_iss.freeze import Thresholds
from sparse_control.records.read import Records
from sparse_control.tables.columns import EMPTY, MODEL
from sparse_control.tables.parts import Part
from sparse_control.tables.registry import TABLES
from sparse_control.tables.setup import preset
from sparse_control.tables.table import Table, rows_of
from sparse_control.tables.terminal import Shown, plain_text


def shown(table: Table, frame: pd.DataFrame, part: Part) -> Shown:
    """Round and caption one table of a part; a column of models comes first where it has several."""
    models = list(dict.fromkeys(model for model in frame["model"] if model is not None))
    by_model = len(models) > 1
    columns = ((MODEL,) if by_model else ()) + table.columns
    groups = groupby(rows_of(frame), key=lambda row: row["model"])
    rows = [row for _, group in groups for row in table.printed(list(group))]
    return Shown(
        name=table.name,
        label="".join(filter(str.isalpha, part.path(table.name))),
        title=part.titled(table.title),
        caption=_caption(table, part, models),
        by_model=by_model,
        headings=tuple(column.heading for column in columns),
        aligns=tuple(column.align for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
    )


def _caption(table: Table, part: Part, models: list[str]) -> str:
    """What the columns are, models, seeds, what a null takes away, and the section of the source document."""
    records = part.records
    named = dict.fromkeys(", ".join(models).split(", "))  # a row may be of two
    facts = [_with_thresholds(table.caption, records), f"Model: {', '.join(filter(None, named)) or 'none measured'}."]
    if table.group in ("protocol", "published"):
        facts.append(f"Seeds: {_list(record.seed for model in records.models for record in model.six_axis)}.")
    if table.sketch_seeds is not None:
        facts.append(f"Sketch seeds: {_list(seed for model in records.models for seed in table.sketch_seeds(model))}.")
    return " ".join([*facts, *part.notes, f"Source document: {table.section}."])


def _with_thresholds(caption: str, records: Records) -> str:
    """The caption with the frozen thresholds it names; without those in parentheses before a freeze."""
    freezes = [model.iss.freeze for model in records.models if model.iss.freeze]
    texts = {}
    for name in Thresholds.model_fields:
        values = dict.fromkeys(f"{getattr(freeze.settings.validation, name):g}" for freeze in freezes)
        texts[name] = " or ".join(values) or EMPTY
    return re.sub(rf" \([≥≤] {EMPTY}\)", "", caption.format(**texts))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers)))) or "none"


def headline(part: Part) -> str:
    """What the records of a part are of: models, presets and the null."""
    models = part.records.models
    presets = dict.fromkeys(name for model in models if (name := preset(model)))
    words = [", ".join(model.name for model in models) or "no model measured"]
    words += [f"preset {', '.join(presets)}"] if presets else []
    return part.titled(", ".join(words))


def text_of(names: Iterable[str], records: Records, width: int | None = None) -> list[str]:
    """Tables by name, as the terminal shows them.

    Args:
        width: as in `plain_text`.

    Raises:
        InputError: as `Table.frame`.
    """
    part = Part(records=records)
    return [plain_text(shown(TABLES[name], TABLES[name].frame(records), part), width) for name in names]
