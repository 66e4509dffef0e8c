"""The acceptance rule and the order of the ladder."""

import math

import pytest

from sparse_control.settings import EstimatorSettings, ValidationSettings
from sparse_control.stages.ladder import Convergence, Evidence, climb, failures, reporting, rungs, starting_size

ESTIMATOR = EstimatorSettings(
    reference=True,
    reference_layers="window",
    matrix_free=False,
    block_prompts=32,
    checkpoint_seconds=60,
    corpus_sizes=[16, 32, 64],
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
    negligible_seed_deviation=0.001,
    corpus_cosine=0.99,
    corpus_iss_difference=0.01,
)
GOOD = {"median_cosine": 0.99, "median_relative_error": 0.05, "iss_rank_difference": 0.01, "iss_seed_deviation": 0.005}


def test_order_is_rank_oversampling_corpus_power():
    order = [(r.step, r.rank, r.oversampling, r.corpus_size, r.power_iterations) for r in rungs(ESTIMATOR, 32)]
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
    attempts = climb(
        ESTIMATOR, THRESHOLDS, 32, lambda rung: Evidence(**(GOOD | {"median_cosine": rung.oversampling / 8}))
    )
    assert [attempt.rung.step for attempt in attempts] == ["rank", "rank", "oversampling"]
    assert attempts[-1].rung.rank == 8 and not attempts[-1].failed and attempts[0].failed


def test_none_passes():
    attempts = climb(ESTIMATOR, THRESHOLDS, 32, lambda rung: Evidence(**(GOOD | {"median_cosine": 0.5})))
    assert len(attempts) == 8 and all(attempt.failed for attempt in attempts)


def test_corpus_rule_takes_the_smallest_converged_size():
    sizes = [Convergence(16, 0.98, 0.2, 0.001), Convergence(32, 0.99, 0.1, 0.01), Convergence(64, None, None, None)]
    assert starting_size(sizes, THRESHOLDS) == 32


@pytest.mark.parametrize(
    "missed", [{"cosine_to_2n": math.nextafter(0.99, 0)}, {"iss_difference": 0.0100001}, {"iss_difference": math.nan}]
)
def test_corpus_rule_falls_back_on_the_largest_size(missed):
    close = {"n": 32, "cosine_to_2n": 0.995, "relative_error_to_2n": 0.05, "iss_difference": 0.001} | missed
    assert starting_size([Convergence(**close), Convergence(64, None, None, None)], THRESHOLDS) == 64


def test_reporting_rule():
    assert reporting(0.001, THRESHOLDS) == "preregistered seed"
    assert reporting(math.nextafter(0.001, 1), THRESHOLDS) == "mean of seeds"
