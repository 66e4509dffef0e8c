"""Selectors beside their controls, the gate, and how good the effect columns are."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import pandas as pd

from sparse_control.metrics import over_seeds
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.common import MEASURED, NOT_SUPPORTED, Records, Table, data_frame
from sparse_control.tables.protocol import AXES, HEAD, groups

ORDER = (
    "driver_omp", "coverage_driver",
    "driver_omp_remeasured", "top_k", "random_support", "random_direction", "all_sites",
)  # fmt: skip
CONTROL_COLUMNS = (
    *HEAD,
    "sites_mean",
    "rel_tar_mean",
    "rel_tar_sd",
    "passes_0.40",
    "wrong_way_mean",
    "ratio_mean",
    "passes",
    "median",
    "refit_mean",
    "frozen_mean",
    "predicted_mean",
    "measured_mean",
    "draws",
    "draw_mean",
    "draw_sd",
    "draw_passes",
    *(f"draw_p{share:02d}" for share in over_seeds.QUANTILES),
)


def controls(records: Records) -> pd.DataFrame:
    """Every selector of a task and direction rule: what it reaches, what it costs; random controls over their draws."""
    rows = [head | (_control(seeds) if seeds else {}) for head, seeds in groups(records)]
    return data_frame(CONTROL_COLUMNS, sorted(rows, key=_place))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    rank = ORDER.index(row["selector"]) if row["selector"] in ORDER else len(ORDER)
    return row["model"], row["task"], row["condition"] != "P", row["condition"], rank, row["selector"]


def _control(seeds: Sequence[Measurement]) -> dict[str, Any]:
    statistics = {name: value for _, function in AXES.values() for name, value in function(list(seeds)).items()}
    drawn = [
        [(seed.evaluate.source, seed.evaluate.target, draw.patched) for draw in seed.draws]
        for seed in seeds
        if seed.draws is not None
    ]
    return statistics | {
        "sites_mean": over_seeds.mean_or_none([len(seed.support) for seed in seeds]),
        "predicted_mean": _mean_of([seed.selection.predicted_additivity for seed in seeds]),
        "measured_mean": _mean_of([seed.selection.measured_additivity for seed in seeds]),
        **(over_seeds.draws(drawn) if drawn else {}),
    }


def _mean_of(values: Iterable[float | None]) -> float | None:
    return over_seeds.mean_or_none([value for value in values if value is not None])


SPLITS = ("fit", "evaluate", "reuse")
GATE_COLUMNS = (
    "model",
    "task",
    "status",
    "n_seeds",
    "seeds_not_supported",
    "minimum_gap",
    *(f"{split}_{count}" for split in SPLITS for count in ("kept", "built")),
    "dropped",
    "pairs_from",
    "off_target_from",
    "reason",
)


def gate(records: Records) -> pd.DataFrame:
    """Pairs kept and dropped before any intervention, over seeds; which tasks the model does not support, and why."""
    rows = []
    for (model, task), seeds in _by_task(records):
        supported = [seed for seed in seeds if seed.supported]
        gates = [seed.gate for seed in seeds if seed.gate is not None]
        counts = {
            f"{split}_{count}": sum(getattr(getattr(one, split), count) for one in gates)
            for split in SPLITS
            for count in ("kept", "built")
        }
        rows.append(
            {
                "model": model,
                "task": task,
                "status": MEASURED if supported else NOT_SUPPORTED,
                "n_seeds": len(supported),
                "seeds_not_supported": len(seeds) - len(supported),
                "minimum_gap": next((one.minimum_gap for one in gates), None),
                **(counts if gates else {}),
                "dropped": _dropped(counts) if gates else None,
                "pairs_from": _one_or_several(seed.panels.pairs for seed in seeds if seed.panels),
                "off_target_from": _one_or_several(seed.panels.off_target for seed in seeds if seed.panels),
                "reason": next((seed.reason for seed in seeds if seed.reason), None),
            }
        )
    return data_frame(GATE_COLUMNS, rows)


def _dropped(counts: dict[str, int]) -> int:
    return sum(counts[f"{split}_built"] - counts[f"{split}_kept"] for split in SPLITS)


def _by_task(records: Records) -> Iterable[tuple[tuple[str, str], list[Measurement]]]:
    """One record per seed: selectors and direction rules of a task have the same pairs and effect columns."""

    def key(record: Measurement) -> tuple[str, str]:
        return record.model, record.task

    for place, group in groupby(sorted(records.measurements, key=lambda record: record.key), key=key):
        seeds = {record.seed: record for record in group}
        yield place, [seeds[seed] for seed in sorted(seeds)]


def _one_or_several(names: Iterable[str]) -> str | None:
    return " or ".join(sorted(set(names))) or None


EFFECT_COLUMNS = (
    "model",
    "task",
    "status",
    "n_seeds",
    "kind",
    "candidates",
    "without_contrast",
    "check_sites",
    "pearson_min",
    "pearson_median",
    "undefined",
)


def effects_check(records: Records) -> pd.DataFrame:
    """First-order effects against single patches: correlation over checked sites and all fitting pairs, per seed."""
    rows = []
    for (model, task), every in _by_task(records):
        seeds = [seed for seed in every if seed.supported]
        row: dict[str, Any] = {
            "model": model,
            "task": task,
            "status": MEASURED if seeds else NOT_SUPPORTED,
            "n_seeds": len(seeds),
        }
        if seeds:
            found = [seed.effects.check_pearson for seed in seeds if seed.effects.check_pearson is not None]
            row |= {
                "kind": _one_or_several(seed.effects.kind for seed in seeds),
                "candidates": _most(seed.candidates.sites for seed in seeds if seed.candidates),
                "without_contrast": _most(seed.candidates.without_contrast for seed in seeds if seed.candidates),
                "check_sites": _most(seed.effects.check_sites for seed in seeds),
                "pearson_min": min(found, default=None),
                "pearson_median": median(found) if found else None,
                "undefined": len(seeds) - len(found),
            }
        rows.append(row)
    return data_frame(EFFECT_COLUMNS, rows)


def _most(counts: Iterable[int]) -> int | None:
    return max(counts, default=None)


TABLES: dict[str, Table] = {
    "gate": gate,
    "controls": controls,
    "effects_check": effects_check,
}
