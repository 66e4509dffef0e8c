"""Selectors against independent implementations, brute force and hand-made columns."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.linear_model import OrthogonalMatchingPursuit

from sparse_control.protocol.selectors import (
    chosen_sites,
    coverage_driver,
    driver_omp,
    driver_omp_remeasured,
    random_supports,
    top_k,
)
from sparse_control.protocol.selectors.strengths import common_strength


def problem(seed: int, n: int = 20, s: int = 30, k: int = 4):
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(n, s)) * 10.0 ** rng.uniform(-3, 3, size=s)
    return effects, rng.normal(size=n), k


@pytest.mark.parametrize("seed", range(20))
def test_omp_equals_scikit_learn_on_normalised_columns(seed):
    effects, target, k = problem(seed)
    norms = np.linalg.norm(effects, axis=0)
    reference = OrthogonalMatchingPursuit(n_nonzero_coefs=k, fit_intercept=False).fit(effects / norms, target)
    selection = driver_omp(effects, target, k)
    assert sorted(selection.support) == np.flatnonzero(reference.coef_).tolist()
    ours = dict(zip(selection.support, selection.strengths))
    for site, strength in ours.items():
        assert strength * norms[site] == pytest.approx(reference.coef_[site], rel=1e-3, abs=1e-4)
    assert selection.stop_reason == "k"
    assert selection.path[-1] == pytest.approx(reference.score(effects / norms, target) * _centred(target)
                                               + 1 - _centred(target), abs=1e-4)  # fmt: skip


def _centred(target: np.ndarray) -> float:
    """scikit-learn's R^2 is about the mean, ours about zero."""
    return float(((target - target.mean()) ** 2).sum() / (target**2).sum())


def test_omp_recovers_a_planted_support_and_stops():
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(24, 50))
    target = 2.0 * effects[:, 7] - 3.0 * effects[:, 31]
    selection = driver_omp(effects, target, 5)
    assert set(selection.support) == {7, 31} and selection.stop_reason == "gain"
    assert dict(zip(selection.support, selection.strengths))[31] == pytest.approx(-3.0, rel=1e-4)
    assert np.allclose(selection.predicted, target, atol=1e-4)
    assert list(selection.path) == sorted(selection.path) and len(selection.path) == 2


def test_omp_is_blind_to_scale():
    effects, target, k = problem(3)
    scale = 10.0 ** np.random.default_rng(1).uniform(-6, 6, size=effects.shape[1])
    plain, scaled = driver_omp(effects, target, k), driver_omp(effects * scale, target, k)
    assert plain.support == scaled.support
    assert np.allclose(np.array(scaled.strengths) * scale[list(scaled.support)], plain.strengths, rtol=1e-6)


def test_omp_tie_takes_the_lower_index():
    column = np.array([1.0, 2.0, 3.0])
    assert driver_omp(np.stack([column, 5 * column, column], axis=1), column, 1).support == (0,)


def test_omp_degenerate_columns():
    column, other = np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1e-9])
    zero = np.zeros(3)
    assert driver_omp(np.stack([zero, zero], axis=1), column, 2).support == ()
    assert driver_omp(np.stack([zero, zero], axis=1), column, 2).stop_reason == "candidates"
    one = driver_omp(np.stack([zero, column, zero], axis=1), np.array([1.0, 1.0, 1.0]), 3)
    assert one.support == (1,) and one.stop_reason == "candidates"
    twins = driver_omp(np.stack([column, other], axis=1), np.array([1.0, 1.0, 1.0]), 2)
    assert len(twins.support) == 1 and twins.stop_reason == "condition"


def test_omp_weak_columns_are_no_candidates():
    strong, weak = np.array([10.0, 0.0, 0.0]), np.array([0.0, 0.01, 0.0])
    target = np.array([1.0, 1.0, 0.0])
    effects = np.stack([strong, weak], axis=1)
    assert set(driver_omp(effects, target, 2).support) == {0, 1}
    limited = driver_omp(effects, target, 2, min_effect=0.05)
    assert limited.support == (0,) and limited.stop_reason == "candidates"


def test_omp_bounded_strengths():
    effects, target, k = problem(5)
    free = driver_omp(effects, target, k)
    bound = max(map(abs, free.strengths)) / 10
    bounded = driver_omp(effects, target, k, max_strength=bound)
    assert max(map(abs, bounded.strengths)) <= bound
    assert bounded.path[-1] <= free.path[-1] + 1e-12
    loose = driver_omp(effects, target, k, max_strength=1e9)
    assert loose == free


