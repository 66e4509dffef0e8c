"""The figures of the source document beside ours."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparse_control.errors import InputError
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.columns import EMPTY, Column, Row, in_words, label, named, of, significant
from sparse_control.tables.protocol import AXES, KEYS, MEASURED, axis_rows
from sparse_control.tables.table import Table

AXIS_OF = {statistic: axis for axis, (columns, _) in AXES.items() for statistic in columns}
TOTALS = {
    **dict.fromkeys(("passes_0.40", "passes", "ordered", "reversed"), "n_seeds"),
    **dict.fromkeys(("seed_mean_passes", "every_prompt_passes"), "n_seeds"),
    "hits": "endpoints",
}
COUNT_OF = {"rel_tar_mean": "passes_0.40", "ratio_mean": "passes", "rho_mean": "ordered"}


def _published(records: Records) -> Iterator[Row]:
    """The figures of the source document, on its own model, beside ours of the same task, selector and condition."""
    figures = list(_figures(records.published))
    measured = [model for model in records.models if model.six_axis]
    for model in (measured or [None]) if figures else ():
        ours = {axis: _ours(model, axis) for axis in AXES} if model else {}
        for table, figure in figures:
            axis = AXIS_OF[figure["statistic"]] if table == "summary" else table
            row = ours.get(axis, {}).get(tuple(figure[name] for name in KEYS), {})
            yield {
                "source_table": table,
                **{name: figure[name] for name in (*KEYS, "statistic")},
                "published": figure.get("printed"),
                "published_note": figure.get("note"),
                "model": model.name if model else None,
                "ours": row.get(figure["statistic"]),
                "ours_of": row.get(TOTALS.get(figure["statistic"])),
            }


def _figures(published: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Table of the source document and figure, each with its selector.

    Raises:
        InputError: a statistic that no table of ours has.
    """
    for table, figures in published.get("tables", {}).items():
        known = AXIS_OF if table == "summary" else AXES.get(table, ((), None))[0]
        for index, figure in enumerate(figures):
            if figure["statistic"] not in known:
                message = f"statistic: no such column, got {figure['statistic']!r}"
                raise InputError(f"paper/published.yaml: tables.{table}.{index}: {message}")
            yield table, {"selector": published["selector"]} | figure


def _ours(model: ModelRecords, axis: str) -> dict[tuple[str, ...], Row]:
    """Rows of an axis table by task, selector and condition, those that were measured."""
    rows = axis_rows(model, AXES[axis][1])
    return {tuple(row[name] for name in KEYS): row for row in rows if row["status"] == MEASURED}


def _with_ours(rows: list[Row]) -> list[Row]:
    """Rows that we have a figure of; a count goes behind the mean it belongs to."""

    def key(row: Row) -> tuple[str, ...]:
        return row["source_table"], *(row[name] for name in KEYS)

    counts = {(*key(row), row["statistic"]): row for row in rows if row["ours"] is not None}
    folded = {(*key(row), COUNT_OF[row["statistic"]]) for row in counts.values() if row["statistic"] in COUNT_OF}
    return [
        row | {"count": counts.get((*key(row), COUNT_OF.get(row["statistic"])))}
        for figure, row in counts.items()
        if figure not in folded
    ]


def _and_count(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: text(row) + (f" ({text(row['count'])})" if row["count"] else "")


def _theirs(row: Row) -> str:
    return row["published"] or row["published_note"] or EMPTY


def _ours_text(row: Row) -> str:
    return significant(row["ours"]) if row["ours_of"] is None else of(row["ours"], row["ours_of"])


PUBLISHED = Table(
    name="published",
    title="Figures of the source document beside ours",
    caption=(
        "Source document: a figure as printed there, measured by its authors on another model than ours. Ours: "
        "the same statistic of the same task, selector and direction rule on the model named here. The two "
        "columns are never combined. Shown: what we have a figure of, counts in parentheses behind their mean; "
        "published.csv has every figure of the source document."
    ),
    section="Six-axis protocol, the six axis tables and the summary table",
    group="published",
    reads=("six_axis", "published"),
    across=_published,
    fields=(
        *("source_table", *KEYS, "statistic", "published", "published_note"),
        *("model", "ours", "ours_of"),
    ),
    columns=(
        named("source_table", "Table"),
        named("task", "Task"),
        named("selector", "Selector"),
        label("condition", "Dir."),
        Column("Statistic", _and_count(lambda row: in_words(row["statistic"])), "l"),
        Column("Source document\n(another model)", _and_count(_theirs)),
        Column("Ours", _and_count(_ours_text)),
    ),
    printed=_with_ours,
)

TABLES = (PUBLISHED,)
