"""The six axes, a table each, and their summary."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from sparse_control.metrics import over_seeds
from sparse_control.metrics.reachability import EPSILONS
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
    significant,
    small,
    whole,
    with_count,
    with_deviation,
)
from sparse_control.tables.table import Table

Seeds = list[Measurement]  # of one (task, selector, condition), those that the model supports
Statistic = Callable[[Seeds], dict[str, Any]]

NOT_SUPPORTED, MEASURED = "not supported by this model", "measured"
KEYS = ("task", "selector", "condition")
COUNTS = ("status", "n_seeds", "seeds_not_supported")
WHICH = (named("task", "Task"), named("selector", "Selector"), label("condition", "Dir."))
STATUS = Column("Seeds", lambda row: str(row["n_seeds"]) if row["n_seeds"] else row["status"], "w26")
PASSES = tuple(f"passes_{epsilon:.2f}" for epsilon in EPSILONS)


def counted(seeds: Sequence[Measurement]) -> tuple[Row, Seeds]:
    """Whether the model supports any of these seeds and how many, and those that it does."""
    supported = [record for record in seeds if record.supported]
    status = MEASURED if supported else NOT_SUPPORTED
    return dict(zip(COUNTS, (status, len(supported), len(seeds) - len(supported)), strict=True)), supported


def axis_rows(model: ModelRecords, statistic: Statistic) -> Iterator[Row]:
    """The statistic of every (task, selector, condition), P before F, over its supported seeds."""

    def key(record: Measurement) -> tuple[Any, ...]:
        return record.task, record.selector, record.condition != "P", record.condition

    for _, group in groupby(sorted(model.six_axis, key=lambda record: (*key(record), record.seed)), key=key):
        seeds = list(group)
        counts, supported = counted(seeds)
        yield {name: getattr(seeds[0], name) for name in KEYS} | counts | (statistic(supported) if supported else {})


# --- the statistics -------------------------------------------------------------------------------------------------


def _reachability(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.reachability([(s.evaluate.source, s.evaluate.target, s.evaluate.at_dose(1.0)) for s in seeds])


def _reversal(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.signed_reversal([(s.evaluate.source, s.evaluate.target, s.reversal.reversed) for s in seeds])


def _dose(seeds: Seeds) -> dict[str, Any]:
    curves = [
        (s.evaluate.doses, over_seeds.curve(s.evaluate.source, s.evaluate.target, s.evaluate.patched)) for s in seeds
    ]
    return over_seeds.dose_response(curves)


def _feedback(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.feedback(
        [
            {
                "target": end.target,
                "terminal_margin": end.terminal_margin,
                "initial_margin": end.initial_margin,
                "tolerance": s.feedback.tolerance,
                "readouts": end.readouts,
                "clipped": end.clipped,
                "diverged": end.stop_reason == "diverged",
            }
            for s in seeds
            for end in s.feedback.endpoints
        ]
    )


def _preservation(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.preservation({s.seed: s.preservation.kl for s in seeds})


def _reuse(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.reuse([(s.reuse.source, s.reuse.target, s.reuse.refit, s.reuse.frozen) for s in seeds])


AXES: dict[str, tuple[tuple[str, ...], Statistic]] = {  # axis -> columns, statistic
    "reachability": (("rel_tar_mean", "rel_tar_sd", *PASSES, "wrong_way_mean"), _reachability),
    "signed_reversal": (("ratio_mean", "ratio_sd", "infinite", "undefined", "passes"), _reversal),
    "dose_response": (("rho_mean", "ordered", "reversed", "undefined"), _dose),
    "feedback": (
        (
            *("hits", "endpoints", "mae", "readouts_mean", "already_met", "hits_not_already_met"),
            *("clipped", "diverged", "tolerance"),
        ),
        _feedback,
    ),
    "preservation": (("n", "mean", "median", "p95", "max", "seed_mean_passes", "every_prompt_passes"), _preservation),
    "reuse": (("refit_mean", "refit_sd", "frozen_mean", "frozen_sd", "no_gap"), _reuse),
}


def every_axis(seeds: Seeds) -> dict[str, Any]:
    """The statistics of all six axes; of a name that two have, the last."""
    return {name: value for _, statistic in AXES.values() for name, value in statistic(seeds).items()}


# --- a table an axis ------------------------------------------------------------------------------------------------

MAIN = ("driver_omp", "coverage_driver")


def main_selectors(rows: list[Row]) -> list[Row]:
    """The rows of the two selectors; every row where there is none of them."""
    return once_where_unsupported([row for row in rows if row["selector"] in MAIN] or rows)


def once_where_unsupported(rows: list[Row]) -> list[Row]:
    """A task that the model does not support once, whatever the selector and direction; the .csv has all."""
    shown: list[Row] = []
    seen = set()
    for row in rows:
        if row["n_seeds"]:
            shown.append(row)
        elif row["task"] not in seen:
            seen.add(row["task"])
            shown.append(row | dict.fromkeys(("selector", "condition")))
    return shown


def _axis(name: str, *, title: str, caption: str, columns: tuple[Column, ...]) -> Table:
    fields, statistic = AXES[name]
    return Table(
        name=name,
        title=title,
        caption=(
            f"{caption} Shown: the two selectors; the .csv has the controls too, and table Selectors and controls "
            "compares them."
        ),
        section=f"Six-axis protocol, {title}",
        group="protocol",
        reads=("six_axis",),
        rows=lambda model: axis_rows(model, statistic),
        fields=(*KEYS, *COUNTS, *fields),
        columns=(*WHICH, STATUS, *columns),
        printed=main_selectors,
    )


REACHABILITY = _axis(
    "reachability",
    title="Reachability",
    caption=(
        "Rel_tar at dose 1 (distance left to the target over the source-to-target distance; mean ± sample sd over "
        "seeds), seeds at or below the operating choice .40, and the share of pairs whose readout moves away from "
        "the target (mean over seeds)."
    ),
    columns=(
        with_deviation("rel_tar_mean", "rel_tar_sd", "Rel_tar"),
        out_of("passes_0.40", "n_seeds", "≤ .40"),
        decimal("wrong_way_mean", "Wrong\nway", 2),
    ),
)
SIGNED_REVERSAL = _axis(
    "signed_reversal",
    title="Signed reversal",
    caption=(
        "Distance of the reversed output from the target over its distance from the source (mean ± sample sd over "
        "seeds with a finite ratio), seeds with an infinite (x/0) or undefined (0/0) ratio, and seeds that pass "
        "with a ratio ≥ 2."
    ),
    columns=(
        with_deviation("ratio_mean", "ratio_sd", "Ratio"),
        whole("infinite", "Infinite"),
        whole("undefined", "Undefined"),
        out_of("passes", "n_seeds", "Pass"),
    ),
)
DOSE_RESPONSE = _axis(
    "dose_response",
    title="Dose response",
    caption=(
        "Spearman correlation of target progress with dose over the ten doses: mean over seeds, seeds ordered (ρ "
        "≥ .95), ordered the wrong way (ρ ≤ −.95, never a pass), and undefined (constant curve)."
    ),
    columns=(
        decimal("rho_mean", "Mean ρ"),
        whole("ordered", "ρ ≥ .95"),
        whole("reversed", "ρ ≤ −.95"),
        whole("undefined", "Undefined"),
    ),
)
FEEDBACK = _axis(
    "feedback",
    title="Feedback controllability",
    caption=(
        "Endpoints over all seeds that end within the tolerance (logits) of the requested margin, mean absolute "
        "terminal error, mean number of readouts, endpoints already met at dose zero, hits among the others, "
        "endpoints whose dose was held at its limit, and endpoints whose loop diverged."
    ),
    columns=(
        out_of("hits", "endpoints", "Hits"),
        decimal("mae", "MAE"),
        decimal("readouts_mean", "Readouts", 1),
        whole("already_met", "Already\nmet"),
        whole("hits_not_already_met", "Other\nhits"),
        Column(
            "Clipped,\ndiverged",
            lambda row: EMPTY if row["clipped"] is None else f"{row['clipped']}, {row['diverged']}",
        ),
        Column("Tol.", lambda row: EMPTY if row["tolerance"] is None else f"{row['tolerance']:g}"),
    ),
)
PRESERVATION = _axis(
    "preservation",
    title="Off-target preservation",
    caption=(
        "KL(unpatched || patched) over the full vocabulary in nats on the fixed off-target panel at dose 1, over "
        "all prompt-seed observations: mean, median, nearest-rank P95, maximum; seeds whose mean, and whose every "
        "prompt, is ≤ .001."
    ),
    columns=(
        whole("n", "Obs."),
        small("mean", "Mean"),
        small("median", "Median"),
        small("p95", "P95"),
        small("max", "Max"),
        out_of("seed_mean_passes", "n_seeds", "Seed\nmean"),
        out_of("every_prompt_passes", "n_seeds", "Every\nprompt"),
    ),
)
REUSE = _axis(
    "reuse",
    title="Held-out reuse",
    caption=(
        "Recovery of the source-to-target gap in the mean margin on unseen pairs (mean ± sample sd over seeds): "
        "strengths refitted there, and the whole intervention frozen; seeds without a gap. No threshold."
    ),
    columns=(
        with_deviation("refit_mean", "refit_sd", "Refit"),
        with_deviation("frozen_mean", "frozen_sd", "Frozen"),
        whole("no_gap", "No gap"),
    ),
)

# --- over axes and thresholds ---------------------------------------------------------------------------------------


def _summary(model: ModelRecords) -> Iterator[Row]:
    chosen = [r for r in model.six_axis if (r.selector, r.condition) == ("coverage_driver", "P")]
    return axis_rows(replace(model, six_axis=tuple(chosen)), every_axis)


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
        named("task", "Task"),
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
    """Both direction rules in a row."""
    rows: dict[tuple[str, str], Row] = {}
    for row in axis_rows(model, _reachability):
        if row["status"] == MEASURED:
            found = rows.setdefault((row["task"], row["selector"]), {name: row[name] for name in ("task", "selector")})
            found |= {f"{row['condition']}_{name}": row[name] for name in PASSES}
            found[f"{row['condition']}_seeds"] = row["n_seeds"]
    return list(rows.values())


REACH_COUNTS = Table(
    name="reach_counts",
    title="Reachability over thresholds",
    caption=(
        "Seeds whose Rel_tar at dose 1 is at or below each threshold ε, with evaluation-pair directions (P) and "
        "with training means (F); .40 is the operating choice."
    ),
    section="Six-axis protocol, Reachability",
    group="protocol",
    reads=("six_axis",),
    rows=_reach_counts,
    fields=("task", "selector", *(f"{condition}_{kind}" for condition in "PF" for kind in ("seeds", *PASSES))),
    columns=(
        named("task", "Task"),
        named("selector", "Selector"),
        *(
            column
            for condition in "PF"
            for column in (
                whole(f"{condition}_seeds", f"{condition}\nseeds"),
                *(whole(f"{condition}_{name}", f"{condition}\n≤ {name[-3:]}") for name in PASSES),
            )
        ),
    ),
)

TABLES = (SUMMARY, REACHABILITY, REACH_COUNTS, SIGNED_REVERSAL, DOSE_RESPONSE, FEEDBACK, PRESERVATION, REUSE)
