"""How the figures of the source document are shown beside ours."""

from collections.abc import Callable
from typing import Any

from sparse_control.tables.layout.columns import EMPTY, Column, Layout, Row, in_words, label, named, of, significant

COUNT_OF = {"rel_tar_mean": "passes_0.40", "ratio_mean": "passes", "rho_mean": "ordered"}


def _with_ours(rows: list[Row]) -> list[Row]:
    """Rows that we have a figure of; a count stands behind the mean it belongs to."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("source_table", "task", "selector", "condition", "model"))

    counts = {(*key(row), row["statistic"]): row for row in rows if row["ours"] is not None}
    folded = {(*key(row), COUNT_OF[row["statistic"]]) for row in counts.values() if row["statistic"] in COUNT_OF}
    return [
        row | {"count": counts.get((*key(row), COUNT_OF.get(row["statistic"])))}
        for place, row in counts.items()
        if place not in folded
    ]


def _and_count(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: text(row) + (f" ({text(row['count'])})" if row["count"] else "")


def _theirs(row: Row) -> str:
    return row["published"] or row["published_note"] or EMPTY


def _ours(row: Row) -> str:
    if row["ours"] is None:
        return EMPTY
    if row["ours_of"] is not None:
        return of(row["ours"], row["ours_of"])
    return significant(row["ours"])


LAYOUTS: dict[str, Layout] = {
    "published": Layout(
        title="Figures of the source document beside ours",
        caption=(
            "Source document: a figure as printed there, measured by its authors on another model than ours. Ours: "
            "the same statistic of the same task, selector and direction rule on the model named here. The two "
            "columns are never combined. Shown: what we have a figure of, counts in parentheses behind their mean; "
            "published.csv has every figure of the source document."
        ),
        section="Six-axis protocol, the six axis tables and the summary table",
        group="published",
        columns=(
            named("source_table", "Table"),
            named("task", "Task"),
            named("selector", "Selector"),
            label("condition", "Dir."),
            Column("Statistic", _and_count(lambda row: in_words(row["statistic"])), "l"),
            Column("Source document\n(another model)", _and_count(_theirs)),
            Column("Ours", _and_count(_ours)),
        ),
        printed=_with_ours,
    ),
}
