"""Axis 5, off-target preservation: how much unrelated outputs change (source document, 05)."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, labels, real_array
from sparse_control.metrics.sums import mean

DELTA = 0.001  # nats; passes at or below
ROUNDING = 1e-9  # a divergence cannot be negative; rounding may make it so by less than this
PERCENTILE = 95  # nearest rank


def kl_divergence(logits_p: Any, logits_q: Any) -> float:
    """`KL(p || q)` in nats of two distributions given by logits over the whole vocabulary.

    Args:
        logits_p: (V,) logits of the unpatched model; -inf is a token without mass.
        logits_q: (V,) logits of the patched model.

    Returns:
        the divergence, >= 0, from float64 log-softmax; a token without mass in p contributes 0, one with mass in p
        and none in q makes it inf.

    Raises:
        ValueError: names the argument that is empty, non-numeric, NaN, +inf, not flat, of another length, or
            without any mass.
    """
    return kl_divergences(logits_p, [logits_q])[0]


def kl_divergences(logits_p: Any, several: Iterable[Any]) -> list[float]:
    """`kl_divergence` of one p from each of several q; what p alone decides is computed once.

    Raises:
        ValueError: as `kl_divergence`.
    """
    p = _log_softmax("logits_p", logits_p)
    mass = p > -math.inf
    weights, kept = np.exp(p[mass]), p[mass]
    values = []
    for logits_q in several:
        q = _log_softmax("logits_q", logits_q)
        equal_lengths(logits_p=p, logits_q=q)
        q = q[mass]
        infinite = np.any(q == -math.inf)
        values.append(math.inf if infinite else max(0.0, float(np.sum(weights * (kept - q)))))
    return values


def _log_softmax(name: str, logits: Any) -> np.ndarray:
    array = real_array(name, logits, allowed=(-math.inf,))
    top = array.max()
    if top == -math.inf:
        raise ValueError(f"{name} must leave some token with mass, got only -inf")
    with np.errstate(over="ignore"):
        shifted = array - top
    return shifted - np.log(np.sum(np.exp(shifted)))


def preservation_summary(kl_values: Any, seed_ids: Any) -> dict[str, Any]:
    """Summarise prompt-seed divergences and count the seeds that pass under both rules.

    Args:
        kl_values: (N,) `KL(unpatched || patched)` in nats, one per prompt and seed; inf may stand among them.
        seed_ids: (N,) the seed of each value, whole numbers or strings.

    Returns:
        `n`, `n_seeds`, `mean`, `median`, `p95` (nearest rank), `max`, `seed_means` (seed -> mean),
        `seed_mean_passes` (seeds whose mean is <= 0.001) and `every_prompt_passes` (seeds without a prompt above).

    Raises:
        ValueError: names the argument that is empty, non-numeric, NaN, not flat or of another length, a divergence
            below -1e-9, divergences whose sum is beyond float64, or a seed that is neither a whole number nor a string.
    """
    values, seeds = real_array("kl_values", kl_values, allowed=(math.inf,)), labels("seed_ids", seed_ids)
    equal_lengths(kl_values=values, seed_ids=seeds)
    if values.min() < -ROUNDING:
        index = int(np.argmin(values))
        raise ValueError(f"kl_values[{index}] is a divergence and cannot be negative, got {float(values[index])!r}")
    values = np.maximum(values, 0.0)
    groups: dict[int | str, list[float]] = {}
    for seed, value in zip(seeds, values.tolist(), strict=True):
        groups.setdefault(seed, []).append(value)
    seed_means = {seed: mean("kl_values", np.array(group)) for seed, group in groups.items()}
    ordered = np.sort(values)
    return {
        "n": len(values),
        "n_seeds": len(groups),
        "mean": mean("kl_values", values),
        "median": float(np.median(ordered)),
        "p95": float(ordered[-(-PERCENTILE * len(ordered) // 100) - 1]),
        "max": float(ordered[-1]),
        "seed_means": seed_means,
        "seed_mean_passes": sum(value <= DELTA for value in seed_means.values()),
        "every_prompt_passes": sum(max(group) <= DELTA for group in groups.values()),
    }
