"""Benchmark sampling uncertainty: a bootstrap over relations (source document, 18)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, real_array, real_number, whole_number
from sparse_control.iss.labelled import label_codes
from sparse_control.seeds import stream

MOST_RESAMPLES = 10**6  # each is a row of one number per relation
# Resampled means this close to the mean, relative to the largest value, differ from it by rounding alone.
ROUNDING = 1e-12


def relation_bootstrap(
    values: Any,
    relations: Sequence[int | str],
    n_resamples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float | int | tuple[float | None, float | None]]:
    """Confidence intervals of the mean over facts, resampling whole relations with replacement.

    With few relations many resamples have the very mean of the sample, such as one that draws each relation once.
    Which side of it rounding puts them on decides the bias correction of BCa, so they are set equal to it, and ties
    count half: bounds follow the values and not the order of a sum.

    Args:
        values: one value per fact.
        relations: its relation, a string or a whole number.
        n_resamples: 1..10^6.
        seed: of the resampling.
        confidence: in (0, 1).

    Returns:
        mean; percentile (lo, hi) and bca (lo, hi), each (None, None) where fewer than two relations, or a
        degenerate distribution, leave it undefined; n_relations.

    Raises:
        ValueError: names the argument: empty, unequal lengths, non-finite values or values whose sum is beyond
            float64, n_resamples out of range, or confidence outside (0, 1).
    """
    from scipy.stats import bootstrap  # takes longer to import than most commands take

    values, (labels, names) = real_array("values", values), label_codes("relations", relations)
    equal_lengths(values=values, relations=labels)
    n_resamples = whole_number("n_resamples", n_resamples, 1, MOST_RESAMPLES)
    level = real_number("confidence", confidence)
    if not 0 < level < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    generators = {method: stream(seed, "iss", "benchmark", "bootstrap") for method in ("percentile", "BCa")}
    with np.errstate(over="ignore"):
        if not np.isfinite(np.abs(values).sum()):
            raise ValueError(f"values must have a sum within float64, their largest is {float(np.abs(values).max())!r}")
    sums = np.bincount(labels, weights=values)
    counts = np.bincount(labels).astype(np.float64)
    mean, rounding = float(values.mean()), ROUNDING * float(np.abs(values).max())

    def resampled_mean(sums: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
        means = sums.sum(axis=axis) / counts.sum(axis=axis)
        return np.where(np.abs(means - mean) <= rounding, mean, means)

    intervals = {}
    for method, generator in generators.items():
        low = high = np.nan
        if np.ptp(sums / counts) > rounding:
            low, high = bootstrap(
                (sums, counts), resampled_mean, n_resamples=n_resamples, paired=True, vectorized=True,
                confidence_level=level, method=method, rng=generator,
            ).confidence_interval  # fmt: skip
        intervals[method.lower()] = tuple(float(edge) if np.isfinite(edge) else None for edge in (low, high))
    return {"mean": mean, **intervals, "n_relations": len(names)}
