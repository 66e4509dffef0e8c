"""Driver-OMP(k): orthogonal matching pursuit on effect columns, and its variant that measures effects again."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparse_control.arguments import real_number
from sparse_control.protocol.selectors.selection import Problem, Selection, times_power_of_two
from sparse_control.protocol.selectors.strengths import fit_strengths

MINIMUM_GAIN = 1e-3  # of ||target||^2
MAXIMUM_CONDITION = 1e6

Measure = Callable[[tuple[int, ...], tuple[float, ...], Sequence[int]], tuple[np.ndarray, np.ndarray]]


def driver_omp(
    effects: Any, target: Any, k: int, min_effect: float = 0.0, max_strength: float | None = None
) -> Selection:
    """Driver-OMP(k): orthogonal matching pursuit on unit-normalised effect columns.

    Each round takes the column most correlated with the residual (ties: lowest index) and refits all strengths on
    the raw columns. It stops at `k` columns, when a column would raise R^2 by less than 1e-3 (the column is left
    out), or when the unit-normalised columns would have a condition number above 1e6.

    Args:
        effects: (N, S) change of the readout of pair i when site s alone is patched at strength 1, in logits.
        target: (N,) wanted change, `y_tar - y_src`.
        k: largest number of sites, 1..S.
        min_effect: columns whose norm is below this share of the strongest are no candidates, 0..1.
        max_strength: bound on |strength|; None: unbounded.

    Returns:
        the selection; its support is empty where no column has any effect.

    Raises:
        ValueError: names the argument: empty, non-finite, wrong shape, `k` outside 1..S, an all-zero target,
            `min_effect` outside 0..1, a `max_strength` that is not positive, effects or a bound so large or small
            beside the target that strengths are beyond float64.
    """
    problem, candidate, bound = _checked(effects, target, k, min_effect, max_strength)
    effects, target = problem.effects, problem.target
    unit = _unit(effects)
    support: list[int] = []
    strengths = np.zeros(0)
    path: list[float] = []
    residual, reason = target, "k"
    while len(support) < problem.k:
        if not candidate.any():
            reason = "candidates"
            break
        best = _most_correlated(unit, residual, candidate)
        trial = [*support, best]
        if np.linalg.cond(unit[:, trial]) > MAXIMUM_CONDITION:
            reason = "condition"
            break
        fitted = fit_strengths(effects[:, trial], target, bound)
        left = target - effects[:, trial] @ fitted
        if residual @ residual - left @ left < MINIMUM_GAIN * float(target @ target):
            reason = "gain"
            break
        support, strengths, residual = trial, fitted, left
        candidate[best] = False
        path.append(1.0 - float(residual @ residual) / float(target @ target))
    return problem.selection(support, strengths, path, reason)


def driver_omp_remeasured(
    measure: Measure, effects: Any, target: Any, k: int, min_effect: float = 0.0, max_strength: float | None = None
) -> Selection:
    """Driver-OMP(k) with effects measured again after each choice, with the chosen sites patched at their strengths.

    Effects of patches do not add up, so each round starts from what the joint patch does: the residual is the target
    less the measured joint effect, a column is what one more unit at its site changes, and all strengths move by the
    least-squares step on the chosen columns. Where effects do add up this is `driver_omp`. Candidates are those of the
    first round; the stopping rules are those of `driver_omp`, on measured residuals.

    Args:
        measure: (support, strengths, wanted) -> joint effect (N,) of the support at its strengths, and columns
            (N, W): the further change when each wanted site gets one unit more; no site wanted gives (N, 0).
        effects: (N, S) as in `driver_omp`: the columns of the first round.
        target, k, min_effect, max_strength: as in `driver_omp`.

    Returns:
        the selection; `predicted` is what the last round's columns predict.

    Raises:
        ValueError: as `driver_omp`, or a measured effect is not finite.
    """
    problem, candidate, bound = _checked(effects, target, k, min_effect, max_strength)
    target, columns = problem.target, problem.effects
    joint = predicted = np.zeros(len(target))
    support: list[int] = []
    strengths = np.zeros(0)
    path: list[float] = []
    reason = "k"
    while len(support) < problem.k:
        residual, unit = target - joint, _unit(columns)
        best = _most_correlated(unit, residual, candidate)
        if not candidate.any() or not _alive(columns)[best]:  # beside the chosen sites no other one has an effect
            reason = "candidates"
            break
        trial, start = [*support, best], np.append(strengths, 0.0)
        live = _alive(columns[:, trial])
        if np.linalg.cond(unit[:, trial][:, live]) > MAXIMUM_CONDITION:
            reason = "condition"
            break
        step = np.zeros(len(trial))
        step[live] = fit_strengths(columns[:, trial][:, live], residual, bound, start[live])
        reached, again = _measured(measure, problem, trial, start + step, candidate)
        left = target - reached
        if residual @ residual - left @ left < MINIMUM_GAIN * float(target @ target):
            reason = "gain"
            break
        support, strengths, predicted, joint = trial, start + step, joint + columns[:, trial] @ step, reached
        candidate[best] = False
        path.append(1.0 - float(left @ left) / float(target @ target))
        columns = again
    return problem.selection(support, strengths, path, reason, predicted)


def _checked(
    effects: Any, target: Any, k: Any, min_effect: Any, max_strength: Any
) -> tuple[Problem, np.ndarray, float | None]:
    """The problem, which columns are candidates (S,), and the bound on scaled strengths."""
    problem = Problem.of(effects, target, k)
    min_effect = real_number("min_effect", min_effect)
    if not 0 <= min_effect <= 1:
        raise ValueError(f"min_effect must be in 0..1, got {min_effect!r}")
    problem.check_target()
    norms = np.linalg.norm(problem.effects, axis=0)  # (S,)
    return problem, (norms > 0) & (norms >= min_effect * norms.max()), problem.scaled_bound(max_strength)


def _alive(columns: np.ndarray) -> np.ndarray:
    return np.linalg.norm(columns, axis=0) > 0


def _unit(columns: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(columns, axis=0)
    return columns / np.where(norms > 0, norms, 1.0)


def _most_correlated(unit: np.ndarray, residual: np.ndarray, candidate: np.ndarray) -> int:
    return int(np.argmax(np.where(candidate, np.abs(unit.T @ residual), -1.0)))


def _measured(
    measure: Measure, problem: Problem, trial: list[int], strengths: np.ndarray, candidate: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The joint effect (N,) of `trial` at scaled strengths, and the columns (N, S) beside it, 0 where not needed."""
    wanted: list[int] = []
    if len(trial) < problem.k:
        wanted = [*trial, *(site for site in np.flatnonzero(candidate).tolist() if site != trial[-1])]
    given = tuple(problem.given_strengths(strengths).tolist())
    reached, again = measure(tuple(trial), given, wanted)
    if not (np.isfinite(reached).all() and np.isfinite(again).all()):
        raise ValueError(f"measure gave effects that are not finite for columns {trial}")
    columns = np.zeros_like(problem.effects)
    columns[:, wanted] = times_power_of_two(again, -problem.effects_power)
    return times_power_of_two(reached, -problem.target_power), columns