def test_omp_bounded_fit_is_the_best_one():
    rng = np.random.default_rng(2)
    effects, target = rng.normal(size=(12, 2)), rng.normal(size=12) * 5
    bounded = driver_omp(effects, target, 2, max_strength=0.5)
    grid = np.linspace(-0.5, 0.5, 101)
    columns = effects[:, list(bounded.support)]
    losses = [np.sum((target - columns @ (a, b)) ** 2) for a in grid for b in grid]
    assert np.sum((target - columns @ bounded.strengths) ** 2) <= min(losses) + 1e-3


@pytest.mark.parametrize("seed", range(10))
def test_coverage_reaches_its_bound(seed):
    rng = np.random.default_rng(seed)
    effects, target, k = rng.normal(size=(8, 10)), rng.normal(size=8) * 3, 3
    shares = np.clip(effects / target[:, None], 0, 1)

    def value(support) -> float:
        return float(np.minimum(1, shares[:, list(support)].sum(axis=1)).mean())

    selection = coverage_driver(effects, target, k)
    assert selection.path[-1] == pytest.approx(value(selection.support))
    best = max(value(support) for support in combinations(range(10), k))
    assert selection.path[-1] >= (1 - 1 / np.e) * best - 1e-12
    assert selection.path[0] == pytest.approx(max(value((s,)) for s in range(10)))
    for length in (1, 2):  # every step is the best single addition
        chosen = selection.support[:length]
        assert value(selection.support[: length + 1]) == pytest.approx(
            max(value((*chosen, s)) for s in range(10) if s not in chosen)
        )
    joint = effects[:, list(selection.support)].sum(axis=1)
    assert selection.strengths == pytest.approx([target @ joint / (joint @ joint)] * k)


def test_coverage_ties():
    target = np.array([1.0, 1.0])
    # all cover the same once column 0 is in; the larger total wins, then the lower index
    effects = np.array([[1.0, 0.0, 0.5, 0.5], [1.0, 0.2, 0.5, 0.5]])
    assert coverage_driver(effects, target, 3).support == (0, 2, 3)
    assert coverage_driver(np.ones((2, 3)), target, 2).support == (0, 1)
    rounding = np.array([[0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2]])
    assert coverage_driver(rounding, target, 1).support == (0,)


def test_coverage_ignores_effects_against_the_gap():
    effects = np.array([[-5.0, 0.1], [5.0, 0.1]])
    selection = coverage_driver(effects, [1.0, -1.0], 1)
    assert selection.support == (1,) and selection.path == (0.05,)
    assert coverage_driver(np.zeros((2, 2)), [1.0, 1.0], 1).strengths == (0.0,)


@pytest.mark.parametrize("selector", [driver_omp, coverage_driver])
@pytest.mark.parametrize(
    ("effects", "target", "k", "message"),
    [
        ([], [1.0], 1, "effects"),
        ([[1.0]], [], 1, "target must not be empty"),
        ([[1.0], [2.0]], [1.0], 1, r"target must have the length of effects \(2\), got 1"),
        ([1.0, 2.0], [1.0, 2.0], 1, r"effects must be \(N, D\) with N >= 1 and D >= 1, got shape \(2,\)"),
        ([[1.0, 2.0]], [[1.0]], 1, r"target\[0\] must be a real number, got \[1.0\]"),
        ([[1.0, np.nan]], [1.0], 1, r"effects\[0\]\[1\] must be finite, got nan"),
        ([[1.0]], [np.inf], 1, r"target\[0\] must be finite, got inf"),
        ([["a"]], [1.0], 1, r"effects\[0\]\[0\] must be a real number, got 'a'"),
        ([[True]], [1.0], 1, r"effects\[0\]\[0\] must be a real number, got True"),
        ([[1.0], [1.0, 2.0]], [1.0, 2.0], 1, r"effects\[1\] must have the shape of effects\[0\], \(1,\), got \(2,\)"),
        ([[1.0]], [1.0], 2, "k must be an integer in 1..1, got 2"),
        ([[1.0]], [1.0], 0, "k must be an integer in 1..1, got 0"),
        ([[1.0]], [1.0], 1.5, "k must be an integer in 1..1, got 1.5"),
        ([[1.0]], [1.0], True, "k must be an integer in 1..1, got True"),
    ],
)
def test_bad_arguments(selector, effects, target, k, message):
    with pytest.raises(ValueError, match=message):
        selector(effects, target, k)


