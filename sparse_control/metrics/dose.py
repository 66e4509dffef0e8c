"""Axis 3, dose response: whether progress towards the target is ordered by dose (source document, 03)."""

import math
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, real_array
from sparse_control.metrics.sums import distance, finite

ORDERED = 0.95  # ordered at or above; at or below the negative the order is reversed
CONSTANT_TOLERANCE = 1e-12  # a curve whose range is within this share of max(1, |value|) is rounding noise


def progress(source: Any, target: Any, patched: Any) -> float:
    """Share of the way from source to target: `<patched - source, target - source> / ||target - source||^2`.

    Args:
        source: (N,) readouts on the source inputs, in logits.
        target: (N,) readouts on the target inputs.
        patched: (N,) readouts under the patch at one dose.

    Returns:
        0 at the source, 1 at the target; nan where source and target coincide.

    Raises:
        ValueError: names the argument that is empty, non-numeric, non-finite, not flat or of another length, or
            readouts too far apart for float64.
    """
    source, target, patched = (
        real_array(name, values) for name, values in (("source", source), ("target", target), ("patched", patched))
    )
    equal_lengths(source=source, target=target, patched=patched)
    scale = distance(target=target, source=source)
    distance(patched=patched, source=source)
    if scale == 0:
        return math.nan
    # scaled, so that squares neither overflow nor vanish
    with np.errstate(over="ignore", invalid="ignore"):
        gap, moved = (target - source) / scale, (patched - source) / scale
    return finite("source and patched", float(moved @ gap) / float(gap @ gap))


def signed_spearman(doses: Any, progress: Any) -> float:
    """Spearman correlation of progress against dose, its sign kept; ties take the average rank.

    Args:
        doses: (G,) doses.
        progress: (G,) progress at each dose.

    Returns:
        rho in [-1, 1]; nan where either side is constant (progress: up to rounding), a single dose included.
        Ordered when >= 0.95; <= -0.95 is reported apart and never counts as ordered.

    Raises:
        ValueError: names the argument that is empty, non-numeric, non-finite, not flat or of another length.
    """
    doses, progress = real_array("doses", doses), real_array("progress", progress)
    equal_lengths(doses=doses, progress=progress)
    if doses.min() == doses.max() or _is_constant(progress):
        return math.nan
    x, y = _double_ranks(doses), _double_ranks(progress)
    rho = float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))
    return min(1.0, max(-1.0, rho))


def _is_constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values / 2) <= CONSTANT_TOLERANCE * max(1.0, np.abs(values).max()) / 2)  # halves cannot overflow


def _double_ranks(values: np.ndarray) -> np.ndarray:
    """Twice the average ranks, less their mean: whole numbers, so that an ordered curve is exactly +-1."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (2 * np.cumsum(counts) - counts - len(values)).astype(np.float64)[inverse]
