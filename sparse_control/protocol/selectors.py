"""Which sites, and how strongly: selectors and controls over effect columns. numpy alone, float64.

The source document names Driver-OMP and Coverage-Driver without defining them; the definitions are this project's and
are stated as such in the paper. The others are controls at the same number of sites.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear

from sparse_control.arguments import equal_lengths, real_array, real_matrix, real_number, whole_number

RIDGE = 1e-6  # of each column's squared norm
MINIMUM_GAIN = 1e-3  # of ||target||^2
MAXIMUM_CONDITION = 1e6
TIE = 1e-12  # coverage totals closer than this are equal
ORDINARY = 300  # powers of two up to which squares and their sums are far from the limits of float64


@dataclass(frozen=True)
class Selection:
    """What a selector chose.

    Attributes:
        support: column indices, in the order they were chosen.
        strengths: one per column of `support`.
        path: after each choice, R^2 of the fit (`driver_omp`, `driver_omp_remeasured`), the coverage F
            (`coverage_driver`), or R^2 of the sites so far at their best common strength (`top_k`, `chosen_sites`).
        stop_reason: `k`, `gain`, `condition` or `candidates`.
        predicted: (N,) effect the selection predicts if effects add up.
    """

    support: tuple[int, ...]
    strengths: tuple[float, ...]
    path: tuple[float, ...]
    stop_reason: str
    predicted: tuple[float, ...]


def _check(effects: Any, target: Any, k: Any) -> tuple[np.ndarray, np.ndarray, int]:
    effects, target = real_matrix("effects", effects), real_array("target", target)
    equal_lengths(effects=effects, target=target)
    return effects, target, whole_number("k", k, 1, effects.shape[1])


@dataclass(frozen=True)
class _Scale:
    """Powers of two that effects and target were divided by: 0 and 0 unless squares would leave float64."""

    effects: int
    target: int

    def strengths(self, scaled: Any) -> np.ndarray:
        """Strengths of the effects as they were given, from those of the scaled ones."""
        return _times(scaled, self.target - self.effects)

    def bound(self, max_strength: float | None) -> float | None:
        """A bound on scaled strengths.

        Raises:
            ValueError: it is 0 in float64.
        """
        if max_strength is None:
            return None
        bound = float(_times(max_strength, self.effects - self.target))
        if bound == 0:
            raise ValueError(f"max_strength {max_strength!r} is out of proportion to effects and target")
        return bound


def _times(values: Any, power: int) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.asarray(values, dtype=np.float64), power)


def _power(array: np.ndarray) -> int:
    power = int(np.frexp(np.abs(array).max())[1])  # of zeros it is 0
    return power if abs(power) > ORDINARY else 0


def _scaled(effects: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, _Scale]:
    """Effects and target divided by powers of two; ordinary ones as they are, bit for bit."""
    scale = _Scale(_power(effects), _power(target))
    if scale.effects:
        effects = _times(effects, -scale.effects)
    if scale.target:
        target = _times(target, -scale.target)
    return effects, target, scale


def _selection(
    effects: np.ndarray, support: list[int], strengths: Any, path: list[float], reason: str, scale: _Scale
) -> Selection:
    """The selection from scaled effects and their strengths."""
    strengths = np.asarray(strengths, dtype=np.float64)
    predicted = _times(effects[:, support] @ strengths, scale.target)
    return _checked(support, scale.strengths(strengths), path, reason, predicted)


def _checked(
    support: list[int], strengths: np.ndarray, path: list[float], reason: str, predicted: np.ndarray
) -> Selection:
    if not (np.isfinite(strengths).all() and np.isfinite(predicted).all()):
        raise ValueError("effects are out of proportion to target: strengths or predicted effects are beyond float64")
    return Selection(
        support=tuple(support),
        strengths=tuple(strengths.tolist()),
        path=tuple(path),
        stop_reason=reason,
        predicted=tuple(predicted.tolist()),
    )


def fit_strengths(
    columns: np.ndarray, target: np.ndarray, max_strength: float | None = None, start: np.ndarray | None = None
) -> np.ndarray:
    """Ridge-stabilised least squares `columns @ beta ~ target`, optionally with `|start + beta| <= max_strength`.

    The ridge is 1e-6 of each column's own squared norm, so that rescaling a column only rescales its strength.

    Args:
        columns: (N, k) float64, no zero column.
        target: (N,).
        max_strength: the bound; None: unbounded.
        start: (k,) strengths that `beta` is added to; None: zeros.

    Returns:
        (k,).
    """
    norms = np.linalg.norm(columns, axis=0)
    unit = np.vstack([columns / norms, np.sqrt(RIDGE) * np.eye(columns.shape[1])])  # (N + k, k)
    padded = np.concatenate([target, np.zeros(columns.shape[1])])
    scaled = np.linalg.lstsq(unit, padded, rcond=None)[0]
    if max_strength is None:
        return scaled / norms
    start = np.zeros(columns.shape[1]) if start is None else start
    low, high = (-max_strength - start) * norms, (max_strength - start) * norms
    if np.any((scaled < low) | (scaled > high)):
        scaled = np.clip(lsq_linear(unit, padded, bounds=(low, high), method="bvls").x, low, high)
    return np.clip(scaled / norms, -max_strength - start, max_strength - start)


def _limits(target: np.ndarray, min_effect: Any, max_strength: Any) -> tuple[float, float | None]:
    min_effect = real_number("min_effect", min_effect)
    if not 0 <= min_effect <= 1:
        raise ValueError(f"min_effect must be in 0..1, got {min_effect!r}")
    if not target.any():
        raise ValueError("target is all zero: there is nothing to fit")
    return min_effect, _bound(max_strength)


def _bound(max_strength: Any) -> float | None:
    if max_strength is None:
        return None
    max_strength = real_number("max_strength", max_strength)
    if max_strength <= 0:
        raise ValueError(f"max_strength must be positive, got {max_strength!r}")
    return max_strength


def _candidates(effects: np.ndarray, min_effect: float) -> np.ndarray:
    norms = np.linalg.norm(effects, axis=0)  # (S,)
    return (norms > 0) & (norms >= min_effect * norms.max())


def _unit(columns: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(columns, axis=0)
    return columns / np.where(norms > 0, norms, 1.0)


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
    effects, target, k = _check(effects, target, k)
    min_effect, max_strength = _limits(target, min_effect, max_strength)
    effects, target, scale = _scaled(effects, target)
    max_strength = scale.bound(max_strength)
    total = float(target @ target)
    candidate = _candidates(effects, min_effect)
    unit = _unit(effects)
    support: list[int] = []
    strengths = np.zeros(0)
    path: list[float] = []
    residual, reason = target, "k"
    while len(support) < k:
        if not candidate.any():
            reason = "candidates"
            break
        best = int(np.argmax(np.where(candidate, np.abs(unit.T @ residual), -1.0)))
        trial = [*support, best]
        if np.linalg.cond(unit[:, trial]) > MAXIMUM_CONDITION:
            reason = "condition"
            break
        fitted = fit_strengths(effects[:, trial], target, max_strength)
        left = target - effects[:, trial] @ fitted
        if residual @ residual - left @ left < MINIMUM_GAIN * total:
            reason = "gain"
            break
        support, strengths, residual = trial, fitted, left
        candidate[best] = False
        path.append(1.0 - float(residual @ residual) / total)
    return _selection(effects, support, strengths, path, reason, scale)


Measure = Callable[[tuple[int, ...], tuple[float, ...], Sequence[int]], tuple[np.ndarray, np.ndarray]]


def driver_omp_remeasured(
    measure: Measure,
    effects: Any,
    target: Any,
    k: int,
    min_effect: float = 0.0,
    max_strength: float | None = None,
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
    effects, target, k = _check(effects, target, k)
    min_effect, max_strength = _limits(target, min_effect, max_strength)
    effects, target, scale = _scaled(effects, target)
    max_strength = scale.bound(max_strength)
    total = float(target @ target)
    candidate = _candidates(effects, min_effect)
    support: list[int] = []
    strengths = np.zeros(0)
    path: list[float] = []
    columns, joint, predicted, reason = effects, np.zeros(len(target)), np.zeros(len(target)), "k"
    while len(support) < k:
        if not candidate.any():
            reason = "candidates"
            break
        residual, unit = target - joint, _unit(columns)
        best = int(np.argmax(np.where(candidate, np.abs(unit.T @ residual), -1.0)))
        if not np.linalg.norm(columns[:, best]) > 0:
            reason = "candidates"  # beside the chosen sites no other one has an effect
            break
        trial, start = [*support, best], np.append(strengths, 0.0)
        live = np.linalg.norm(columns[:, trial], axis=0) > 0
        if np.linalg.cond(unit[:, trial][:, live]) > MAXIMUM_CONDITION:
            reason = "condition"
            break
        step = np.zeros(len(trial))
        step[live] = fit_strengths(columns[:, trial][:, live], residual, max_strength, start[live])
        moved = start + step
        wanted = [*trial, *(site for site in np.flatnonzero(candidate).tolist() if site != best)]
        reached, again = measure(tuple(trial), tuple(scale.strengths(moved).tolist()), wanted if len(trial) < k else [])
        if not (np.isfinite(reached).all() and np.isfinite(again).all()):
            raise ValueError(f"measure gave effects that are not finite for columns {trial}")
        if scale.effects or scale.target:
            reached, again = _times(reached, -scale.target), _times(again, -scale.effects)
        left = target - reached
        if residual @ residual - left @ left < MINIMUM_GAIN * total:
            reason = "gain"
            break
        support, strengths, predicted, joint = trial, moved, joint + columns[:, trial] @ step, reached
        candidate[best] = False
        path.append(1.0 - float(left @ left) / total)
        columns = np.zeros_like(effects)
        if len(trial) < k:
            columns[:, wanted] = again
    return _checked(support, scale.strengths(strengths), path, reason, _times(predicted, scale.target))


def common_strength(columns: np.ndarray, target: np.ndarray, max_strength: float | None = None) -> float:
    """The one strength for all sites, `<t, E 1> / ||E 1||^2`, within the bound; 0 where the effects cancel.

    Args:
        columns: (N, k).
        target: (N,).
        max_strength: bound on its size; None: unbounded.
    """
    joint = columns.sum(axis=1)
    square = float(joint @ joint)
    strength = float(target @ joint) / square if square > 0 else 0.0
    return strength if max_strength is None else min(max(strength, -max_strength), max_strength)


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
    effects, target, k = _check(effects, target, k)
    if np.any(target == 0):
        raise ValueError(f"target[{int(np.argmax(target == 0))}] is 0: a pair without a gap cannot be covered")
    with np.errstate(over="ignore"):
        shares = np.clip(effects / target[:, None], 0.0, 1.0)  # (N, S)
    totals = shares.mean(axis=0)
    covered = np.zeros(len(target))
    free = np.ones(effects.shape[1], dtype=bool)
    support: list[int] = []
    path: list[float] = []
    for _ in range(k):
        value = np.where(free, np.minimum(1.0, covered[:, None] + shares).mean(axis=0), -1.0)
        tied = np.flatnonzero(value >= value.max() - TIE)
        best = int(tied[np.flatnonzero(totals[tied] >= totals[tied].max() - TIE)[0]])
        support.append(best)
        free[best] = False
        covered = np.minimum(1.0, covered + shares[:, best])
        path.append(float(covered.mean()))
    effects, target, scale = _scaled(effects, target)
    strength = common_strength(effects[:, support], target)
    return _selection(effects, support, [strength] * k, path, "k", scale)


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
    try:
        support = [operator.index(index) for index in support]
    except TypeError as error:
        raise ValueError(f"support must hold indices, each once, got {support!r}") from error
    effects, target, k = _check(effects, target, len(support))
    if len(set(support)) != k or not all(0 <= index < effects.shape[1] for index in support):
        raise ValueError(f"support must hold indices in 0..{effects.shape[1] - 1}, each once, got {support}")
    if not target.any():
        raise ValueError("target is all zero: there is nothing to fit")
    effects, target, scale = _scaled(effects, target)
    max_strength = scale.bound(_bound(max_strength))
    total = float(target @ target)
    path = []
    for count in range(1, k + 1):
        columns = effects[:, support[:count]]
        left = target - columns.sum(axis=1) * common_strength(columns, target, max_strength)
        path.append(1.0 - float(left @ left) / total)
    strength = common_strength(effects[:, support], target, max_strength)
    return _selection(effects, support, [strength] * k, path, "k", scale)


def top_k(effects: Any, target: Any, k: int, max_strength: float | None = None) -> Selection:
    """The k sites with the largest mean effect (ties: lowest index), at their common strength.

    Args:
        effects: (N, S) as in `driver_omp`, signed so that the target's direction is positive.
        target, k: as in `driver_omp`.
        max_strength: bound on |strength|; None: unbounded.

    Raises:
        ValueError: as `chosen_sites`, or `k` outside 1..S.
    """
    checked, goal, k = _check(effects, target, k)
    means = (_scaled(checked, goal)[0] * np.sign(goal)[:, None]).mean(axis=0)
    return chosen_sites(effects, target, np.argsort(-means, kind="stable")[:k], max_strength)


def random_supports(
    effects: Any, target: Any, k: int, draws: int, generator: np.random.Generator, max_strength: float | None = None
) -> tuple[Selection, ...]:
    """`draws` supports of k sites drawn without replacement, each at its own common strength.

    Args:
        effects, target, k: as in `driver_omp`.
        draws: how many.
        generator: draws them.
        max_strength: bound on |strength|; None: unbounded.

    Raises:
        ValueError: as `chosen_sites`, `k` outside 1..S, or `draws` below 1.
    """
    effects, target, k = _check(effects, target, k)
    draws = whole_number("draws", draws, 1)
    supports = [np.sort(generator.choice(effects.shape[1], size=k, replace=False)) for _ in range(draws)]
    return tuple(chosen_sites(effects, target, support, max_strength) for support in supports)
