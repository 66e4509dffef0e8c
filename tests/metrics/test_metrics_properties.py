"""Properties that hold for every input, and agreement with plain loops written from the definitions."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from sparse_control.metrics.dose import progress, signed_spearman
from sparse_control.metrics.feedback import endpoint_metrics
from sparse_control.metrics.preservation import kl_divergence, kl_divergences, preservation_summary
from sparse_control.metrics.reachability import rel_tar
from sparse_control.metrics.reuse import mcqa_recovery
from sparse_control.metrics.reversal import reversal_metrics

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
quick = settings(max_examples=60, deadline=None)


def columns(count, minimum=1):
    return st.lists(st.tuples(*[numbers] * count), min_size=minimum, max_size=12).map(
        lambda rows: [list(column) for column in zip(*rows, strict=True)]
    )


def plain_distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def plain_ranks(values):
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def plain_pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    top = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return top / math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))


@quick
@given(columns(3))
def test_rel_tar_is_the_loop(rows):
    source, target, patched = rows
    expected = plain_distance(target, patched) / (plain_distance(target, source) + 1e-8)
    assert rel_tar(source, target, patched) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert rel_tar(source, target, target) == 0.0


@quick
@given(columns(3), st.randoms())
def test_rel_tar_and_reversal_ignore_the_order_of_pairs(rows, random):
    order = list(range(len(rows[0])))
    random.shuffle(order)
    shuffled = [[column[i] for i in order] for column in rows]
    assert rel_tar(*shuffled) == pytest.approx(rel_tar(*rows), rel=1e-12)
    assert reversal_metrics(*shuffled)["ratio"] == pytest.approx(
        reversal_metrics(*rows)["ratio"], rel=1e-12, nan_ok=True
    )


@quick
@given(columns(3))
def test_reversal_is_the_loop_and_swapping_ends_inverts_it(rows):
    source, target, reversed_out = rows
    result = reversal_metrics(source, target, reversed_out)
    assert result["distance_to_target"] == pytest.approx(plain_distance(reversed_out, target), rel=1e-9)
    assert result["passes"] == (result["ratio"] >= 2)
    other = reversal_metrics(target, source, reversed_out)
    if result["status"] == other["status"] == "finite" and result["ratio"] > 0:
        assert other["ratio"] == pytest.approx(1 / result["ratio"], rel=1e-9)


@quick
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=12), st.data())
def test_spearman_is_the_loop_and_scipy(values, data):
    assume(len(set(values)) > 1)
    doses = data.draw(st.lists(st.integers(-4, 4), min_size=len(values), max_size=len(values)))
    assume(len(set(doses)) > 1)
    rho = signed_spearman(doses, values)
    assert rho == pytest.approx(plain_pearson(plain_ranks(doses), plain_ranks(values)), abs=1e-12)
    assert rho == pytest.approx(stats.spearmanr(doses, values).statistic, abs=1e-12)
    assert signed_spearman(doses, [-value for value in values]) == pytest.approx(-rho, abs=1e-15)
    assert signed_spearman(doses, [value**3 for value in values]) == rho


@quick
@given(st.lists(numbers, min_size=2, max_size=12, unique=True))
def test_an_ordered_curve_is_exactly_one(values):
    values = sorted(values)
    assume(values[-1] - values[0] > 1e-6)
    assert signed_spearman(range(len(values)), values) == 1.0
    assert signed_spearman(range(len(values)), values[::-1]) == -1.0


@pytest.mark.parametrize(
    "curve, constant",
    [
        ([5.0, 5.0 + 5e-12, 5.0], True),
        ([5.0, 5.0 + 6e-12, 5.0], False),
        ([0.0, 1e-12, 0.0], True),
        ([0.0, 2e-12, 0.0], False),
        ([1.7e308, -1.7e308, 0.0], False),
    ],
)
def test_constant_is_relative_to_the_magnitude(curve, constant):
    assert math.isnan(signed_spearman([0, 1, 3], curve)) is constant


def test_spearman_without_variation_in_dose_is_undefined():
    assert math.isnan(signed_spearman([1], [2]))
    assert math.isnan(signed_spearman([1, 1], [2, 3]))


@quick
@given(columns(2, minimum=2), st.floats(-2, 2))
def test_progress_is_the_dose_of_a_linear_move(rows, gamma):
    source, target = (np.array(column) for column in rows)
    gap = target - source
    if not gap.any():
        assert math.isnan(progress(source, target, source))
        return
    assume(np.abs(gap).max() > 1e-3)
    assert progress(source, target, source + gamma * gap) == pytest.approx(gamma, abs=1e-6)
    assert progress(source, target, target) == 1.0


@quick
@given(numbers, numbers, numbers, st.floats(0, 1e3))
def test_feedback_is_the_definition(target, terminal, initial, tolerance):
    result = endpoint_metrics(target=target, terminal_margin=terminal, initial_margin=initial, tolerance=tolerance)
    assert result == {
        "hit": abs(target - terminal) <= tolerance,
        "terminal_error": abs(target - terminal),
        "initial_error": abs(target - initial),
        "already_met": abs(target - initial) <= tolerance,
    }


def plain_kl(p, q):
    log_p = [value - max(p) - math.log(sum(math.exp(other - max(p)) for other in p)) for value in p]
    log_q = [value - max(q) - math.log(sum(math.exp(other - max(q)) for other in q)) for value in q]
    return sum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


@quick
@given(st.lists(st.tuples(*[st.floats(-30, 30)] * 2), min_size=1, max_size=12), numbers)
def test_kl_is_the_loop_and_ignores_a_shift(rows, shift):
    p, q = ([row[side] for row in rows] for side in (0, 1))
    value = kl_divergence(p, q)
    assert value >= 0
    assert value == pytest.approx(plain_kl(p, q), abs=1e-10, rel=1e-10)
    assert kl_divergence([x + shift for x in p], q) == pytest.approx(value, abs=1e-9, rel=1e-9)
    assert kl_divergence(p, p) == 0.0


def test_kl_of_large_logits_neither_caps_nor_overflows():
    assert kl_divergence([0.0, -210.0], [-210.0, 0.0]) == pytest.approx(210.0)
    assert kl_divergence([1e308, -1e308], [1e308, -1e308]) == 0.0
    assert kl_divergence([0.0, -2000.0], [0.0, -math.inf]) == math.inf
    assert kl_divergence([0.0, -math.inf], [0.0, -math.inf]) == 0.0
    several = [[0.0, -2000.0], [0.0, -math.inf], [1.0, 3.0]]
    assert kl_divergences([0.0, -1.0], several) == [kl_divergence([0.0, -1.0], q) for q in several]


def test_kl_with_small_steps_is_not_negative():
    random = np.random.default_rng(0)
    for _ in range(16):
        p = random.normal(size=50_000).astype(np.float32) * 4
        assert 0 <= kl_divergence(p, p + np.float32(1e-6) * random.normal(size=p.size).astype(np.float32)) < 1e-9


@quick
@given(st.lists(st.tuples(st.floats(0, 1e-2), st.integers(0, 3)), min_size=1, max_size=40))
def test_preservation_is_the_loop(rows):
    values, seeds = [row[0] for row in rows], [row[1] for row in rows]
    result = preservation_summary(values, seeds)
    ordered = sorted(values)
    rank = next(r for r in range(1, len(values) + 1) if 100 * r >= 95 * len(values))
    assert result["p95"] == ordered[rank - 1]
    assert result["max"] == max(values)
    assert result["mean"] == pytest.approx(sum(values) / len(values), rel=1e-12)
    per_seed = {seed: [v for v, s in rows if s == seed] for seed in dict.fromkeys(seeds)}
    assert result["seed_means"] == pytest.approx({s: sum(v) / len(v) for s, v in per_seed.items()}, rel=1e-12)
    assert result["every_prompt_passes"] == sum(all(v <= 0.001 for v in group) for group in per_seed.values())
    assert result["n"] == len(rows) and result["n_seeds"] == len(per_seed)
    assert result["every_prompt_passes"] <= result["seed_mean_passes"] <= result["n_seeds"]


def test_preservation_thresholds_rounding_and_infinity():
    assert preservation_summary([0.001] * 32, [0] * 32)["seed_mean_passes"] == 1
    assert preservation_summary([-1e-9, 0.0], [0, 0])["max"] == 0.0
    endless = preservation_summary([math.inf, 0.0], ["a", "b"])
    assert endless["max"] == endless["mean"] == endless["seed_means"]["a"] == math.inf
    assert endless["seed_mean_passes"] == endless["every_prompt_passes"] == 1


def test_preservation_seeds_keep_their_identity():
    assert set(preservation_summary([0.0, 0.0], pd.Series([0.0, 1.0]))["seed_means"]) == {0, 1}
    assert set(preservation_summary([0.0, 0.0], np.array(["a", "b"]))["seed_means"]) == {"a", "b"}
    for bad in ([None, 0], [True, 0], [0.5, 0], [math.nan, 0], [[0], [1]], "01", 3, {0: 1}):
        with pytest.raises(ValueError, match="seed_ids"):
            preservation_summary([0.0, 0.0], bad)


@quick
@given(columns(3))
def test_recovery_is_the_loop(rows):
    source, target, patched = rows
    base, end, middle = (math.fsum(column) / len(column) for column in rows)
    value = mcqa_recovery(source, target, patched)
    if abs(end - base) > 1e-6:
        assert value == pytest.approx((middle - base) / (end - base), rel=1e-9, abs=1e-9)
        assert mcqa_recovery(source, target, target) == 1.0
        assert mcqa_recovery(source, target, source) == 0.0


def test_a_gap_of_rounding_noise_is_no_gap():
    assert math.isnan(mcqa_recovery([0.1, 0.2], [0.15, 0.15], [1.0, 1.0]))
    assert math.isnan(mcqa_recovery([0.0], [0.0], [1.0]))
    assert mcqa_recovery([0.0], [1e-13], [1e-13]) == 1.0


VECTORS = {
    "rel_tar": (rel_tar, ("source", "target", "patched")),
    "reversal_metrics": (reversal_metrics, ("source", "target", "reversed_out")),
    "progress": (progress, ("source", "target", "patched")),
    "signed_spearman": (signed_spearman, ("doses", "progress")),
    "mcqa_recovery": (mcqa_recovery, ("source", "target", "patched")),
    "kl_divergence": (kl_divergence, ("logits_p", "logits_q")),
}
BAD = {
    "empty": [], "string": "12", "number": 1.0, "none": None, "strings": ["1", "2"], "booleans": [True, False],
    "boolean among numbers": [1.0, True], "nan": [1.0, math.nan], "infinite": [math.inf, 1.0],
    "none inside": [1.0, None],
    "complex": [1.0, 1j], "nested": [[1.0], [2.0]], "matrix": np.ones((2, 1)), "scalar array": np.array(1.0),
    "boolean array": np.array([True, False]), "huge integer": [10**400, 1], "set": {1.0, 2.0}, "dict": {0: 1.0, 1: 2.0},
    "generator": (x for x in (1.0, 2.0)), "missing": pd.Series([1.0, None], dtype="Float64"), "longer": [1.0, 2.0, 3.0],
    "masked": np.ma.array([1.0, 2.0], mask=[True, False]), "bytes": b"12", "dates": np.array(["2020", "2021"], "M8[Y]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", VECTORS)
def test_bad_vectors_are_refused_by_name(name, kind):
    function, arguments = VECTORS[name]
    for argument in arguments:
        call = {other: [1.0, 2.0] for other in arguments} | {argument: BAD[kind]}
        expected = "must have the length" if kind == "longer" else rf"^{argument}\b"
        with pytest.raises(ValueError, match=expected):
            function(**call)


@pytest.mark.parametrize("bad", [None, "1", True, math.nan, math.inf, [1.0], 10**400, 1j])
@pytest.mark.parametrize("argument", ["target", "terminal_margin", "initial_margin", "tolerance"])
def test_bad_scalars_are_refused_by_name(argument, bad):
    call = {"target": 1.0, "terminal_margin": 1.0, "initial_margin": 0.0, "tolerance": 0.3} | {argument: bad}
    with pytest.raises(ValueError, match=argument):
        endpoint_metrics(**call)


@pytest.mark.parametrize("function", [rel_tar, reversal_metrics, progress])
def test_distances_beyond_float64_are_refused(function):
    with pytest.raises(ValueError, match="too far apart"):
        function([-1e308, -1e308], [1e308, 1e308], [-1e308, -1e308])


def test_negative_tolerance_and_logits_without_mass():
    with pytest.raises(ValueError, match="tolerance"):
        endpoint_metrics(target=1, terminal_margin=1, initial_margin=0, tolerance=-1e-9)
    with pytest.raises(ValueError, match="logits_q"):
        kl_divergence([0.0], [-math.inf])
    with pytest.raises(ValueError, match=r"kl_values\[1\]"):
        preservation_summary([0.0, -2e-9], [0, 0])


@pytest.mark.parametrize(
    "make", [tuple, np.array, pd.Series, lambda v: np.array(v, np.float32), lambda v: pd.Series(v, dtype="Float64")]
)
def test_every_kind_of_sequence_gives_plain_results(make):
    source, target, patched = make([0.0, 0.0]), make([3.0, 4.0]), make([3.0, 0.0])
    assert rel_tar(source, target, patched) == rel_tar([0, 0], [3, 4], [3, 0])
    results = [
        rel_tar(source, target, patched),
        reversal_metrics(source, target, patched),
        progress(source, target, patched),
        signed_spearman(make([0.0, 1.0]), patched),
        endpoint_metrics(target=np.float32(1), terminal_margin=np.int64(1), initial_margin=0, tolerance=0.5),
        preservation_summary(make([0.0, 1.0]), make([0.0, 1.0])),
        kl_divergence(source, target),
        mcqa_recovery(source, target, patched),
    ]
    json.dumps(results)
    for result in results:
        for value in result.values() if isinstance(result, dict) else [result]:
            assert type(value) in (bool, int, float, str, dict)


def test_inputs_are_left_alone():
    values = np.array([-1e-10, 0.5])
    preservation_summary(values, [0, 1])
    assert values[0] == -1e-10


def test_sums_beyond_float64_name_the_argument():
    for seeds in ([0, 0], [0, 1]):
        with pytest.raises(ValueError, match="kl_values has a sum beyond float64, its largest value is 1e[+]308"):
            preservation_summary([1e308, 1e308], seeds)
    for name in ("source", "target", "patched"):
        values = {"source": [0.0, 0.0], "target": [1.0, 1.0], "patched": [1.0, 0.0]} | {name: [1e308, 1e308]}
        with pytest.raises(ValueError, match=f"{name} has a sum beyond float64"):
            mcqa_recovery(**values)
