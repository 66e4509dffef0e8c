"""Coverage-Driver(k): greedy on how much of each pair's gap the sites cover together."""

from typing import Any

import numpy as np

from sparse_control.protocol.selectors.selection import Problem, Selection, times_power_of_two
from sparse_control.protocol.selectors.strengths import common_strength

TIE = 1e-12  # coverage totals closer than this are equal


def coverage_driver(effects: Any, target: Any, k: int) -> Selection:
    """Coverage-Driver(k): greedy on how much of each pair's gap the sites cover together.

    `F(S) = mean_i min(1, sum_{s in S} clip(e_si / t_i, 0, 1))` is monotone submodular, so the greedy support
    reaches at least 1 - 1/e of the best. Ties go to the larger total (the site's mean clipped share), then to the
    lower index. All sites get the common strength `<t, E_S 1> / ||E_S 1||^2`.

    Args:
        effects: (N, S) as in `driver_omp`.
        target: (N,) wanted change; no zero.
        k: number of sites, 1..S.

    Raises:
        ValueError: names the argument: empty, non-finite, wrong shape, `k` outside 1..S, a zero `target[i]`.
    """
    problem = Problem.of(effects, target, k)
    effects, target = problem.effects, problem.target
    if np.any(target == 0):
        raise ValueError(f"target[{int(np.argmax(target == 0))}] is 0: a pair without a gap cannot be covered")
    with np.errstate(over="ignore"):
        ratios = effects / target[:, None]
    shares = np.clip(times_power_of_two(ratios, problem.effects_power - problem.target_power), 0.0, 1.0)  # (N, S)
    totals = shares.mean(axis=0)
    covered = np.zeros(len(target))
    free = np.ones(effects.shape[1], dtype=bool)
    support: list[int] = []
    path: list[float] = []
    for _ in range(problem.k):
        value = np.where(free, np.minimum(1.0, covered[:, None] + shares).mean(axis=0), -1.0)
        tied = np.flatnonzero(value >= value.max() - TIE)
        best = int(tied[np.flatnonzero(totals[tied] >= totals[tied].max() - TIE)[0]])
        support.append(best)
        free[best] = False
        covered = np.minimum(1.0, covered + shares[:, best])
        path.append(float(covered.mean()))
    strength = common_strength(effects[:, support], target)
    return problem.selection(support, [strength] * problem.k, path, "k")