def test_selector_specific_bad_arguments():
    with pytest.raises(ValueError, match=r"target\[1\] is 0"):
        coverage_driver([[1.0], [1.0]], [1.0, 0.0], 1)
    with pytest.raises(ValueError, match="target is all zero"):
        driver_omp([[1.0], [1.0]], [0.0, 0.0], 1)
    with pytest.raises(ValueError, match="min_effect must be in 0..1, got 2"):
        driver_omp([[1.0]], [1.0], 1, min_effect=2)
    with pytest.raises(ValueError, match="min_effect must be a finite number"):
        driver_omp([[1.0]], [1.0], 1, min_effect=np.nan)
    with pytest.raises(ValueError, match="max_strength must be positive, got 0"):
        driver_omp([[1.0]], [1.0], 1, max_strength=0)


def test_results_are_plain_python_and_repeatable():
    effects, target, k = problem(1)
    for selector in (driver_omp, coverage_driver):
        first = selector(effects.tolist(), target.tolist(), k)
        assert first == selector(effects, target, k)
        assert all(type(i) is int for i in first.support)
        assert all(type(x) is float for x in (*first.strengths, *first.path, *first.predicted))
        assert effects.flags.writeable and np.array_equal(effects, problem(1)[0])


def additive(effects: np.ndarray):
    """Patches whose effects add up: what a linear model does."""

    def measure(support, strengths, wanted):
        assert len(set(wanted)) == len(wanted)
        return effects[:, list(support)] @ strengths, effects[:, list(wanted)]

    return measure


@pytest.mark.parametrize("seed", range(10))
def test_remeasured_omp_is_omp_where_effects_add_up(seed):
    effects, target, k = problem(seed)
    for limits in ({}, {"min_effect": 0.05}, {"min_effect": 0.05, "max_strength": 0.5}):
        plain = driver_omp(effects, target, k, **limits)
        again = driver_omp_remeasured(additive(effects), effects, target, k, **limits)
        assert again.support == plain.support and again.stop_reason == plain.stop_reason
        assert again.path == pytest.approx(plain.path, abs=1e-4)
        if "max_strength" not in limits:
            assert again.strengths == pytest.approx(plain.strengths, rel=1e-3)
            assert again.predicted == pytest.approx(effects[:, list(again.support)] @ again.strengths, abs=1e-6)


def test_remeasured_omp_is_scikit_learns_on_normalised_columns():
    effects, target, k = problem(4)
    norms = np.linalg.norm(effects, axis=0)
    reference = OrthogonalMatchingPursuit(n_nonzero_coefs=k, fit_intercept=False).fit(effects / norms, target)
    selection = driver_omp_remeasured(additive(effects), effects, target, k)
    assert sorted(selection.support) == np.flatnonzero(reference.coef_).tolist()


def saturating(first, second, both):
    """Two sites that do the same thing: patching the second beside the first adds almost nothing."""
    calls = []

    def joint(strengths: dict[int, float]) -> np.ndarray:
        same = min(1.0, strengths.get(0, 0.0) + strengths.get(1, 0.0))
        return same * np.array(first) + strengths.get(2, 0.0) * np.array(second) + len(strengths) * np.array(both)

    def measure(support, strengths, wanted):
        calls.append((support, tuple(wanted)))
        base = dict(zip(support, strengths))
        reached = joint(base)
        columns = [joint(base | {site: base.get(site, 0.0) + 1.0}) - reached for site in wanted]
        return reached, np.array(columns).T.reshape(len(reached), len(wanted))

    return measure, calls


def test_remeasured_omp_sees_that_sites_share_their_effect():
    """Once site 1 is patched, site 0 does nothing more, however strong it is alone."""
    measure, calls = saturating([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.6], [0.0] * 4)
    effects = measure((), (), [0, 1, 2])[1]
    effects[:, 1] += [0.0, 0.0, 0.0, 0.5]  # alone, site 1 seems to help the fourth pair as well
    calls.clear()
    target = np.array([1.0, 1.0, 0.5, 0.6])
    selection = driver_omp_remeasured(measure, effects, target, 2)
    assert selection.support == (1, 2) and selection.stop_reason == "k"
    assert calls == [((1,), (1, 0, 2)), ((1, 2), ())], "the last choice is measured, and no further column is"
    assert selection.strengths == pytest.approx((1.0, 1.0), abs=0.2)


