"""The feedback loop on margin functions with known answers."""

import math

import pytest

from sparse_control.protocol.feedback import FeedbackPlan, track_all


def track(margin_at, target, gain, tolerance, readouts=11, dose_limits=(-4.0, 4.0)):
    """One target."""
    plan = FeedbackPlan(targets=(target,), gain=gain, tolerance=tolerance, readouts=readouts, dose_limits=dose_limits)
    return track_all(lambda doses: [margin_at(dose) for dose in doses], plan)[0]


def test_a_linear_system_is_hit_in_two_readouts():
    result = track(lambda dose: -3.0 + 2.0 * dose, 1.0, 0.5, 0.01)
    assert result.steps == ((0.0, -3.0), (2.0, 1.0))
    assert result.stop_reason == "hit" and not result.clipped


def test_the_update_rule():
    result = track(lambda dose: dose**2 + dose, 1.0, 0.25, 1e-3, 4)
    dose = 0.0
    for seen, margin in result.steps:
        assert seen == pytest.approx(dose) and margin == pytest.approx(dose**2 + dose)
        dose += 0.25 * (1.0 - margin)
    assert result.stop_reason == "readouts" and len(result.steps) == 4


def test_already_met_at_zero_dose():
    result = track(lambda dose: 0.9 + dose, 1.0, 1.0, 0.3)
    assert result.stop_reason == "hit" and result.steps == ((0.0, 0.9),)


def test_wrong_sign_diverges():
    result = track(lambda dose: -3.0 * dose, 1.0, 1.0, 0.1, 50, (-1e9, 1e9))
    assert result.stop_reason == "diverged" and len(result.steps) < 6


def test_non_finite_margin_diverges():
    result = track(lambda dose: math.nan if dose else 0.0, 1.0, 1.0, 0.1)
    assert result.stop_reason == "diverged" and len(result.steps) == 2


def test_doses_stay_within_limits_and_say_so():
    seen = []
    result = track(lambda dose: seen.append(dose) or 0.01 * dose, 5.0, 1.0, 0.1)
    assert result.clipped and result.stop_reason == "readouts"
    assert len(result.steps) == 11 and result.steps[-1][0] == 4.0
    assert seen == [0.0, 4.0]  # a dose is measured once


def test_zero_gain():
    result = track(lambda dose: dose, 5.0, 0.0, 0.1)
    assert result.stop_reason == "zero_gain" and len(result.steps) == 1


def test_one_readout():
    assert track(lambda dose: dose, 5.0, 1.0, 0.1, 1).stop_reason == "readouts"


def test_targets_together_equal_targets_apart():
    def margin(dose: float) -> float:
        return math.tanh(dose) * 3 - 1

    targets = (-1.0, -0.5, 0.7, 1.9, 5.0)
    rounds = []
    plan = FeedbackPlan(targets=targets, gain=0.4, tolerance=0.05)
    together = track_all(lambda doses: rounds.append(doses) or [margin(d) for d in doses], plan)
    assert together == tuple(track(margin, target, 0.4, 0.05) for target in targets)
    assert len(rounds) <= 11 and rounds[0] == [0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gain": math.nan}, "gain must be a finite number"),
        ({"gain": 10**400}, "gain must be a finite number"),
        ({"gain": "a"}, "gain must be a"),
        ({"tolerance": "0.1"}, "tolerance must be a finite number"),
        ({"targets": (10**400,)}, r"targets\[0\] must be a finite number"),
        ({"targets": (1.0, math.inf)}, r"targets\[1\] must be a finite number"),
        ({"targets": "ab"}, "targets must be a sequence|targets.0. must be a finite number"),
        ({"targets": None}, "targets must be a sequence|targets.0. must be a finite number"),
        ({"readouts": 2.5}, "readouts must be an integer at least 1"),
        ({"readouts": 0}, "readouts must be an integer at least 1"),
        ({"dose_limits": None}, "dose_limits must be a sequence, got None"),
        ({"dose_limits": (0, 10**400)}, r"dose_limits\[1\] must be within float64"),
        ({"dose_limits": (1.0, 2.0)}, r"dose_limits must be \(low, high\) and hold 0"),
        ({"tolerance": -1.0}, "tolerance must not be negative"),
    ],
)
def test_a_plan_no_loop_can_run_on_is_refused_when_it_is_made(change, message):
    good = {"targets": (1.0,), "gain": 1.0, "tolerance": 0.1}
    assert FeedbackPlan(**good).readouts == 11
    with pytest.raises(ValueError, match=message):
        FeedbackPlan(**good | change)
