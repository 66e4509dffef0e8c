"""Several corpus sizes and layers in one pass against one operator each."""

import pytest
import torch

from sparse_control.jacobian import corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.layers import randomized_qb_layers
from sparse_control.jacobian.operator import CorpusOperators, nested_actions
from sparse_control.jacobian.sweep import push_forward
from sparse_control.models.decode import DecodeStep
from tests.support.jacobian_reference import relative
from tests.support.tiny import WIDTH, prompt, tiny_model

PROMPTS = [prompt(shift=shift) for shift in range(4)]


def vectors(rows: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nested_actions_are_the_means_over_the_first_prompts():
    lm = tiny_model()
    each = torch.stack([exact_jacobian(lm, ids, [1])[0].double() for ids in PROMPTS])
    found = nested_actions(lm, PROMPTS, 1, vectors(), [4, 1, 3])
    assert set(found) == {1, 3, 4}
    for size, actions in found.items():
        expected = vectors() @ each[:size].mean(0).T
        assert actions.dtype == torch.float64 and relative(actions - expected, expected) < 1e-5
    assert torch.equal(found[3], corpus_operator(lm, PROMPTS[:3], 1).matmat(vectors().T).T)


@pytest.mark.parametrize(("sizes", "message"), [([], "at least one"), ([0], r"sizes\[0\]"), ([1, 5], r"sizes\[1\]")])
def test_corpus_sizes_of_nested_actions(sizes, message):
    with pytest.raises(ValueError, match=message):
        nested_actions(tiny_model(), PROMPTS, 1, vectors(), sizes)


def test_factors_of_many_layers_and_sketches_equal_one_operator_each():
    lm = tiny_model()
    found = randomized_qb_layers(
        lm, PROMPTS, [0, 2], 6, 3, power_iterations=1, seeds=(0, 5), probes=("gaussian", "rademacher")
    )
    assert len(found) == 8
    for (layer, seed, probe), factors in found.items():
        alone = randomized_qb(corpus_operator(lm, PROMPTS, layer), 6, 3, 1, seed=seed, probe=probe)
        assert relative(factors.Q @ factors.B - alone.Q @ alone.B, alone.Q @ alone.B) < 1e-4
        assert factors.truncate(2, 1).Q.shape == (WIDTH, 3) and (factors.rank, factors.oversampling) == (6, 3)


def test_ragged_prompts_and_prefixes_that_do_not_fit_give_the_same_average():
    lm = tiny_model()
    prompts = [prompt(length, shift=shift) for shift, length in enumerate((24, 9, 24, 9, 24, 5))]
    expected = sum(exact_jacobian(lm, ids, [1])[0].double() for ids in prompts) / 6 @ vectors().T
    step_bytes = DecodeStep(lm, prompt()).nbytes
    for kept_bytes in (0, 2 * step_bytes, 1 << 30):
        operators = CorpusOperators(lm, prompts, [1], kept_bytes)
        for _ in range(3):
            found = operators.mean(push_forward, {1: vectors().T})[1]
            assert relative(found - expected, expected) < 1e-5
        assert sum(step.nbytes for step in operators._kept) <= kept_bytes


@pytest.mark.parametrize(
    "arguments", [{"layers": []}, {"seeds": ()}, {"rank": 32}, {"layers": [3]}, {"corpus_ids": []}]
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="must"):
        randomized_qb_layers(**{"lm": tiny_model(), "corpus_ids": PROMPTS, "layers": [0], "rank": 4} | arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_as_the_cpu():
    lm = tiny_model()
    exact, actions = exact_jacobian(lm, prompt()), nested_actions(lm, PROMPTS, 1, vectors(), [4])[4]
    lm.model.cuda()
    found = exact_jacobian(lm, prompt())
    assert found.device.type == "cuda" and relative(found.cpu() - exact, exact) < 1e-4
    assert relative(nested_actions(lm, PROMPTS, 1, vectors(), [4])[4] - actions, actions) < 1e-4
