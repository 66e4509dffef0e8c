"""Progress at a budget of divergence: known values, a search over a fine grid of doses, and what is refused."""

import math

import numpy as np
import pytest

from sparse_control.metrics import over_seeds
from sparse_control.metrics.cost import progress_at_budget

DOSES = [-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2]


@pytest.mark.parametrize(
    ("progress", "kl", "budget", "expected"),
    [
        ([0.2, 0.4, 0.8], [0.1, 0.2, 0.4], 1.0, 0.8),  # all within
        ([0.2, 0.4, 0.8], [0.1, 0.2, 0.4], 0.3, 0.6),  # half of the way between the second and the third
        ([0.2, 0.4, 0.8], [0.1, 0.2, 0.4], 0.1, 0.2),  # the budget itself is within
        ([0.2, 0.4, 0.8], [0.1, 0.2, 0.4], 0.05, math.nan),  # nothing below the first dose
        ([0.9, 0.4, 0.8], [0.1, 0.2, 0.4], 0.3, 0.9),  # the largest is not at the largest dose
        ([0.2, 0.4, 0.8], [0.1, 0.5, 0.3], 0.4, 0.8),  # within the budget again
        ([-0.2, -0.4, -0.8], [0.1, 0.2, 0.4], 1.0, -0.2),  # the wrong way is not dose zero
        ([0.2, 0.4, 0.8], [0.1, math.inf, math.inf], 9.0, 0.2),
    ],
)
def test_known_values(progress, kl, budget, expected):
    doses, around = [0.5, 1.0, 2.0], [-1.0, 0.0]
    found = progress_at_budget([*doses, *around], [*progress, 5.0, 3.0], [*kl, 0.0, 0.0], budget)
    assert found == pytest.approx(expected, nan_ok=True)


def slow(doses, progress, kl, budget):
    """Every dose of a fine grid, both curves straight between doses."""
    order = np.argsort(doses)
    grid = np.linspace(min(dose for dose in doses if dose > 0), max(doses), 200_001)
    moved, spent = (np.interp(grid, np.array(doses)[order], np.array(curve)[order]) for curve in (progress, kl))
    return moved[spent <= budget].max() if spent[0] <= budget else math.nan


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_search_over_doses(seed):
    random = np.random.default_rng(seed)
    doses = random.permutation(DOSES).tolist()
    progress, kl = random.normal(size=10).tolist(), random.exponential(size=10).tolist()
    for budget in (0.01, 0.1, 0.5, 1.0, 2.0):
        found = progress_at_budget(doses, progress, kl, budget)
        assert found == pytest.approx(slow(doses, progress, kl, budget), abs=1e-3, nan_ok=True)


@pytest.mark.parametrize(
    ("doses", "kl", "budget", "message"),
    [
        ([1.0, 1.0], [0.0, 0.0], 1.0, "doses must differ from each other and one be positive"),
        ([-1.0, 0.0], [0.0, 0.0], 1.0, "doses must differ from each other and one be positive"),
        ([1.0, 2.0], [0.0, -0.1], 1.0, "kl holds divergences, which cannot be negative, got -0.1"),
        ([1.0, 2.0], [0.0], 1.0, "kl"),
        ([1.0, 2.0], [0.0, 0.1], 0.0, "budget must be positive, got 0.0"),
    ],
)
def test_what_is_refused(doses, kl, budget, message):
    with pytest.raises(ValueError, match=message):
        progress_at_budget(doses, [0.0, 1.0], kl, budget)


def test_over_seeds_curves_are_means_before_the_budget():
    one, other = ([0.5, 1.0, 2.0], [0.2, 0.6, 1.0], [[0.0, 0.1], [0.1, 0.1], [2.0, 2.0]]), (
        [0.0, 0.5, 1.0], [0.0, 0.4, 0.8], [[0.0], [0.15], [0.3]],
    )  # fmt: skip
    found = over_seeds.equal_cost([one, other, ([0.5], None, [[0.0]])])
    # means at the doses of both: .3 and .7 at .1 and .2 nats
    assert found == {"at_0.01": None, "at_0.1": pytest.approx(0.3), "at_1": pytest.approx(0.7)}
    assert set(over_seeds.equal_cost([([0.5], None, [[0.0]])]).values()) == {None}


def test_an_order_over_a_small_range_is_noise():
    doses = [0.0, 1.0, 2.0]
    curves = [[0.0, 0.5, 1.0], [0.0, 0.01, 0.04], [0.0, -0.01, -0.02], [0.0, 0.02, 0.01], [0.0] * 3, None]
    found = over_seeds.dose_response([(doses, curve) for curve in curves])
    assert (found["ordered"], found["reversed"], found["noise"]) == (2, 1, 2)
    assert found["range_mean"] == pytest.approx((1.0 + 0.04 + 0.02 + 0.02 + 0.0) / 5)
