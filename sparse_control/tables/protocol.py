"""The six axes, a table each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from sparse_control.metrics import over_seeds
from sparse_control.metrics.reachability import EPSILONS
from sparse_control.records.given import is_given
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.columns import (
    EMPTY,
    Column,
    Row,
    decimal,
    label,
    named,
    out_of,
    significant,
    small,
    whole,
    with_deviation,
)
from sparse_control.tables.table import Table, mean_of_known

Seeds = list[Measurement]  # of one (task, selector, condition), those that the model supports
Statistic = Callable[[Seeds], dict[str, Any]]

NOT_SUPPORTED, MEASURED = "not supported by this model", "measured"
KEYS = ("task", "selector", "condition")
COUNTS = ("status", "n_seeds", "seeds_not_supported")
WHICH = (named("task", "Task"), named("selector", "Selector"), label("condition", "Dir."))
STATUS = Column("Seeds", lambda row: str(row["n_seeds"]) if row["n_seeds"] else row["status"], "w26")
NOT_MEASURED = "not measured"  # by the code that made the records
PASSES = tuple(f"passes_{epsilon:.2f}" for epsilon in EPSILONS)


def or_not_measured(name: str, heading: str) -> Column:
    """A column of numbers that records of older code do not have."""

    def text(row: Row) -> str:
        return NOT_MEASURED if row[name] is None and row["n_seeds"] else significant(row[name])

    return Column(heading, text)


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


def reached(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.reachability([(s.evaluate.source, s.evaluate.target, s.evaluate.at_dose(1.0)) for s in seeds])


def _reversal(seeds: Seeds) -> dict[str, Any]:
    return over_seeds.signed_reversal([(s.evaluate.source, s.evaluate.target, s.reversal.reversed) for s in seeds])


def _dose(seeds: Seeds) -> dict[str, Any]:
    curves = [
        (s.evaluate.doses, over_seeds.curve(s.evaluate.source, s.evaluate.target, s.evaluate.patched)) for s in seeds
    ]
    return over_seeds.dose_response(curves) | {"direction_share": mean_of_known(map(_direction_share, seeds))}


def _direction_share(record: Measurement) -> float | None:
    """||d|| / ||P||, mean over sites: the direction beside the pairs' own contrasts; None where those were not kept."""
    own = record.norms.contrast or []
    return mean_of_known(d / p for d, p in zip(record.norms.direction, own, strict=False) if p > 0)


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
    "reachability": (("rel_tar_mean", "rel_tar_sd", *PASSES, "wrong_way_mean"), reached),
    "signed_reversal": (("ratio_mean", "ratio_sd", "infinite", "undefined", "passes"), _reversal),
    "dose_response": (
        ("rho_mean", "ordered", "reversed", "undefined", "range_mean", "noise", "direction_share"),
        _dose,
    ),
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

MAIN = ("driver_omp", "coverage_driver", "coverage_driver_k8")


def main_selectors(rows: list[Row]) -> list[Row]:
    """The rows of the two selectors and of interventions given as files; every row where there is none of them."""
    main = [row for row in rows if row["selector"] in MAIN or is_given(row["selector"])]
    return once_where_unsupported(main or rows)


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
            f"{caption} Shown: Driver-OMP, Coverage-Driver and what was given as a file, or every selector where none "
            "of these was measured; the .csv has all, and table Selectors and controls compares them."
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
        "≥ .95), ordered the wrong way (ρ ≤ −.95, never a pass), undefined (constant curve), and ordered either way "
        "over a range below 5 % of the gap, which is noise. Range: of the curve, in gaps. |d|/|P|: norm of the "
        "direction over that of the pairs' own contrasts, mean over sites and seeds."
    ),
    columns=(
        decimal("rho_mean", "Mean ρ"),
        whole("ordered", "ρ ≥ .95"),
        whole("reversed", "ρ ≤ −.95"),
        whole("undefined", "Undefined"),
        whole("noise", "Noise"),
        decimal("range_mean", "Range"),
        or_not_measured("direction_share", "|d|/|P|"),
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

TABLES = (REACHABILITY, SIGNED_REVERSAL, DOSE_RESPONSE, FEEDBACK, PRESERVATION, REUSE)
