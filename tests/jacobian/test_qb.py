"""Randomized QB on planted operators and on a model."""

import math

import numpy as np
import pytest
import torch

from sparse_control.jacobian import DenseOperator, corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.actions import action_agreement, frobenius_error
from sparse_control.jacobian.alternatives import svd_factors
from sparse_control.jacobian.probes import random_probes
from tests.support.jacobian_reference import relative
from tests.support.tiny import WIDTH, prompt, tiny_model

D = 60


def planted(singular: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    return left @ torch.diag(singular) @ right.T


SLOW_DECAY = planted(1 / torch.arange(1, D + 1, dtype=torch.float64).sqrt())


@pytest.mark.parametrize("probe", ["gaussian", "rademacher"])
def test_planted_rank_is_recovered_to_rounding(probe):
    matrix = planted((torch.arange(D) < 8).double())
    factors = randomized_qb(DenseOperator(matrix), rank=8, oversampling=4, probe=probe)
    assert frobenius_error(matrix, factors.Q, factors.B) < 1e-12


def test_columns_are_orthonormal_and_all_kept():
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5)
    assert factors.Q.shape == (D, 15) and factors.B.shape == (15, D)
    assert torch.allclose(factors.Q.T @ factors.Q, torch.eye(15, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(factors.B, factors.Q.T @ SLOW_DECAY, atol=1e-12)


def test_pythagoras():
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5)
    whole, part = SLOW_DECAY.norm() ** 2, factors.B.norm() ** 2
    assert math.isclose(whole - part, (SLOW_DECAY - factors.Q @ factors.B).norm() ** 2, rel_tol=1e-10)


@pytest.mark.parametrize("power_iterations", [0, 2])
def test_nested_ranks_equal_separate_runs(power_iterations):
    op = DenseOperator(SLOW_DECAY)
    large = randomized_qb(op, rank=30, oversampling=6, power_iterations=power_iterations, seed=3)
    small = randomized_qb(op, rank=12, oversampling=6, power_iterations=power_iterations, seed=3)
    assert torch.allclose(large.truncate(12).Q, small.Q, atol=1e-10)
    assert torch.allclose(large.truncate(12).B, small.B, atol=1e-10)
    assert torch.allclose(large.truncate(16, 2).Q, small.Q, atol=1e-10), "the same r by another split"


def test_error_falls_with_rank_and_is_zero_at_full_width():
    large = randomized_qb(DenseOperator(SLOW_DECAY), rank=D - 1, oversampling=10)
    assert large.r == D
    errors = [frobenius_error(SLOW_DECAY, one.Q, one.B) for one in (large.truncate(k, 0) for k in range(5, D + 1, 5))]
    assert all(later < earlier for earlier, later in zip(errors, errors[1:])) and errors[-1] < 1e-12


def test_slow_decay_needs_power_iterations():
    """q = 0 stays well above the best rank-k error; two power iterations come close to it."""
    best = svd_factors(SLOW_DECAY, 10)
    floor = frobenius_error(SLOW_DECAY, best.Q, best.B)
    plain, powered = (
        frobenius_error(SLOW_DECAY, f.Q, f.B)
        for f in (randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=0, power_iterations=q) for q in (0, 2))
    )
    assert plain > 1.1 * floor and powered < 1.05 * floor


def test_many_power_iterations_do_not_diverge():
    matrix = planted(10.0 ** -torch.linspace(0, 12, D, dtype=torch.float64))
    factors = randomized_qb(DenseOperator(matrix), rank=20, oversampling=5, power_iterations=12)
    assert torch.allclose(factors.Q.T @ factors.Q, torch.eye(25, dtype=torch.float64), atol=1e-10)
    assert frobenius_error(matrix, factors.Q, factors.B) < 1e-4


def test_power_iterations_without_orthonormalisation_lose_the_small_directions():
    """The same range by bare products: its columns fall together, and what is small against the largest is gone."""
    matrix = planted(10.0 ** -torch.linspace(0, 12, D, dtype=torch.float64))
    bare = random_probes(D, 25, seed=0, probe="gaussian")
    for _ in range(6):
        bare = matrix @ (matrix.T @ (matrix @ bare)) / matrix.norm() ** 3
    Q = torch.linalg.qr(bare).Q
    factors = randomized_qb(DenseOperator(matrix), rank=20, oversampling=5, power_iterations=6)
    lost, kept = (frobenius_error(matrix, one, one.T @ matrix) for one in (Q, factors.Q))
    assert lost > 100 * kept


@pytest.mark.parametrize("seed", range(5))
def test_fresh_probes_bound_the_error_and_old_ones_do_not(seed):
    """||(I - Q Q^T) J|| <= 10 sqrt(2/pi) max_i ||(I - Q Q^T) J w_i|| but for one case in 10^n, n fresh probes w_i
    (Halko, Martinsson, Tropp 2011, 4.3). The probes that made Q see no error at all."""
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5, seed=seed)
    residual = SLOW_DECAY - factors.Q @ (factors.Q.T @ SLOW_DECAY)
    true = torch.linalg.matrix_norm(residual, 2).item()

    def bound(probes):
        return 10 * math.sqrt(2 / math.pi) * (residual @ probes).norm(dim=0).max().item()

    fresh = random_probes(D, 6, seed=1000 + seed, probe="gaussian")
    assert true <= bound(fresh) < 60 * true
    assert bound(random_probes(D, 15, seed=seed, probe="gaussian")) < 1e-12 * true


