"""The feedback loop of axis 4: the measured error sets the next dose, with a fixed gain (source document, 04)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparse_control.arguments import elements, real_array, real_number, whole_number

DIVERGED = 10.0  # an error that many times the first one ends the loop


@dataclass(frozen=True, kw_only=True)
class FeedbackPlan:
    """What is asked of the loop.

    Attributes:
        targets: requested mean margins, in logits.
        gain: fixed, dose per logit.
        tolerance: |error| that is a hit, in logits.
        readouts: most readouts per target, the zero-dose one included.
        dose_limits: (low, high), holding 0.

    Raises:
        ValueError: names the argument that is no number, not finite or out of range.
    """

    targets: tuple[float, ...]
    gain: float
    tolerance: float
    readouts: int = 11
    dose_limits: tuple[float, float] = (-4.0, 4.0)

    def __post_init__(self) -> None:
        for name in ("gain", "tolerance"):
            real_number(name, getattr(self, name))
        for index, target in enumerate(elements("targets", self.targets)):
            real_number(f"targets[{index}]", target)
        if self.tolerance < 0:
            raise ValueError(f"tolerance must not be negative, got {self.tolerance!r}")
        whole_number("readouts", self.readouts, 1)
        limits = real_array("dose_limits", self.dose_limits).tolist()
        if len(limits) != 2 or not limits[0] <= 0 <= limits[1]:
            raise ValueError(f"dose_limits must be (low, high) and hold 0, got {tuple(limits)}")


@dataclass(frozen=True)
class Trajectory:
    """One endpoint.

    Attributes:
        target: requested margin m*, in logits.
        steps: (dose, margin) of every readout, the zero-dose one first.
        stop_reason: `hit`, `readouts` (used up), `diverged` (error not finite or 10 times the first), or `zero_gain`.
        clipped: whether any dose was held at a limit.
    """

    target: float
    steps: tuple[tuple[float, float], ...]
    stop_reason: str
    clipped: bool


def track_all(margins_at: Callable[[Sequence[float]], Sequence[float]], plan: FeedbackPlan) -> tuple[Trajectory, ...]:
    """Drive several targets at once: `dose <- dose + gain * (target - margin)` from dose 0.

    Targets do not influence each other; their doses of one round are only read together. A dose is read once
    and its margin reused, as the readout is deterministic; every use counts as a readout.

    Args:
        margins_at: doses (distinct) -> measured margins, in logits.
        plan: targets, gain, tolerance and limits.
    """
    targets, (low, high) = plan.targets, plan.dose_limits
    known: dict[float, float] = {}
    steps: list[list[tuple[float, float]]] = [[] for _ in targets]
    clipped = [False] * len(targets)
    reasons: dict[int, str] = {}
    doses = dict.fromkeys(range(len(targets)), 0.0)  # of the targets still running
    while doses:
        unread = list(dict.fromkeys(dose for dose in doses.values() if dose not in known))
        known.update(zip(unread, map(float, margins_at(unread)), strict=True) if unread else ())
        following: dict[int, float] = {}
        for index, dose in doses.items():
            margin = known[dose]
            steps[index].append((dose, margin))
            error = targets[index] - margin
            first = targets[index] - steps[index][0][1]
            if abs(error) <= plan.tolerance:
                reasons[index] = "hit"
            elif not math.isfinite(error) or abs(error) > DIVERGED * max(abs(first), plan.tolerance):
                reasons[index] = "diverged"
            elif plan.gain == 0:
                reasons[index] = "zero_gain"
            elif len(steps[index]) == plan.readouts:
                reasons[index] = "readouts"
            else:
                wanted = dose + plan.gain * error
                following[index] = min(max(wanted, low), high)
                clipped[index] |= following[index] != wanted
        doses = following
    return tuple(Trajectory(float(target), tuple(steps[i]), reasons[i], clipped[i]) for i, target in enumerate(targets))