def test_remeasured_omp_leaves_out_a_site_that_makes_it_worse():
    def measure(support, strengths, wanted):
        return np.full(3, 5.0), np.ones((3, len(wanted)))

    selection = driver_omp_remeasured(measure, np.eye(3), np.ones(3), 2)
    assert selection.support == () and selection.stop_reason == "gain" and selection.predicted == (0.0, 0.0, 0.0)


def test_remeasured_omp_stops_where_nothing_more_is_seen():
    effects = np.array([[1.0, 0.5], [1.0, -0.5]])

    def measure(support, strengths, wanted):
        return np.array([0.5, 0.25]), np.zeros((2, len(wanted)))

    selection = driver_omp_remeasured(measure, effects, np.array([1.0, 0.9]), 2)
    assert selection.support == (0,) and selection.stop_reason == "candidates"
    with pytest.raises(ValueError, match=r"not finite for columns \[0\]"):
        driver_omp_remeasured(lambda *_: (np.array([np.nan, 1.0]), np.zeros((2, 0))), effects, np.ones(2), 1)


def test_top_k_is_by_signed_mean_effect():
    effects = np.array([[3.0, 1.0, -9.0, 1.0], [1.0, 2.0, -9.0, 2.0]])
    selection = top_k(effects, [1.0, 1.0], 3)
    assert selection.support == (0, 1, 3), "ties go to the lower index, effects against the target come last"
    joint = effects[:, [0, 1, 3]].sum(axis=1)
    assert selection.strengths == pytest.approx([joint.sum() / (joint @ joint)] * 3)
    mirrored = top_k(-effects, [-1.0, -1.0], 3)
    assert mirrored.support == selection.support and mirrored.strengths == pytest.approx(selection.strengths)
    best = [1 - np.linalg.norm(1 - joint * (joint.sum() / (joint @ joint))) ** 2 / 2]
    assert selection.path[-1] == pytest.approx(best[0]) and len(selection.path) == 3


def test_random_supports_are_of_their_generator():
    effects, target, _ = problem(0)
    first, second = (random_supports(effects, target, 4, 25, np.random.default_rng(1)) for _ in range(2))
    assert first == second and len(first) == 25 and len({draw.support for draw in first}) > 20
    for draw in first:
        assert len(set(draw.support)) == 4
        assert draw == chosen_sites(effects, target, draw.support)
        assert set(draw.strengths) == {common_strength(effects[:, list(draw.support)], target)}
    assert len({site for draw in first for site in draw.support}) > 25, "every site has its chance"


def test_all_sites_share_one_bounded_strength():
    effects, target, _ = problem(0)
    everything = chosen_sites(effects, target, range(30))
    assert everything.support == tuple(range(30)) and len(set(everything.strengths)) == 1
    bounded = chosen_sites(effects * 1e-6, target, range(30), max_strength=4.0)
    assert set(map(abs, bounded.strengths)) == {4.0}
    cancelled = chosen_sites([[1.0, -1.0]], [1.0], [0, 1])
    assert cancelled.strengths == (0.0, 0.0) and cancelled.predicted == (0.0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: chosen_sites([[1.0, 2.0]], [1.0], [0, 0]),
            r"support must hold one index or more, each once, got \[0, 0",
        ),
        (lambda: chosen_sites([[1.0, 2.0]], [1.0], [2]), r"support\[0\] must be an integer in 0..1, got 2"),
        (lambda: chosen_sites([[1.0, 2.0]], [1.0], []), r"support must hold one index or more, each once, got \[\]"),
        (lambda: chosen_sites([[1.0]], [0.0], [0]), "target is all zero"),
        (lambda: chosen_sites([[1.0]], [1.0], [0], max_strength=-1), "max_strength must be positive, got -1"),
        (lambda: top_k([[1.0]], [1.0], 2), "k must be an integer in 1..1, got 2"),
        (
            lambda: random_supports([[1.0]], [1.0], 1, 0, np.random.default_rng(0)),
            "draws must be an integer in 1..10000, got 0",
        ),
        (lambda: driver_omp_remeasured(additive(np.eye(2)), np.eye(2), [0.0, 0.0], 1), "target is all zero"),
        (
            lambda: driver_omp_remeasured(additive(np.eye(2)), np.eye(2), [1.0, 0.0], 3),
            "k must be an integer in 1..2, got 3",
        ),
        (lambda: driver_omp_remeasured(additive(np.eye(2)), np.eye(2), [1.0, 0.0], 1, 2.0), "min_effect must be in 0"),
    ],
)
def test_controls_refuse_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SELECTORS = {
    "driver_omp": driver_omp,
    "driver_omp bounded": lambda effects, target, k, bound=1.0: driver_omp(effects, target, k, max_strength=bound),
    "driver_omp_remeasured": lambda effects, target, k: driver_omp_remeasured(additive(effects), effects, target, k),
    "coverage_driver": coverage_driver,
    "top_k": top_k,
    "chosen_sites": lambda effects, target, k: chosen_sites(effects, target, range(k)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-1010, -664, 532, 1015])  # squares vanish or overflow
