"""Metrics of transported states. ISS is the first; seed stability is reported for every one (source document, 9)."""

from collections.abc import Callable, Sequence

import numpy as np

from sparse_control.iss.score import internal_state_stability

# (z (N, D), facts, relations, families, lam_rel, model width) -> one number over the fact set
Metric = Callable[[np.ndarray, Sequence[str], Sequence[str], Sequence[str], float, int], float]


def mean_iss(
    z: np.ndarray,
    facts: Sequence[str],
    relations: Sequence[str],
    families: Sequence[str],
    lam_rel: float,
    model_width: int,
) -> float:
    """ISS averaged over the facts that have one; NaN where none has."""
    table = internal_state_stability(z, facts, relations, families, lam_rel=lam_rel, model_width=model_width)
    return float(table.iss.mean())


TRANSPORTED_STATE_METRICS: dict[str, Metric] = {"ISS": mean_iss}
