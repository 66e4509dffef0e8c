"""Progress at equal cost: how far a patch moves its target while it spends a given budget of off-target divergence."""

import math
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, real_array, real_number
from sparse_control.metrics.sums import finite

BUDGETS = (0.01, 0.1, 1.0)  # nats, mean off-target KL


def progress_at_budget(doses: Any, progress: Any, kl: Any, budget: float) -> float:
    """The largest progress at a positive dose whose mean off-target KL is within a budget.

    Between doses both curves are taken as straight lines. Below the smallest positive dose nothing is interpolated, as
    a divergence grows with the square of a small dose: where that dose is above the budget there is no value. Negative
    doses are no part of it, as there the patch is another one, with its sign turned.

    Args:
        doses: (G,) in any order, each once, at least one positive.
        progress: (G,) share of the way from source to target at each dose.
        kl: (G,) mean `KL(unpatched || patched)` at each dose, in nats; inf is above every budget.
        budget: nats, positive.

    Returns:
        the progress; nan where the smallest positive dose is above the budget.

    Raises:
        ValueError: names the argument that is empty, non-numeric, not finite (but kl), not flat or of another length,
            doses that repeat or without a positive one, a negative divergence, or a budget that is not positive.
    """
    doses, progress = real_array("doses", doses), real_array("progress", progress)
    kl, budget = real_array("kl", kl, allowed=(math.inf,)), real_number("budget", budget)
    equal_lengths(doses=doses, progress=progress, kl=kl)
    if budget <= 0:
        raise ValueError(f"budget must be positive, got {budget!r}")
    if kl.min() < 0:
        raise ValueError(f"kl holds divergences, which cannot be negative, got {float(kl.min())!r}")
    order = np.argsort(doses)
    if (np.diff(doses[order]) == 0).any() or doses.max() <= 0:
        raise ValueError(f"doses must differ from each other and one be positive, got {doses.tolist()}")
    order = order[doses[order] > 0]
    curve = list(zip(progress[order].tolist(), kl[order].tolist(), strict=True))
    if curve[0][1] > budget:
        return math.nan
    reached = [moved for moved, spent in curve if spent <= budget]
    for pair in zip(curve, curve[1:], strict=False):
        (moved, spent), (beyond, above) = sorted(pair, key=lambda point: point[1])
        if spent <= budget < above:
            reached.append(moved + (budget - spent) / (above - spent) * (beyond - moved))
    return finite("progress", max(reached))
