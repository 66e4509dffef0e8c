"""Axis 6, held-out reuse: how much of the gap is recovered on unseen prompts (source document, 06)."""

import math
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, real_array
from sparse_control.metrics.sums import finite, mean

GAP_ROUNDING = 1e-12  # a gap within this share of the mean magnitude is rounding, not a gap


def mcqa_recovery(source: Any, target: Any, patched: Any) -> float:
    """Signed recovery of the mean margin: `(mean patched - mean source) / (mean target - mean source)`.

    Not `1 - rel_tar`: means are compared, so errors of opposite sign cancel. There is no threshold.

    Args:
        source: (N,) margins of unseen prompts on the source inputs, in logits.
        target: (N,) margins on the target inputs.
        patched: (N,) margins on the source inputs under the reused patch.

    Returns:
        0 is no recovery, 1 the whole gap, more an overshoot, below 0 the wrong direction; nan without a gap.

    Raises:
        ValueError: names the argument that is empty, non-numeric, non-finite, not flat, of another length, or whose
            sum or difference is beyond float64.
    """
    source, target, patched = (
        real_array(name, values) for name, values in (("source", source), ("target", target), ("patched", patched))
    )
    equal_lengths(source=source, target=target, patched=patched)
    base = mean("source", source)
    gap = finite("source and target", mean("target", target) - base)
    if abs(gap) <= GAP_ROUNDING * max(mean("source", np.abs(source)), mean("target", np.abs(target))):
        return math.nan
    return finite("source and patched", (mean("patched", patched) - base) / gap)
