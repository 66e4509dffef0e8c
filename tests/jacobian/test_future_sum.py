"""The `future_sum` convention against known values and against one derivative at a time."""

import pytest
import torch
from torch import nn

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.jacobian import exact_jacobian
from sparse_control.jacobian.exact import jacobian_sum
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.models.stream import first_input_as_leaf, full_stream
from tests.support.jacobian_reference import relative
from tests.support.tiny import CONFIGS, N_LAYERS, WIDTH, prompt, tiny_model

SKIP = 16
N_POSITIONS = 24 - 1 - SKIP  # of V in a prompt of 24 tokens


def by_definition(lm, input_ids, skip_first):
    """(L, d, d): every pair of a source and a target position on its own, full sequence, then sum and mean."""
    with torch.enable_grad(), first_input_as_leaf(lm):
        stream = full_stream(lm, input_ids[None])
    positions = range(skip_first, len(input_ids) - 1)
    rows = []
    for coordinate in range(lm.width):
        total = torch.zeros(lm.n_layers, lm.width, dtype=torch.float64)
        for target in positions:
            pulled = torch.autograd.grad(stream[-1][0, target, coordinate], stream[:-1], retain_graph=True)
            for layer, gradient in enumerate(pulled):
                for source in positions:
                    total[layer] += gradient[0, source]
        rows.append(total / len(positions))
    return torch.stack(rows, dim=1)


class Cumulative(nn.Module):
    """Stands for attention: with the residual added, position t becomes the sum of the positions up to t."""

    def forward(self, hidden_states, **_others):
        return hidden_states.cumsum(1) - hidden_states, None


def blocks_of(lm, attention):
    """Every block but the second passes its input on; the second adds `attention` of it."""
    for layer, block in enumerate(lm.layout.blocks):
        block.mlp.down_proj.weight.zero_()
        block.self_attn.o_proj.weight.zero_()
        if layer == 1:
            block.input_layernorm, block.self_attn = nn.Identity().eval(), attention.eval()
    return lm


def test_cumulative_sum_has_a_known_value():
    """A fit that sees one position at a time gives I here, and one without the causal order |V| I."""
    lm = blocks_of(tiny_model(), Cumulative())
    found = future_sum_jacobian(lm, prompt(), skip_first=SKIP)
    expected = (N_POSITIONS + 1) / 2 * torch.eye(WIDTH)
    for layer in (0, 1):
        assert torch.allclose(found[layer], expected, atol=1e-5)
    assert torch.equal(found[2], torch.eye(WIDTH)), "after the sum only the identity is left"


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_definition(name):
    lm = tiny_model(name)
    ids = prompt(12)
    expected = by_definition(lm, ids, 8)
    found = future_sum_jacobian(lm, ids, skip_first=8)
    assert found.shape == (N_LAYERS, WIDTH, WIDTH)
    for layer in range(N_LAYERS):
        assert relative(found[layer] - expected[layer], expected[layer]) < 1e-4


def test_one_position_is_the_jacobian_of_that_position():
    """V = {T-2} alone: the official convention for the prompt without its last token."""
    lm = tiny_model("gpt2", dtype=torch.float64)
    found = future_sum_jacobian(lm, prompt(), skip_first=22)
    expected = exact_jacobian(lm, prompt()[:-1])
    assert relative(found - expected, expected) < 1e-12


def test_it_is_another_convention_than_the_official_one():
    lm = tiny_model()
    official = exact_jacobian(lm, prompt())
    assert relative(future_sum_jacobian(lm, prompt()) - official, official) > 0.05


@pytest.mark.parametrize("chunk", [1, 5, WIDTH, 1000])
def test_the_chunk_size_changes_nothing(chunk):
    lm = tiny_model("gpt2", dtype=torch.float64)
    expected = future_sum_jacobian(lm, prompt())
    assert relative(future_sum_jacobian(lm, prompt(), chunk=chunk) - expected, expected) < 1e-13


def test_layer_subset_in_the_order_asked():
    lm = tiny_model("gpt2", dtype=torch.float64)
    every = future_sum_jacobian(lm, prompt())
    assert torch.allclose(future_sum_jacobian(lm, prompt(), [2, 0]), every[[2, 0]], rtol=1e-12)


def test_sum_over_prompts_in_float64():
    lm = tiny_model()
    prompts = [prompt(), prompt(30, shift=3), prompt(shift=7)]
    each = [future_sum_jacobian(lm, ids, [0, 2]).double() for ids in prompts]
    found = jacobian_sum(lm, prompts, [0, 2], start=0, stop=3, jacobian=future_sum_jacobian)
    assert found.dtype == torch.float64 and torch.equal(found, each[0] + each[1] + each[2])


def test_leaves_the_model_as_it_was():
    lm = tiny_model()
    assert lm.model.config._attn_implementation == "sdpa"
    future_sum_jacobian(lm, prompt())
    lm.layout.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future_sum_jacobian(lm, prompt())
    assert lm.model.config._attn_implementation == "sdpa"
    assert sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in lm.model.modules()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": prompt(17)}, "at least skip_first [+] 2 = 18 tokens, got 17"),
        ({"input_ids": "text"}, "input_ids must be"),
        ({"layers": [3]}, r"layers\[0\] must be an integer in 0..2"),
        ({"layers": []}, "layers must name at least one"),
        ({"skip_first": -1}, "skip_first must be an integer at least 0, got -1"),
        ({"chunk": 0}, "chunk must be an integer at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        future_sum_jacobian(tiny_model(), **{"input_ids": prompt()} | arguments)


def test_the_shortest_prompt_that_counts():
    assert future_sum_jacobian(tiny_model(), prompt(18)).shape == (N_LAYERS, WIDTH, WIDTH)


def test_a_bad_prompt_is_named():
    with pytest.raises(InputError, match="corpus prompt 1: input_ids must hold at least"):
        jacobian_sum(tiny_model(), [prompt(), prompt(5)], [0], start=0, stop=2, jacobian=future_sum_jacobian)
    lm = tiny_model()
    with torch.no_grad():
        lm.layout.blocks[1].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="corpus prompt 0: the Jacobian of layer 0 is not finite"):
        jacobian_sum(lm, [prompt()], [0], start=0, stop=1, jacobian=future_sum_jacobian)


def test_training_mode_is_refused():
    lm = tiny_model()
    lm.layout.blocks[1].mlp.train()
    with pytest.raises(UnsupportedModel, match="training mode"):
        jacobian_sum(lm, [prompt()], [0], start=0, stop=1, jacobian=future_sum_jacobian)
