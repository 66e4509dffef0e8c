"""The acceptance rule and the order of the ladder."""

import math

import pytest

from sparse_control.settings import EstimatorSettings, ValidationSettings
from sparse_control.stages.ladder import Evidence, climb, failures, rungs

ESTIMATOR = EstimatorSettings(
    reference=True,
    corpus_sizes=[32, 64],
    snapshots=[32],
    ranks=[8, 16],
    oversampling=[4, 8],
    power_iterations=[0, 1],
    probe="gaussian",
    sketch_seeds=[0, 1, 2],
)
THRESHOLDS = ValidationSettings(
    activations=64,
    seed=0,
    median_cosine=0.99,
    median_relative_error=0.05,
    iss_rank_difference=0.01,
    iss_seed_deviation=0.005,
)
GOOD = dict(median_cosine=0.99, median_relative_error=0.05, iss_rank_difference=0.01, iss_seed_deviation=0.005)


def test_order_is_rank_oversampling_corpus_power():
    order = [(r.step, r.rank, r.oversampling, r.corpus_size, r.power_iterations) for r in rungs(ESTIMATOR)]
    assert order == [
        ("rank", 8, 4, 32, 0),
        ("rank", 16, 4, 32, 0),
        ("oversampling", 8, 8, 32, 0),
        ("oversampling", 16, 8, 32, 0),
        ("corpus size", 8, 8, 64, 0),
        ("corpus size", 16, 8, 64, 0),
        ("power iterations", 8, 8, 64, 1),
        ("power iterations", 16, 8, 64, 1),
    ]


def test_thresholds_themselves_pass():
    assert failures(Evidence(**GOOD), THRESHOLDS) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"median_cosine": math.nextafter(0.99, 0)}, "median cosine"),
        ({"median_relative_error": math.nextafter(0.05, 1)}, "median relative error"),
        ({"iss_rank_difference": 0.0100001}, "iss rank difference"),
        ({"iss_seed_deviation": 0.0051}, "iss seed deviation"),
    ],
)
def test_each_criterion_is_needed_and_read_unrounded(change, words):
    (failure,) = failures(Evidence(**(GOOD | change)), THRESHOLDS)
    assert failure.startswith(words)


@pytest.mark.parametrize("name", GOOD)
def test_nan_never_passes(name):
    assert failures(Evidence(**(GOOD | {name: float("nan")})), THRESHOLDS)


def test_stops_at_the_first_that_passes():
    attempts = climb(ESTIMATOR, THRESHOLDS, lambda rung: Evidence(**(GOOD | {"median_cosine": rung.oversampling / 8})))
    assert [attempt.rung.step for attempt in attempts] == ["rank", "rank", "oversampling"]
    assert attempts[-1].rung.rank == 8 and not attempts[-1].failed and attempts[0].failed


def test_none_passes():
    attempts = climb(ESTIMATOR, THRESHOLDS, lambda rung: Evidence(**(GOOD | {"median_cosine": 0.5})))
    assert len(attempts) == 8 and all(attempt.failed for attempt in attempts)
