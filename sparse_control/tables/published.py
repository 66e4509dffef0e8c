"""The figures of the source document beside ours."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
SAME_PANEL = {"ioi": "ioi_same_panel"}  # task of the source document: ours that is evaluated on its fitting pairs
# note of the source document: selector and statistic of ours that are of the same form
SAME_FORM = {"k = 8, fixed dose": {"selector": "coverage_driver_k8", "statistic": "frozen_mean"}}
COUNT_OF = {"rel_tar_mean": "passes_0.40", "ratio_mean": "passes", "rho_mean": "ordered"}


def _published(records: Records) -> Iterator[Row]:
    """The figures of the source document, on its own model, beside ours of the same task, selector and condition."""
    figures = list(_figures(records.published))
    measured = [model for model in records.models if model.six_axis]
    for model in (measured or [None]) if figures else ():
        ours = _Ours(model)
        for table, figure in figures:
            for variant, which in _beside(figure):
                axis = AXIS_OF[which["statistic"]] if table == "summary" else table
                row = ours.row(axis, which)
                yield {
                    "source_table": table,
                    **{name: which[name] for name in (*KEYS, "statistic")},
                    "variant": variant,
                    "first_seeds": figure.get("seeds"),
                    "published": figure.get("printed"),
                    "published_note": figure.get("note"),
                    "model": model.name if model else None,
                    "ours": row.get(which["statistic"]),
                    "ours_of": row.get(TOTALS.get(which["statistic"])),
                }


def _beside(figure: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """What of ours is beside a figure: the same statistic, then the variant of the source document that it is of.

    Strengths refitted on unseen pairs are the same whichever pairs the intervention is evaluated on.
    """
    yield None, figure
    if figure["task"] in SAME_PANEL and "printed" in figure and figure["statistic"] != "refit_mean":
        yield "same panel", {**figure, "task": SAME_PANEL[figure["task"]]}
    if form := SAME_FORM.get(figure.get("note", "")):
        yield figure["note"], {**figure, **form}


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


class _Ours:
    """What was measured of a model, by axis and number of seeds, computed once each."""

    def __init__(self, model: ModelRecords | None) -> None:
        self._model = model
        self._rows: dict[tuple[str, int | None], dict[tuple[str, ...], Row]] = {}

    def row(self, axis: str, figure: Mapping[str, Any]) -> Row:
        """The row of the axis table, over the figure's number of seeds from 0 on; empty where nothing was measured."""
        if self._model is None:
            return {}
        at = axis, figure.get("seeds")
        if at not in self._rows:
            records = [record for record in self._model.six_axis if at[1] is None or record.seed < at[1]]
            rows = axis_rows(replace(self._model, six_axis=tuple(records)), AXES[axis][1])
            self._rows[at] = {tuple(row[name] for name in KEYS): row for row in rows if row["status"] == MEASURED}
        return self._rows[at].get(tuple(figure[name] for name in KEYS), {})


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


def _statistic(row: Row) -> str:
    return in_words(row["statistic"]) + (f", {row['first_seeds']} seeds" if row["first_seeds"] else "")


def _theirs(row: Row) -> str:
    return row["published"] or row["published_note"] or EMPTY


def _with_note(row: Row) -> str:
    """The figure and its count as printed there, with the note that is beside them."""
    noted = row["published"] and row["published_note"]
    return _and_count(_theirs)(row) + (f", {row['published_note']}" if noted else "")


def _ours_text(row: Row) -> str:
    return significant(row["ours"]) if row["ours_of"] is None else of(row["ours"], row["ours_of"])


PUBLISHED = Table(
    name="published",
    title="Figures of the source document beside ours",
    caption=(
        "Source document: a figure as printed there, measured by its authors on another model than ours. Ours: "
        "the same statistic of the same task, selector and direction rule on the model named here, over seeds 0 to "
        "2 where the source document has 3 seeds. Where it has a variant, ours of the same form follows in a row of "
        "its own, if it was measured: IOI evaluated on the fitting pairs (same panel), and Sentiment's frozen reuse of "
        "8 sites at dose 1. The two columns are never combined. Shown: what we have a figure of, counts in parentheses "
        "behind their mean; published.csv has every figure of the source document."
    ),
    section="Six-axis protocol, the six axis tables and the summary table",
    group="published",
    reads=("six_axis", "published"),
    across=_published,
    fields=(
        *("source_table", *KEYS, "statistic", "variant", "first_seeds", "published", "published_note"),
        *("model", "ours", "ours_of"),
    ),
    columns=(
        named("source_table", "Table"),
        named("task", "Task"),
        named("selector", "Selector"),
        label("condition", "Dir."),
        Column("Statistic", _and_count(_statistic), "l"),
        Column("Source document\n(another model)", _with_note),
        Column("Ours", _and_count(_ours_text)),
    ),
    printed=_with_ours,
)

TABLES = (PUBLISHED,)
