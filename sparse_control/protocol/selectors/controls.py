"""Controls at the same number of sites: supports that are given, largest in the mean, or drawn at random."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparse_control.arguments import elements, instance, whole_number
from sparse_control.protocol.selectors.selection import Problem, Selection
from sparse_control.protocol.selectors.strengths import common_strength

MOST_DRAWS = 10_000


def chosen_sites(effects: Any, target: Any, support: Sequence[int], max_strength: float | None = None) -> Selection:
    """A support that is given, at its common strength: random sites, or all of them.

    Args:
        effects: (N, S) as in `driver_omp`.
        target: (N,) wanted change.
        support: column indices, each once.
        max_strength: bound on |strength|; None: unbounded.

    Raises:
        ValueError: names the argument: empty, non-finite, wrong shape, an index twice or outside 0..S-1, an all-zero
            target, a `max_strength` that is not positive.
    """
    problem = Problem.of(effects, target, 1)
    effects, target, last = problem.effects, problem.target, problem.effects.shape[1] - 1
    support = [whole_number(f"support[{i}]", index, 0, last) for i, index in enumerate(elements("support", support))]
    if not support or len(set(support)) != len(support):
        raise ValueError(f"support must hold one index or more, each once, got {support}")
    problem = replace(problem, k=len(support))
    problem.check_target()
    bound = problem.scaled_bound(max_strength)
    total = float(target @ target)
    path = []
    for count in range(1, problem.k + 1):
        columns = effects[:, support[:count]]
        strength = common_strength(columns, target, bound)
        left = target - columns.sum(axis=1) * strength
        path.append(1.0 - float(left @ left) / total)
    return problem.selection(support, [strength] * problem.k, path, "k")


def top_k(effects: Any, target: Any, k: int, max_strength: float | None = None) -> Selection:
    """The k sites with the largest mean effect (ties: lowest index), at their common strength.

    Args:
        effects: (N, S) as in `driver_omp`, signed so that the target's direction is positive.
        target, k: as in `driver_omp`.
        max_strength: bound on |strength|; None: unbounded.

    Raises:
        ValueError: as `chosen_sites`, or `k` outside 1..S.
    """
    problem = Problem.of(effects, target, k)
    means = (problem.effects * np.sign(problem.target)[:, None]).mean(axis=0)
    return chosen_sites(effects, target, np.argsort(-means, kind="stable")[: problem.k], max_strength)


def random_supports(
    effects: Any, target: Any, k: int, draws: int, generator: np.random.Generator, max_strength: float | None = None
) -> tuple[Selection, ...]:
    """`draws` supports of k sites drawn without replacement, each at its own common strength.

    Args:
        effects, target, k: as in `driver_omp`.
        draws: how many, 1..10,000.
        generator: draws them.
        max_strength: bound on |strength|; None: unbounded.

    Raises:
        ValueError: as `chosen_sites`, `k` outside 1..S, `draws` outside 1..10,000, or no numpy generator.
    """
    problem = Problem.of(effects, target, k)
    draws = whole_number("draws", draws, 1, MOST_DRAWS)
    instance("generator", generator, np.random.Generator)
    n_sites = problem.effects.shape[1]
    supports = [np.sort(generator.choice(n_sites, size=problem.k, replace=False)) for _ in range(draws)]
    return tuple(chosen_sites(effects, target, support, max_strength) for support in supports)
