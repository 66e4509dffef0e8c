"""Over seeds: each axis is computed on the whole readout vector of a seed, then counted and averaged over seeds.

Arguments have one entry per seed. Results are plain values: None where nothing is defined;
NaN or infinity only from readouts beyond the range of float64, which the callers refuse.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparse_control.metrics.cost import BUDGETS, progress_at_budget
from sparse_control.metrics.dose import ORDERED, progress, signed_spearman
from sparse_control.metrics.feedback import endpoint_metrics
from sparse_control.metrics.preservation import preservation_summary
from sparse_control.metrics.reachability import EPSILON, EPSILONS, rel_tar
from sparse_control.metrics.reuse import mcqa_recovery
from sparse_control.metrics.reversal import reversal_metrics

Vector = Sequence[float]
QUANTILES = (5, 50, 95)  # of random draws, nearest rank
NOISE_RANGE = 0.05  # of the gap; the order of a dose curve whose range is smaller is noise


def mean_or_none(values: Sequence[float]) -> float | None:
    """Mean of the correctly rounded sum; None without values."""
    return math.fsum(values) / len(values) if values else None


def deviation_or_none(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None for fewer than two values, NaN where one is not finite."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def reachability(seeds: Sequence[tuple[Vector, Vector, Vector]]) -> dict[str, Any]:
    """(source, target, patched at dose 1) per seed -> mean and sd of Rel_tar, seeds at or below each threshold.

    And the mean over seeds of the share of pairs that move the wrong way.
    """
    values = [rel_tar(source, target, patched) for source, target, patched in seeds]
    counts = {f"passes_{epsilon:.2f}": sum(value <= epsilon for value in values) for epsilon in EPSILONS}
    return {
        "rel_tar_mean": mean_or_none(values),
        "rel_tar_sd": deviation_or_none(values),
        **counts,
        "wrong_way_mean": mean_or_none([wrong_way(*seed) for seed in seeds]),
    }


def wrong_way(source: Vector, target: Vector, patched: Vector) -> float:
    """Share of pairs whose readout moves away from the target."""
    pairs = list(zip(source, target, patched, strict=True))
    return sum((y - s) * (t - s) < 0 for s, t, y in pairs) / len(pairs)


def draws(seeds: Sequence[Sequence[tuple[Vector, Vector, Vector]]]) -> dict[str, Any]:
    """(source, target, patched at dose 1) per draw of each seed -> Rel_tar over all draws: mean, sd, nearest ranks."""
    values = sorted(rel_tar(*draw) for seed in seeds for draw in seed)
    ranks = {f"draw_p{share:02d}": values[-(-share * len(values) // 100) - 1] for share in QUANTILES} if values else {}
    return {
        "draws": len(values),
        "draw_mean": mean_or_none(values),
        "draw_sd": deviation_or_none(values),
        "draw_passes": sum(value <= EPSILON for value in values),
        **ranks,
    }


def signed_reversal(seeds: Sequence[tuple[Vector, Vector, Vector]]) -> dict[str, Any]:
    """(source, target, reversed) per seed -> mean and sd over finite ratios; infinite and undefined ones counted."""
    results = [reversal_metrics(source, target, reversed_out) for source, target, reversed_out in seeds]
    finite = [result["ratio"] for result in results if result["status"] == "finite"]
    return {
        "ratio_mean": mean_or_none(finite),
        "ratio_sd": deviation_or_none(finite),
        "infinite": sum(result["status"] == "infinite" for result in results),
        "undefined": sum(result["status"] == "undefined" for result in results),
        "passes": sum(result["passes"] for result in results),
    }


def curve(source: Vector, target: Vector, rows: Sequence[Vector]) -> list[float] | None:
    """Progress at each dose from patched readouts; None where source and target coincide."""
    values = [progress(source, target, row) for row in rows]
    return None if any(math.isnan(value) for value in values) else values


def dose_response(seeds: Sequence[tuple[Vector, Vector | None]]) -> dict[str, Any]:
    """(doses, progress or None) per seed -> ordered, reversed and undefined curves, mean rho of the defined ones.

    And the mean range of the curves, in gaps, and how many of the ordered and reversed ones are noise: of a range below
    5 % of the gap.
    """
    rhos = [math.nan if values is None else signed_spearman(doses, values) for doses, values in seeds]
    defined = [rho for rho in rhos if not math.isnan(rho)]
    ranges = [None if values is None else max(values) - min(values) for _, values in seeds]
    return {
        "rho_mean": mean_or_none(defined),
        "ordered": sum(rho >= ORDERED for rho in defined),
        "reversed": sum(rho <= -ORDERED for rho in defined),
        "undefined": len(rhos) - len(defined),
        "range_mean": mean_or_none([wide for wide in ranges if wide is not None]),
        "noise": sum(abs(rho) >= ORDERED and wide < NOISE_RANGE for rho, wide in zip(rhos, ranges, strict=True)),
    }


def equal_cost(seeds: Sequence[tuple[Vector, Vector | None, Sequence[Vector]]]) -> dict[str, float | None]:
    """(doses, progress or None, divergences per dose) per seed -> `at_BUDGET`, progress at each budget of KL.

    Of the curves that are means over seeds, at the doses that all seeds have; a seed without a gap has no progress and
    is left out. None where there is no curve, or its smallest positive dose is above the budget.
    """
    rows = [dict(zip(doses, zip(moved, kl, strict=True), strict=True)) for doses, moved, kl in seeds if moved]
    shared = [dose for dose in rows[0] if all(dose in row for row in rows)] if rows else []
    result: dict[str, float | None] = dict.fromkeys((f"at_{budget:g}" for budget in BUDGETS), None)
    if not any(dose > 0 for dose in shared):
        return result
    moved = [math.fsum(row[dose][0] for row in rows) / len(rows) for dose in shared]
    spent = [math.fsum(math.fsum(row[dose][1]) / len(row[dose][1]) for row in rows) / len(rows) for dose in shared]
    for budget in BUDGETS:
        value = progress_at_budget(shared, moved, spent, budget)
        result[f"at_{budget:g}"] = None if math.isnan(value) else value
    return result


def feedback(endpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Endpoints of all seeds -> hits, mean absolute error, readouts; targets met at dose zero apart.

    Each has target, terminal_margin, initial_margin and tolerance, and where known readouts, clipped and diverged.
    """
    names = ("target", "terminal_margin", "initial_margin", "tolerance")
    results = [endpoint_metrics(**{name: endpoint[name] for name in names}) for endpoint in endpoints]
    readouts = [endpoint["readouts"] for endpoint in endpoints if endpoint.get("readouts") is not None]
    tolerances = {endpoint["tolerance"] for endpoint in endpoints}
    return {
        "hits": sum(result["hit"] for result in results),
        "endpoints": len(results),
        "mae": mean_or_none([result["terminal_error"] for result in results]),
        "readouts_mean": mean_or_none(readouts),
        "already_met": sum(result["already_met"] for result in results),
        "hits_not_already_met": sum(result["hit"] and not result["already_met"] for result in results),
        "clipped": sum(bool(endpoint.get("clipped")) for endpoint in endpoints),
        "diverged": sum(bool(endpoint.get("diverged")) for endpoint in endpoints),
        "tolerance": tolerances.pop() if len(tolerances) == 1 else None,
    }


def preservation(kl: Mapping[int, Vector]) -> dict[str, Any]:
    """Divergences per seed -> their distribution, and the seeds that pass by mean and on every prompt."""
    values = [value for row in kl.values() for value in row]
    seed_ids = [seed for seed, row in kl.items() for _ in row]
    result = preservation_summary(values, seed_ids)
    names = ("n", "mean", "median", "p95", "max", "seed_mean_passes", "every_prompt_passes")
    return {name: result[name] for name in names}


def reuse(seeds: Sequence[tuple[Vector, Vector, Vector | None, Vector | None]]) -> dict[str, Any]:
    """(source, target, refit or None, frozen or None) per seed -> mean and sd of the recovery; gaps of zero counted."""
    result: dict[str, Any] = {}
    gaps = 0
    for name, column in (("refit", 2), ("frozen", 3)):
        values = [mcqa_recovery(seed[0], seed[1], seed[column]) for seed in seeds if seed[column] is not None]
        defined = [value for value in values if not math.isnan(value)]
        gaps = max(gaps, len(values) - len(defined))
        result |= {f"{name}_mean": mean_or_none(defined), f"{name}_sd": deviation_or_none(defined)}
    return result | {"no_gap": gaps}
