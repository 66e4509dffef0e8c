"""Several corpus sizes and layers in one pass against one operator each."""

import pytest
import torch

from sparse_control.jacobian import corpus_operator, exact_jacobian
from sparse_control.jacobian.operator import nested_actions
from tests.jacobian.reference import relative
from tests.tiny import WIDTH, prompt, tiny_model

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
