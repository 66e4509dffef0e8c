"""The baseline gate: a pair the unpatched model does not tell apart is dropped and counted."""

from collections.abc import Sequence

import numpy as np


def kept_pairs(source: Sequence[float], target: Sequence[float], minimum_gap: float) -> list[int]:
    """Indices of the pairs whose gap `y_tar - y_src` is at least `minimum_gap`, in order.

    Args:
        source: (N,) unpatched readouts on the source inputs, in logits.
        target: (N,) on the target inputs.
        minimum_gap: g_min, in logits.
    """
    gap = np.asarray(target, dtype=np.float64) - np.asarray(source, dtype=np.float64)
    return [int(index) for index in np.flatnonzero(gap >= minimum_gap)]
