"""Selectors beside their controls, the gate, and how good the effect columns are."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from statistics import median
from typing import Any

from sparse_control.metrics import over_seeds
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.columns import (
    EMPTY,
    Column,
    Row,
    decimal,
    fixed,
    label,
    named,
    of,
    out_of,
    small,
    whole,
    with_count,
    with_deviation,
)
from sparse_control.tables.protocol import (
    COUNTS,
    KEYS,
    STATUS,
    WHICH,
    Seeds,
    axis_rows,
    counted,
    every_axis,
    once_where_unsupported,
)
from sparse_control.tables.table import Table, mean_of_known

SECTION = "Six-axis protocol, What every axis needs"
ORDER = (
    *("driver_omp", "coverage_driver", "driver_omp_remeasured", "coverage_driver_k8"),
    *("diff_in_means", "diff_in_means_all", "pca", "probe", "ablate"),
    *("top_k", "random_support", "random_direction", "all_sites"),
)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by task and direction rule, P first, and selectors, baselines and controls in the order of the paper."""

    def key(row: Row) -> tuple[Any, ...]:
        rank = ORDER.index(row["selector"]) if row["selector"] in ORDER else len(ORDER)
        return row["task"], row["condition"] != "P", row["condition"], rank, row["selector"]

    return sorted(rows, key=key)


def _control(seeds: Seeds) -> Row:
    drawn = [
        [(seed.evaluate.source, seed.evaluate.target, draw.patched) for draw in seed.draws]
        for seed in seeds
        if seed.draws is not None
    ]
    return every_axis(seeds) | {
        "sites_mean": mean_of_known(len(seed.support) for seed in seeds),
        "predicted_mean": mean_of_known(seed.selection.predicted_additivity for seed in seeds),
        "measured_mean": mean_of_known(seed.selection.measured_additivity for seed in seeds),
        **(over_seeds.draws(drawn) if drawn else {}),
    }


def _over_draws(row: Row) -> str:
    if row["draws"] is None:
        return EMPTY
    low, middle, high = (fixed(row[f"draw_p{share}"], 2) for share in ("05", "50", "95"))
    return f"{middle} [{low}, {high}], {of(row['draw_passes'], row['draws'])}"


CONTROLS = Table(
    name="controls",
    title="Selectors and controls",
    caption=(
        "At the same number of sites (all sites: every candidate): Rel_tar at dose 1 and seeds ≤ .40, share of "
        "pairs moving the wrong way, reversal ratio and seeds ≥ 2, median off-target KL in nats, recovery on unseen "
        "pairs with refitted and with frozen strengths, and progress on the fitting pairs that single effects "
        "predict and that the joint patch has. Random controls stand with their first draw of each seed; over all "
        "draws: median Rel_tar, in brackets the 5th and 95th percentile (nearest rank), draws ≤ .40."
    ),
    section=SECTION,
    group="protocol",
    reads=("six_axis",),
    rows=lambda model: in_order(axis_rows(model, _control)),
    fields=(
        *(*KEYS, *COUNTS, "sites_mean", "rel_tar_mean", "rel_tar_sd", "passes_0.40", "wrong_way_mean", "ratio_mean"),
        *("passes", "median", "refit_mean", "frozen_mean", "predicted_mean", "measured_mean"),
        *("draws", "draw_mean", "draw_sd", "draw_passes", *(f"draw_p{share:02d}" for share in over_seeds.QUANTILES)),
    ),
    columns=(
        *WHICH,
        STATUS,
        decimal("sites_mean", "Sites", 1),
        with_deviation("rel_tar_mean", "rel_tar_sd", "Rel_tar", 2),
        out_of("passes_0.40", "n_seeds", "≤ .40"),
        decimal("wrong_way_mean", "Wrong\nway", 2),
        with_count(
            lambda row: fixed(row["ratio_mean"], 2),
            lambda row: of(row["passes"], row["n_seeds"]),
            "Reversal\n≥ 2",
        ),
        small("median", "Median\nKL"),
        decimal("refit_mean", "Refit", 2),
        decimal("frozen_mean", "Frozen", 2),
        Column(
            "Predicted,\nmeasured",
            lambda row: f"{fixed(row['predicted_mean'], 2)}, {fixed(row['measured_mean'], 2)}",
        ),
        Column("Over draws", _over_draws, "l"),
    ),
    printed=once_where_unsupported,
)

# --- of a task ------------------------------------------------------------------------------------------------------

SPLITS = ("fit", "evaluate", "reuse")


def _by_task(model: ModelRecords) -> Iterator[tuple[str, list[Measurement]]]:
    """One record per seed: selectors and direction rules of a task have the same pairs and effect columns.

    Of the records of a seed one with the most candidate sites, as a baseline has the residual stream alone.
    """

    def key(record: Measurement) -> tuple[Any, ...]:
        return record.task, record.candidates.sites if record.candidates else 0, record.key

    ordered = sorted(model.six_axis, key=key)
    for task, group in groupby(ordered, key=lambda record: record.task):
        seeds = {record.seed: record for record in group}
        yield task, [seeds[seed] for seed in sorted(seeds)]


