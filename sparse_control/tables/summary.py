"""The six axes in one table, and reachability over thresholds."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from sparse_control.records.given import is_given
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import CONDITIONS
from sparse_control.tables.columns import (
    EMPTY,
    Column,
    Row,
    decimal,
    fixed,
    in_words,
    named,
    of,
    out_of,
    significant,
    with_count,
)
from sparse_control.tables.protocol import COUNTS, KEYS, MEASURED, PASSES, STATUS, axis_rows, every_axis, reached
from sparse_control.tables.table import Table

SUMMED = ("coverage_driver", "P")


def _summary(model: ModelRecords) -> Iterator[Row]:
    """Coverage-Driver's rows, and those of interventions that were given as files."""
    chosen = [r for r in model.six_axis if (r.selector, r.condition) == SUMMED or is_given(r.selector)]
    return axis_rows(replace(model, six_axis=tuple(chosen)), every_axis)


def _task(row: Row) -> str:
    """The task, and the intervention where it is another than Coverage-Driver's."""
    which = row["selector"], row["condition"]
    return in_words(row["task"]) + ("" if which == SUMMED else f", {which[0]} ({which[1]})")


SUMMARY = Table(
    name="summary",
    title="Six numbers, not one",
    caption=(
        "One row per task, one column per axis, Coverage-Driver with evaluation-pair directions (P): Rel_tar and "
        "reversal ratio (mean over seeds, passing seeds), curves with ρ ≥ .95, feedback hits, median off-target "
        "KL in nats (seeds whose mean is ≤ .001), recovery on unseen pairs with refitted and with frozen "
        "strengths."
    ),
    section="Six-axis protocol, Six numbers, not one",
    group="protocol",
    reads=("six_axis",),
    rows=_summary,
    fields=(
        *(*KEYS, *COUNTS, "rel_tar_mean", "passes_0.40", "ratio_mean", "passes", "ordered", "hits", "endpoints"),
        *("median", "seed_mean_passes", "refit_mean", "frozen_mean"),
    ),
    columns=(
        Column("Task", _task, "l"),
        STATUS,
        with_count(
            lambda r: fixed(r["rel_tar_mean"], 3), lambda r: of(r["passes_0.40"], r["n_seeds"]), "01 Reach\n≤ .4"
        ),
        with_count(lambda r: fixed(r["ratio_mean"], 2), lambda r: of(r["passes"], r["n_seeds"]), "02 Reversal\n≥ 2"),
        Column("03 Dose\nρ ≥ .95", lambda r: of(r["ordered"], r["n_seeds"])),
        out_of("hits", "endpoints", "04 Feedback\nhits"),
        with_count(
            lambda r: significant(r["median"]),
            lambda r: of(r["seed_mean_passes"], r["n_seeds"]),
            "05 Preservation\nmedian KL",
        ),
        decimal("refit_mean", "06 Reuse\nrefit"),
        decimal("frozen_mean", "06 Reuse\nfrozen"),
    ),
)


def _reach_counts(model: ModelRecords) -> list[Row]:
    """All direction rules in a row."""
    rows: dict[tuple[str, str], Row] = {}
    for row in axis_rows(model, reached):
        if row["status"] == MEASURED:
            found = rows.setdefault((row["task"], row["selector"]), {name: row[name] for name in ("task", "selector")})
            found |= {f"{row['condition']}_{name}": row[name] for name in PASSES}
            found[f"{row['condition']}_seeds"] = row["n_seeds"]
    return list(rows.values())


def _counts(condition: str, row: Row) -> str:
    counts = ", ".join(str(row[f"{condition}_{name}"]) for name in PASSES)
    return EMPTY if row[f"{condition}_seeds"] is None else f"{counts} of {row[f'{condition}_seeds']}"


REACH_COUNTS = Table(
    name="reach_counts",
    title="Reachability over thresholds",
    caption=(
        "Seeds whose Rel_tar at dose 1 is at or below each threshold ε, with evaluation-pair directions (P), with "
        "training means (F) and with oriented ones (O); .40 is the operating choice."
    ),
    section="Six-axis protocol, Reachability",
    group="protocol",
    reads=("six_axis",),
    rows=_reach_counts,
    fields=("task", "selector", *(f"{condition}_{kind}" for condition in CONDITIONS for kind in ("seeds", *PASSES))),
    columns=(
        named("task", "Task"),
        named("selector", "Selector"),
        *(Column(f"{rule}: seeds at ε of\n.30, .35, .40, .45, .50", partial(_counts, rule)) for rule in CONDITIONS),
    ),
)

TABLES = (SUMMARY, REACH_COUNTS)