def test_mean_error_within_the_expected_bound():
    """E||J - QB||_F <= sqrt(1 + k/(p-1)) tail_k (Halko, Martinsson, Tropp 2011, theorem 10.5)."""
    k, p = 10, 5
    tail = torch.linalg.svdvals(SLOW_DECAY)[k:].norm().item()
    errors = []
    for seed in range(40):
        factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=k, oversampling=p, seed=seed)
        errors.append((SLOW_DECAY - factors.Q @ factors.B).norm().item())
    assert np.mean(errors) <= math.sqrt(1 + k / (p - 1)) * tail


def test_no_factorisation_beats_the_svd():
    best = svd_factors(SLOW_DECAY, 10, 5)
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5, power_iterations=3)
    assert frobenius_error(SLOW_DECAY, factors.Q, factors.B) >= frobenius_error(SLOW_DECAY, best.Q, best.B)


def test_apply_and_reduced_coordinates():
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5)
    h = torch.randn(2, 4, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    applied, reduced = factors.apply(h), factors.reduce(h)
    assert torch.allclose(applied, h @ (factors.Q @ factors.B).T, atol=1e-12)
    cosine = torch.nn.functional.cosine_similarity
    assert torch.allclose(cosine(applied[0], applied[1], dim=-1), cosine(reduced[0], reduced[1], dim=-1), atol=1e-12)
    assert isinstance(factors.apply(h.numpy()), np.ndarray) and factors.apply(h.float()).dtype == torch.float32
    with pytest.raises(ValueError, match=f"last dimension {D}"):
        factors.apply(torch.ones(3))


def test_same_seed_same_bits_and_other_seed_other_probes():
    first, again, other = (randomized_qb(DenseOperator(SLOW_DECAY), rank=5, oversampling=2, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.Q, again.Q) and torch.equal(first.B, again.B) and not torch.equal(first.Q, other.Q)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer in 1..59"),
        ({"rank": D}, "rank must be an integer in 1..59, got 60"),
        ({"rank": 5, "oversampling": -1}, "oversampling must be an integer at least 0, got -1"),
        ({"rank": 5, "power_iterations": -1}, "power_iterations must be an integer in 0..100, got -1"),
        ({"rank": 5, "probe": "uniform"}, "probe must be one of gaussian, rademacher, got 'uniform'"),
        ({"rank": 5, "seed": -1}, "seed must be an integer at least 0"),
        ({"rank": 5, "seed": True}, "seed must be an integer at least 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        randomized_qb(DenseOperator(SLOW_DECAY), **arguments)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (np.eye(4), "op must be an operator of this package, got ndarray; wrap a matrix in DenseOperator"),
        (DenseOperator(np.eye(4)).to_scipy(), "op must be an operator of this package"),
        (DenseOperator(np.ones((4, 5))), r"op must be square, got shape \(4, 5\)"),
    ],
)
def test_not_an_operator(op, message):
    with pytest.raises(ValueError, match=message):
        randomized_qb(op, rank=2)


def test_truncation_bounds():
    factors = randomized_qb(DenseOperator(SLOW_DECAY), rank=10, oversampling=5)
    for rank, message in ((0, "rank must be an integer in 1..60"), (11, "at most r = 15, got 11 [+] 5")):
        with pytest.raises(ValueError, match=message):
            factors.truncate(rank)


def test_matrix_free_equals_dense_on_a_model():
    lm = tiny_model("gpt2", dtype=torch.float64)
    prompts = [prompt(), prompt(shift=9)]
    matrix = sum(exact_jacobian(lm, ids, [1])[0] for ids in prompts) / 2
    dense = randomized_qb(DenseOperator(matrix), rank=8, oversampling=4, power_iterations=1)
    free = randomized_qb(corpus_operator(lm, prompts, 1), rank=8, oversampling=4, power_iterations=1)
    assert relative(free.Q @ free.B - dense.Q @ dense.B, dense.B) < 1e-9
    assert free.Q.shape == (WIDTH, 12)


def test_action_agreement_known_values():
    direct = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    estimated = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0]])
    agreement = action_agreement(direct, estimated)
    assert math.isclose(agreement.mean_cosine, 2 / 3, rel_tol=1e-9) and math.isclose(
        agreement.median_cosine, 1.0, rel_tol=1e-9
    )
    assert math.isclose(agreement.mean_relative_error, math.sqrt(2) / 3, rel_tol=1e-9)
    assert agreement.median_relative_error == 0.0
    with pytest.raises(ValueError, match="must both be"):
        action_agreement(direct, estimated[:2])
