"""The relation bootstrap: known values, seeds, degenerate cases, speed of the real size."""

import numpy as np
import pytest

from sparse_control.iss import relation_bootstrap
from sparse_control.iss.shrinkage import shrinkage_lam_rel

VALUES = [0.1, 0.2, 0.3, 0.8, 0.9, 0.4, 0.5, 0.6, 0.2]
RELATIONS = list("aaabbcccd")


def test_mean_is_over_facts():
    assert relation_bootstrap(VALUES, RELATIONS, n_resamples=100)["mean"] == pytest.approx(np.mean(VALUES))
    assert relation_bootstrap(VALUES, RELATIONS, n_resamples=100)["n_relations"] == 4


def test_percentile_interval_by_loops():
    """Whole relations are drawn with replacement: the same distribution by a plain loop, another stream."""
    rng = np.random.default_rng(0)
    groups = [np.array(VALUES)[np.array(RELATIONS) == name] for name in "abcd"]
    means = [np.concatenate([groups[g] for g in rng.integers(4, size=4)]).mean() for _ in range(20_000)]
    low, high = relation_bootstrap(VALUES, RELATIONS, n_resamples=20_000)["percentile"]
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.01)


def test_two_relations_have_three_possible_means():
    low, high = relation_bootstrap([0.0, 1.0], ["a", "b"], n_resamples=2_000)["percentile"]
    assert (low, high) == (0.0, 1.0)


def test_wider_confidence_wider_interval():
    narrow, wide = (relation_bootstrap(VALUES, RELATIONS, confidence=c) for c in (0.5, 0.99))
    for kind in ("percentile", "bca"):
        assert wide[kind][0] < narrow[kind][0] < narrow[kind][1] < wide[kind][1]


def test_the_last_bit_of_a_value_moves_no_bound():
    """Six relations of one size: one resample in 65 draws each of them once, and has the sample's own mean."""
    rng = np.random.default_rng(0)
    relations = [name for name in "abcdef" for _ in range(5)]
    values = 0.3 + 0.1 * np.arange(30) % 7 / 7 + 0.05 * rng.standard_normal(30)
    bounds = []
    for _ in range(16):
        turned = np.nextafter(values, values + rng.choice([-1.0, 0.0, 1.0], 30))
        order = np.concatenate([5 * relation + rng.permutation(5) for relation in range(6)])
        found = relation_bootstrap(turned[order], relations, n_resamples=4_000)
        bounds.append([*found["percentile"], *found["bca"]])
    assert np.ptp(bounds, axis=0).max() < 1e-12


def test_resamples_that_equal_the_mean_count_half():
    """Symmetric values: no bias to correct, so BCa is the percentile interval however the ties round."""
    values, relations = [0.1, 0.2, 0.3, 0.7, 0.8, 0.9], list("abcdef")
    found = relation_bootstrap(values, relations, n_resamples=20_000)
    assert found["bca"] == pytest.approx(found["percentile"], abs=5e-3)


def test_seeded():
    assert relation_bootstrap(VALUES, RELATIONS, seed=3) == relation_bootstrap(VALUES, RELATIONS, seed=3)
    other = relation_bootstrap(VALUES, RELATIONS, seed=4, n_resamples=101)
    assert other["percentile"] != relation_bootstrap(VALUES, RELATIONS, seed=3, n_resamples=101)["percentile"]


@pytest.mark.parametrize(
    ("values", "relations"),
    [
        ([0.1, 0.2], ["a", "a"]),
        ([0.5, 0.5, 0.5], ["a", "b", "c"]),
        ([0.1, 0.2, 0.15, 0.15], ["a", "a", "b", "b"]),  # equal up to rounding
    ],
)
def test_no_interval_where_there_is_no_spread_between_relations(values, relations):
    found = relation_bootstrap(values, relations, n_resamples=100)
    assert found["percentile"] == (None, None) and found["bca"] == (None, None)
    assert found["mean"] == pytest.approx(np.mean(values))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "values must not be empty"),
        (([1.0], ["a", "b"]), r"relations must have the length of values \(1\), got 2"),
        (([float("nan")], ["a"]), r"values\[0\] must be finite, got nan"),
        (([1.0], ["a"], 0), "n_resamples must be an integer in 1..1000000, got 0"),
        (([1.0], ["a"], 10, 0, 1.0), "confidence must be in"),
        (([1.0, 2.0], ["a", "b"], 10, -1), "seed must be an integer at least 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        relation_bootstrap(*arguments)


def test_lam_rel_is_the_ledoit_wolf_shrinkage_by_its_formula():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(80, 6)) * np.arange(1, 7)
    relations, families = [f"r{i // 20}" for i in range(80)], [f"t{i % 4}" for i in range(80)]
    from sparse_control.iss.score import residualise

    rows = residualise(z, np.arange(80) // 20, np.arange(80) % 4)
    rows = rows - rows.mean(0)
    covariance = rows.T @ rows / 80
    target = np.trace(covariance) / 6
    spread = np.sum((covariance - target * np.eye(6)) ** 2)
    noise = sum(np.sum((np.outer(row, row) - covariance) ** 2) for row in rows) / 80**2
    delta = min(noise, spread) / spread
    assert shrinkage_lam_rel(z, relations, families) == pytest.approx(delta / (1 - delta))
