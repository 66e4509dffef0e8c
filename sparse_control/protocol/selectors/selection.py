"""What a selector is given, checked and brought into the range of float64, and what it chose."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, real_array, real_matrix, real_number, whole_number

ORDINARY = 300  # powers of two up to which squares and their sums are far from the limits of float64


@dataclass(frozen=True)
class Selection:
    """What a selector chose.

    Attributes:
        support: column indices, in the order they were chosen.
        strengths: one per column of `support`.
        path: after each choice, R^2 of the fit (`driver_omp`, `driver_omp_remeasured`), the coverage F
            (`coverage_driver`), or R^2 of the sites so far at their best common strength (`top_k`, `chosen_sites`); of
            a baseline R^2 of the whole.
        stop_reason: `k`, `gain`, `condition` or `candidates`; `grid` of a baseline.
        predicted: (N,) effect the selection predicts if effects add up; empty where it predicts none.
        directions: (site width,) per site of a baseline; None: the direction rule gives them.
        levels: as in `Intervention`.
    """

    support: tuple[int, ...]
    strengths: tuple[float, ...]
    path: tuple[float, ...]
    stop_reason: str
    predicted: tuple[float, ...]
    directions: tuple[np.ndarray, ...] | None = None
    levels: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """Effects and target of a selector, divided by powers of two where their squares would leave float64.

    Attributes:
        effects: (N, S); ordinary ones as they were given, bit for bit.
        target: (N,).
        k: sites wanted, 1..S.
        effects_power, target_power: of two, that they were divided by; 0 for ordinary ones.
    """

    effects: np.ndarray
    target: np.ndarray
    k: int
    effects_power: int
    target_power: int

    @classmethod
    def of(cls, effects: Any, target: Any, k: Any) -> "Problem":
        """The problem of unchecked arguments.

        Raises:
            ValueError: names the argument: empty, non-finite, not numeric, wrong shape, or `k` outside 1..S.
        """
        effects, target = real_matrix("effects", effects), real_array("target", target)
        equal_lengths(effects=effects, target=target)
        k = whole_number("k", k, 1, effects.shape[1])
        powers = _power(effects), _power(target)
        scaled = (times_power_of_two(array, -power) for array, power in zip((effects, target), powers, strict=True))
        return cls(*scaled, k, *powers)

    def check_target(self) -> None:
        """Refuse a target that is all zero."""
        if not self.target.any():
            raise ValueError("target is all zero: there is nothing to fit")

    def scaled_bound(self, max_strength: Any) -> float | None:
        """A bound on the strengths of the scaled effects; None: unbounded.

        Raises:
            ValueError: not a positive number, or 0 in float64 once it is scaled.
        """
        if max_strength is None:
            return None
        given = real_number("max_strength", max_strength)
        if given <= 0:
            raise ValueError(f"max_strength must be positive, got {given!r}")
        bound = float(times_power_of_two(given, self.effects_power - self.target_power))
        if bound == 0:
            raise ValueError(f"max_strength {given!r} is out of proportion to effects and target")
        return bound

    def given_strengths(self, scaled: Any) -> np.ndarray:
        """Strengths of the effects as they were given, from those of the scaled ones."""
        return times_power_of_two(scaled, self.target_power - self.effects_power)

    def selection(
        self, support: list[int], strengths: Any, path: list[float], reason: str, predicted: np.ndarray | None = None
    ) -> Selection:
        """The selection, from strengths of the scaled effects and the scaled effect they predict.

        Raises:
            ValueError: strengths or predicted effects beyond float64.
        """
        scaled = np.asarray(strengths, dtype=np.float64)
        predicted = self.effects[:, support] @ scaled if predicted is None else predicted
        strengths, predicted = self.given_strengths(scaled), times_power_of_two(predicted, self.target_power)
        if not (np.isfinite(strengths).all() and np.isfinite(predicted).all()):
            raise ValueError(
                "effects are out of proportion to target: strengths or predicted effects are beyond float64"
            )
        return Selection(
            support=tuple(support),
            strengths=tuple(strengths.tolist()),
            path=tuple(path),
            stop_reason=reason,
            predicted=tuple(predicted.tolist()),
        )


def times_power_of_two(values: Any, power: int) -> np.ndarray:
    """`values * 2**power`, exact within the range of float64; what is beyond is infinite or 0."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.asarray(values, dtype=np.float64), power)


def _power(array: np.ndarray) -> int:
    power = int(np.frexp(np.abs(array).max())[1])  # of zeros it is 0
    return power if abs(power) > ORDINARY else 0
