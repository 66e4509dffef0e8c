"""Matrix-free and dense operators: the same products, adjoint to each other."""

import numpy as np
import pytest
import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.jacobian import DenseOperator, corpus_operator, exact_jacobian
from tests.support.jacobian_reference import relative
from tests.support.tiny import CONFIGS, WIDTH, prompt, tiny_model

PROMPTS = [prompt(), prompt(shift=5)]


def block(columns: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(WIDTH, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CONFIGS)
def test_products_equal_the_exact_matrix(name):
    lm = tiny_model(name)
    matrix = sum(exact_jacobian(lm, ids, [1])[0].double() for ids in PROMPTS) / 2
    op = corpus_operator(lm, PROMPTS, 1)
    assert relative(op.matmat(block()) - matrix @ block(), matrix @ block()) < 1e-5
    assert relative(op.rmatmat(block()) - matrix.T @ block(), matrix.T @ block()) < 1e-5


def test_identity_gives_the_matrix_and_its_transpose():
    lm = tiny_model("gpt2", dtype=torch.float64)
    op = corpus_operator(lm, PROMPTS, 0)
    identity = torch.eye(WIDTH, dtype=torch.float64)
    matrix = sum(exact_jacobian(lm, ids, [0])[0] for ids in PROMPTS) / 2
    assert relative(op.matmat(identity) - matrix, matrix) < 1e-10
    assert relative(op.rmatmat(identity).T - matrix, matrix) < 1e-10


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_adjoint(dtype, tolerance):
    op = corpus_operator(tiny_model("gpt2", dtype=dtype), PROMPTS, 0)
    left, right = block(1, seed=1), block(1, seed=2)
    forward, backward = (left.T @ op.matmat(right)).item(), (op.rmatmat(left).T @ right).item()
    assert abs(forward - backward) < tolerance * abs(forward)


def test_scipy_view():
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    view = DenseOperator(matrix).to_scipy()
    vector = np.arange(6.0)
    assert np.allclose(view @ vector, matrix @ vector) and np.allclose(view.T @ vector, matrix.T @ vector)


def test_kind_and_dtype_follow_the_argument():
    op = DenseOperator(np.eye(4))
    assert isinstance(op.matmat(np.ones((4, 2))), np.ndarray)
    assert op.matmat(torch.ones(4, 2)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.int32])
def test_whole_number_blocks_give_float64_products(dtype):
    matrix = torch.full((4, 4), 0.25, dtype=torch.float64)
    product = DenseOperator(matrix).matmat(torch.eye(4, dtype=dtype))
    assert product.dtype == torch.float64 and torch.equal(product, matrix)
    assert DenseOperator(matrix).matmat(np.eye(4, dtype=np.float32)).dtype == np.float32
    assert np.array_equal(DenseOperator(matrix).matmat(np.eye(4, dtype=int)), matrix.numpy())


def test_training_mode_after_construction_is_refused():
    lm = tiny_model("gpt2")
    op = corpus_operator(lm, PROMPTS, 0)
    lm.model.train()
    with pytest.raises(UnsupportedModel, match="training mode"):
        op.rmatmat(block())


@pytest.mark.parametrize("bad", [np.ones((4, 1), dtype=complex), np.ones(4), np.ones((5, 2)), np.full((4, 1), np.nan)])
def test_bad_blocks(bad):
    with pytest.raises(ValueError, match="vectors must"):
        DenseOperator(np.eye(4)).matmat(bad)


def test_bad_matrices():
    with pytest.raises(ValueError, match="two dimensions"):
        DenseOperator(np.ones(3))
    with pytest.raises(ValueError, match="matrix must be finite"):
        DenseOperator(np.full((2, 2), np.inf))


def test_bad_corpus_and_layer():
    lm = tiny_model()
    with pytest.raises(ValueError, match=r"corpus_ids\[0\] must be"):
        corpus_operator(lm, prompt().tolist(), 0)
    with pytest.raises(ValueError, match="at least one prompt"):
        corpus_operator(lm, [], 0)
    with pytest.raises(ValueError, match=r"layer must be an integer in 0..2"):
        corpus_operator(lm, PROMPTS, 3)
