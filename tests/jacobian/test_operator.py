"""Matrix-free and dense operators: the same products, adjoint to each other."""

import numpy as np
import pytest
import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.jacobian import DenseOperator, corpus_operator, exact_jacobian
from sparse_control.jacobian.operator import CorpusOperator, nested_actions
from sparse_control.models.decode import DecodeStep
from tests.support.jacobian_reference import relative
from tests.support.tiny import CONFIGS, WIDTH, prompt, tiny_model

PROMPTS = [prompt(), prompt(shift=5)]
CORPUS = [prompt(shift=shift) for shift in range(4)]


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


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8, torch.int32])
def test_whole_number_blocks_give_float64_products(dtype):
    matrix = torch.full((4, 4), 0.25, dtype=torch.float64)
    product = DenseOperator(matrix).matmat(torch.eye(4, dtype=dtype))
    assert product.dtype == torch.float64 and torch.equal(product, matrix)
    assert DenseOperator(matrix).matmat(np.eye(4, dtype=np.float32)).dtype == np.float32
    assert np.array_equal(DenseOperator(matrix).matmat(np.eye(4, dtype=int)), matrix.numpy())


def test_nested_actions_are_the_means_over_the_first_prompts():
    lm = tiny_model()
    each = torch.stack([exact_jacobian(lm, ids, [1])[0].double() for ids in CORPUS])
    found = nested_actions(lm, CORPUS, 1, block().T, [4, 1, 3])
    assert set(found) == {1, 3, 4}
    for size, actions in found.items():
        expected = block().T @ each[:size].mean(0).T
        assert actions.dtype == torch.float64 and relative(actions - expected, expected) < 1e-5
    assert torch.equal(found[3], corpus_operator(lm, CORPUS[:3], 1).matmat(block()).T)


@pytest.mark.parametrize(("sizes", "message"), [([], "at least one"), ([0], r"sizes\[0\]"), ([1, 5], r"sizes\[1\]")])
def test_corpus_sizes_of_nested_actions(sizes, message):
    with pytest.raises(ValueError, match=message):
        nested_actions(tiny_model(), CORPUS, 1, block().T, sizes)


def test_ragged_prompts_and_prefixes_that_do_not_fit_give_the_same_average():
    lm = tiny_model()
    prompts = [prompt(length, shift=shift) for shift, length in enumerate((24, 9, 24, 9, 24, 5))]
    expected = sum(exact_jacobian(lm, ids, [1])[0].double() for ids in prompts) / 6 @ block()
    step_bytes = DecodeStep(lm, prompt()).nbytes
    for kept_bytes in (0, 2 * step_bytes, 1 << 30):
        operator = CorpusOperator(lm, prompts, 1, kept_bytes)
        for _ in range(3):
            found = operator.matmat(block())
            assert relative(found - expected, expected) < 1e-5
        assert sum(step.nbytes for step in operator._kept) <= kept_bytes


def test_training_mode_after_construction_is_refused():
    lm = tiny_model("gpt2")
    op = corpus_operator(lm, PROMPTS, 0)
    lm.model.train()
    with pytest.raises(UnsupportedModel, match="training mode"):
        op.rmatmat(block())


@pytest.mark.parametrize("bad", [np.ones((4, 1), dtype=complex), np.ones(4), np.ones((5, 2)), np.full((4, 1), np.nan)])
def test_bad_blocks(bad):
    with pytest.raises(ValueError, match="vectors"):
        DenseOperator(np.eye(4)).matmat(bad)


def test_bad_matrices():
    with pytest.raises(ValueError, match="two dimensions"):
        DenseOperator(np.ones(3))
    with pytest.raises(ValueError, match=r"matrix\[0\]\[0\] must be finite, got inf"):
        DenseOperator(np.full((2, 2), np.inf))


def test_bad_corpus_and_layer():
    lm = tiny_model()
    with pytest.raises(ValueError, match=r"corpus_ids\[0\] must be"):
        corpus_operator(lm, prompt().tolist(), 0)
    with pytest.raises(ValueError, match="at least one prompt"):
        corpus_operator(lm, [], 0)
    with pytest.raises(ValueError, match=r"layer must be an integer in 0..2"):
        corpus_operator(lm, PROMPTS, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_as_the_cpu():
    lm = tiny_model()
    exact, actions = exact_jacobian(lm, prompt()), nested_actions(lm, CORPUS, 1, block().T, [4])[4]
    lm.model.cuda()
    found = exact_jacobian(lm, prompt())
    assert found.device.type == "cuda" and relative(found.cpu() - exact, exact) < 1e-4
    assert relative(nested_actions(lm, CORPUS, 1, block().T, [4])[4] - actions, actions) < 1e-4