def _one_or_several(names: Iterable[str]) -> str | None:
    return " or ".join(sorted(set(names))) or None


def _gate(model: ModelRecords) -> Iterator[Row]:
    """Pairs kept and dropped before any intervention, over seeds; which tasks the model does not support, and why."""
    for task, seeds in _by_task(model):
        gates = [seed.gate for seed in seeds if seed.gate is not None]
        panels = [seed.panels for seed in seeds if seed.panels]
        row = {"task": task} | counted(seeds)[0]
        for split in SPLITS if gates else ():
            for count in ("kept", "built"):
                row[f"{split}_{count}"] = sum(getattr(getattr(gate, split), count) for gate in gates)
        yield row | {
            "minimum_gap": next((gate.minimum_gap for gate in gates), None),
            "dropped": sum(row[f"{split}_built"] - row[f"{split}_kept"] for split in SPLITS) if gates else None,
            "pairs_from": _one_or_several(panel.pairs for panel in panels),
            "off_target_from": _one_or_several(panel.off_target for panel in panels),
            "reason": next((seed.reason for seed in seeds if seed.reason), None),
        }


GATE = Table(
    name="gate",
    title="The baseline gate",
    caption=(
        "Before any intervention, pairs whose gap (target readout less source readout, unpatched) reaches the "
        "minimum, of those built, per split and over seeds; a task that keeps too few in any split is not "
        "supported by the model and never scored. Prompts: the project's own, or the data set they come from."
    ),
    section=SECTION,
    group="protocol",
    reads=("six_axis",),
    rows=_gate,
    fields=(
        *("task", *COUNTS, "minimum_gap", *(f"{split}_{count}" for split in SPLITS for count in ("kept", "built"))),
        *("dropped", "pairs_from", "off_target_from", "reason"),
    ),
    columns=(
        named("task", "Task"),
        Column("Seeds", lambda row: of(row["n_seeds"], row["n_seeds"] + row["seeds_not_supported"])),
        Column("Gap", lambda row: EMPTY if row["minimum_gap"] is None else f"{row['minimum_gap']:g}"),
        *(out_of(f"{split}_kept", f"{split}_built", split.capitalize()) for split in SPLITS),
        whole("dropped", "Dropped"),
        label("pairs_from", "Pairs"),
        label("off_target_from", "Off-target"),
        Column("Result", lambda row: ": ".join(filter(None, (row["status"], row["reason"]))), "w40"),
    ),
)


def _effects_check(model: ModelRecords) -> Iterator[Row]:
    """Correlation over checked sites and all fitting pairs, per seed; a given intervention needs no effects."""
    selected = tuple(record for record in model.six_axis if record.origin is None)
    for task, every in _by_task(replace(model, six_axis=selected)):
        counts, seeds = counted(every)
        row: Row = {"task": task} | counts
        if seeds:
            found = [seed.effects.check_pearson for seed in seeds if seed.effects.check_pearson is not None]
            candidates = [seed.candidates for seed in seeds if seed.candidates]
            row |= {
                "kind": _one_or_several(seed.effects.kind for seed in seeds),
                "candidates": max((each.sites for each in candidates), default=None),
                "without_contrast": max((each.without_contrast for each in candidates), default=None),
                "check_sites": max(seed.effects.check_sites for seed in seeds),
                "pearson_min": min(found, default=None),
                "pearson_median": median(found) if found else None,
                "undefined": len(seeds) - len(found),
            }
        yield row


EFFECTS_CHECK = Table(
    name="effects_check",
    title="Effects by gradients against patches",
    caption=(
        "What fills the effect columns of the selectors (first order: one gradient; measured: a patch at each site "
        "alone), candidate sites and those left out as no fitting pair has a contrast there, and the correlation of "
        "the two kinds over randomly drawn sites and all fitting pairs, lowest and median over seeds."
    ),
    section=SECTION,
    group="protocol",
    reads=("six_axis",),
    rows=_effects_check,
    fields=(
        *("task", "status", "n_seeds", "kind", "candidates", "without_contrast", "check_sites"),
        *("pearson_min", "pearson_median", "undefined"),
    ),
    columns=(
        named("task", "Task"),
        STATUS,
        named("kind", "Effects"),
        whole("candidates", "Candidate\nsites"),
        whole("without_contrast", "Left\nout"),
        whole("check_sites", "Sites\nchecked"),
        decimal("pearson_min", "Pearson\nlowest"),
        decimal("pearson_median", "Pearson\nmedian"),
        whole("undefined", "Undefined"),
    ),
)

TABLES = (GATE, CONTROLS, EFFECTS_CHECK)