@pytest.mark.parametrize("name", SELECTORS)
def test_huge_and_tiny_effects_give_what_scaled_ones_give(name, power):
    rng = np.random.default_rng(5)
    effects, target = rng.normal(size=(12, 9)), rng.uniform(0.5, 2.0, size=12)
    plain = SELECTORS[name](effects, target, 3)
    scaled = SELECTORS[name](np.ldexp(effects, power), np.ldexp(target, power), 3)
    assert scaled.support == plain.support and scaled.stop_reason == plain.stop_reason
    assert scaled.strengths == pytest.approx(plain.strengths, rel=1e-9)
    assert scaled.path == pytest.approx(plain.path, rel=1e-9)
    assert np.ldexp(scaled.predicted, -power) == pytest.approx(plain.predicted, rel=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("effect", "goal"), [(1e160, 1.0), (1.0, 1e160), (1e-200, 1.0), (1.0, 1e-200), (1e-140, 1e140)]
)
@pytest.mark.parametrize("name", ["driver_omp", "driver_omp_remeasured", "top_k", "chosen_sites"])
def test_effects_and_target_of_different_sizes(name, effect, goal):
    effects, target, _ = problem(2, s=8)
    effects = effects / np.linalg.norm(effects, axis=0)
    plain, scaled = (SELECTORS[name](effects * e, target * t, 3) for e, t in ((1.0, 1.0), (effect, goal)))
    assert scaled.support == plain.support and scaled.path == pytest.approx(plain.path, rel=1e-9)
    assert np.array(scaled.strengths) * (effect / goal) == pytest.approx(plain.strengths, rel=1e-9)


@pytest.mark.parametrize("name", ["driver_omp", "driver_omp_remeasured", "top_k", "chosen_sites", "coverage_driver"])
def test_strengths_beyond_float64_are_refused(name):
    effects, target = np.array([[1.0, 0.1], [0.2, 1.0]]), np.array([1.0, 1.0])
    with pytest.raises(ValueError, match="effects are out of proportion to target|not finite"):
        SELECTORS[name](effects * 1e-300, target * 1e300, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: driver_omp([[1.0]], [1.0], 1, max_strength=10**400), "max_strength must be a finite number"),
        (lambda: driver_omp([[1.0]], [1.0], 1, min_effect=10**400), "min_effect must be a finite number"),
        (lambda: driver_omp([[1e300]], [1e-300], 1, max_strength=1e300), None),
        (lambda: driver_omp([[1e-300]], [1e300], 1, max_strength=1e-300), "max_strength 1e-300 is out of proportion"),
        (lambda: chosen_sites([[1.0, 2.0]], [1.0], [0.7]), r"support\[0\] must be an integer in 0..1, got 0.7"),
        (lambda: chosen_sites([[1.0, 2.0]], [1.0], None), "support must be a sequence, got None"),
        (
            lambda: random_supports([[1.0]], [1.0], 1, "a", np.random.default_rng(0)),
            "draws must be an integer in 1..10000",
        ),
    ],
)
def test_numbers_out_of_range(call, message):
    if message is None:
        assert np.isfinite(call().strengths).all()
        return
    with pytest.raises(ValueError, match=message):
        call()
