"""Benchmark sampling uncertainty: a bootstrap over relations (source document, 18)."""

from collections.abc import Sequence
from numbers import Real

import numpy as np
from scipy.stats import bootstrap

from sparse_control.arguments import whole_number
from sparse_control.iss.score import encode_labels
from sparse_control.seeds import stream


def relation_bootstrap(
    values: Sequence[float],
    relations: Sequence[str],
    n_resamples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float | int | tuple[float | None, float | None]]:
    """Confidence intervals of the mean over facts, resampling whole relations with replacement.

    Args:
        values: one value per fact.
        relations: its relation.

    Returns:
        mean; percentile (lo, hi) and bca (lo, hi), each (None, None) where fewer than two relations, or a
        degenerate distribution, leave it undefined; n_relations.

    Raises:
        ValueError: empty, unequal lengths, non-finite values, n_resamples < 1, or confidence outside (0, 1).
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values must be a non-empty sequence of numbers, got shape {values.shape}")
    if len(relations) != len(values):
        raise ValueError(f"relations must have one label per value: {len(relations)} labels, {len(values)} values")
    if not np.isfinite(values).all():
        raise ValueError(f"values must be finite, got {values[~np.isfinite(values)][0]}")
    n_resamples = whole_number("n_resamples", n_resamples, 1)
    if not (isinstance(confidence, Real) and 0 < confidence < 1):
        raise ValueError(f"confidence must be in (0, 1), got {confidence!r}")
    labels, names = encode_labels("relations", relations)
    sums = np.bincount(labels, weights=values)
    counts = np.bincount(labels).astype(np.float64)

    def mean(sums: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    intervals = {}
    for name, method in (("percentile", "percentile"), ("bca", "BCa")):
        low = high = np.nan
        if len(names) > 1 and len(np.unique(sums / counts)) > 1:
            interval = bootstrap(
                (sums, counts),
                mean,
                n_resamples=n_resamples,
                paired=True,
                vectorized=True,
                confidence_level=confidence,
                method=method,
                rng=stream(seed, "iss", "benchmark", "bootstrap"),
            ).confidence_interval
            low, high = interval.low, interval.high
        intervals[name] = tuple(float(edge) if np.isfinite(edge) else None for edge in (low, high))
    return {"mean": float(values.mean()), **intervals, "n_relations": len(names)}
