"""The six axes, a table each, and their summary."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.metrics.reachability import EPSILONS
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.common import MEASURED, NOT_SUPPORTED, Records, Table, data_frame

KEYS = ("model", "task", "selector", "condition")
HEAD = (*KEYS, "status", "n_seeds", "seeds_not_supported")


def groups(records: Records) -> Iterable[tuple[dict[str, Any], list[Measurement]]]:
    """(model, task, selector, condition) in order, P before F, with the supported seeds."""

    def key(record: Measurement) -> tuple[Any, ...]:
        return record.model, record.task, record.selector, record.condition != "P", record.condition

    for _, group in groupby(sorted(records.measurements, key=lambda record: (*key(record), record.seed)), key=key):
        seeds = list(group)
        supported = [record for record in seeds if record.supported]
        head = {name: getattr(seeds[0], name) for name in KEYS}
        head |= {
            "status": MEASURED if supported else NOT_SUPPORTED,
            "n_seeds": len(supported),
            "seeds_not_supported": len(seeds) - len(supported),
        }
        yield head, supported


def axis_table(
    records: Records, columns: Sequence[str], statistic: Callable[[list[Measurement]], dict[str, Any]]
) -> pd.DataFrame:
    rows = [head | (statistic(seeds) if seeds else {}) for head, seeds in groups(records)]
    return data_frame((*HEAD, *columns), rows)


def _reachability(seeds: list[Measurement]) -> dict[str, Any]:
    return over_seeds.reachability([(s.evaluate.source, s.evaluate.target, s.evaluate.at_dose(1.0)) for s in seeds])


def _reversal(seeds: list[Measurement]) -> dict[str, Any]:
    return over_seeds.signed_reversal([(s.evaluate.source, s.evaluate.target, s.reversal.reversed) for s in seeds])


def _dose(seeds: list[Measurement]) -> dict[str, Any]:
    curves = [
        (s.evaluate.doses, over_seeds.curve(s.evaluate.source, s.evaluate.target, s.evaluate.patched)) for s in seeds
    ]
    return over_seeds.dose_response(curves)


def _feedback(seeds: list[Measurement]) -> dict[str, Any]:
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


def _preservation(seeds: list[Measurement]) -> dict[str, Any]:
    return over_seeds.preservation({s.seed: s.preservation.kl for s in seeds})


def _reuse(seeds: list[Measurement]) -> dict[str, Any]:
    return over_seeds.reuse([(s.reuse.source, s.reuse.target, s.reuse.refit, s.reuse.frozen) for s in seeds])


PASSES = tuple(f"passes_{epsilon:.2f}" for epsilon in EPSILONS)
REACHABILITY_COLUMNS = (
    "rel_tar_mean",
    "rel_tar_sd",
    *PASSES,
    "wrong_way_mean",
)
REVERSAL_COLUMNS = ("ratio_mean", "ratio_sd", "infinite", "undefined", "passes")
DOSE_COLUMNS = ("rho_mean", "ordered", "reversed", "undefined")
FEEDBACK_COLUMNS = (
    "hits",
    "endpoints",
    "mae",
    "readouts_mean",
    "already_met",
    "hits_not_already_met",
    "clipped",
    "diverged",
    "tolerance",
)
PRESERVATION_COLUMNS = ("n", "mean", "median", "p95", "max", "seed_mean_passes", "every_prompt_passes")
REUSE_COLUMNS = ("refit_mean", "refit_sd", "frozen_mean", "frozen_sd", "no_gap")


def reachability(records: Records) -> pd.DataFrame:
    """Rel_tar at dose 1: mean and sd over seeds, seeds at or below each threshold, pairs that move the wrong way."""
    return axis_table(records, REACHABILITY_COLUMNS, _reachability)


COUNT_KEYS = ("model", "task", "selector")
COUNT_COLUMNS = (*COUNT_KEYS, *(f"{condition}_{kind}" for condition in "PF" for kind in ("seeds", *PASSES)))


def reach_counts(records: Records) -> pd.DataFrame:
    """Seeds at or below each threshold of Rel_tar, both direction rules in a row."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in reachability(records).to_dict("records"):
        if row["status"] == MEASURED:
            found = rows.setdefault(tuple(row[name] for name in COUNT_KEYS), {name: row[name] for name in COUNT_KEYS})
            found |= {f"{row['condition']}_{name}": row[name] for name in PASSES}
            found[f"{row['condition']}_seeds"] = row["n_seeds"]
    return data_frame(COUNT_COLUMNS, rows.values())


def signed_reversal(records: Records) -> pd.DataFrame:
    """Reversal ratio: mean and sample sd over seeds with a finite one; infinite and undefined ones counted."""
    return axis_table(records, REVERSAL_COLUMNS, _reversal)


def dose_response(records: Records) -> pd.DataFrame:
    """Seeds whose progress is ordered by dose, ordered the wrong way, or constant."""
    return axis_table(records, DOSE_COLUMNS, _dose)


def feedback(records: Records) -> pd.DataFrame:
    """Feedback endpoints over all seeds: hits, error, readouts; targets met at dose zero apart."""
    return axis_table(records, FEEDBACK_COLUMNS, _feedback)


def preservation(records: Records) -> pd.DataFrame:
    """Off-target divergence over all prompt-seed observations, and the seeds that pass under both rules."""
    return axis_table(records, PRESERVATION_COLUMNS, _preservation)


def reuse(records: Records) -> pd.DataFrame:
    """Recovery on unseen pairs, strengths refitted or frozen: mean and sample sd over seeds."""
    return axis_table(records, REUSE_COLUMNS, _reuse)


AXES = {
    "reachability": (REACHABILITY_COLUMNS, _reachability),
    "signed_reversal": (REVERSAL_COLUMNS, _reversal),
    "dose_response": (DOSE_COLUMNS, _dose),
    "feedback": (FEEDBACK_COLUMNS, _feedback),
    "preservation": (PRESERVATION_COLUMNS, _preservation),
    "reuse": (REUSE_COLUMNS, _reuse),
}
SUMMARY_COLUMNS = (
    "rel_tar_mean",
    "passes_0.40",
    "ratio_mean",
    "passes",
    "ordered",
    "hits",
    "endpoints",
    "median",
    "seed_mean_passes",
    "refit_mean",
    "frozen_mean",
)


def summary(records: Records) -> pd.DataFrame:
    """Six numbers, not one: a task a row, an axis a column group; Coverage-Driver with evaluation-pair directions."""
    chosen = [r for r in records.measurements if (r.selector, r.condition) == ("coverage_driver", "P")]

    def statistic(seeds: list[Measurement]) -> dict[str, Any]:
        return {name: value for _, function in AXES.values() for name, value in function(seeds).items()}

    return axis_table(Records(measurements=tuple(chosen)), SUMMARY_COLUMNS, statistic)


TABLES: dict[str, Table] = {
    "summary": summary,
    "reachability": reachability,
    "reach_counts": reach_counts,
    "signed_reversal": signed_reversal,
    "dose_response": dose_response,
    "feedback": feedback,
    "preservation": preservation,
    "reuse": reuse,
}
