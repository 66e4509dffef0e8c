"""Exact Jacobians against full-sequence autograd, on every supported architecture."""

import pytest
import torch

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.jacobian import exact_jacobian
from sparse_control.jacobian.exact import jacobian_sum
from tests.support.jacobian_reference import full_sequence_jacobian, relative
from tests.support.tiny import CONFIGS, N_LAYERS, WIDTH, prompt, tiny_model


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_full_sequence_autograd(name):
    lm = tiny_model(name)
    expected = full_sequence_jacobian(lm, prompt())
    found = exact_jacobian(lm, prompt())
    assert found.shape == (N_LAYERS, WIDTH, WIDTH) and found.dtype == torch.float32
    for layer in range(N_LAYERS):
        assert relative(found[layer] - expected[layer], expected[layer]) < 1e-4
        identity = torch.eye(WIDTH)
        assert relative(expected[layer] - identity, identity) > 0.1, "a Jacobian near the identity proves nothing"


def test_float64_agrees_to_rounding():
    lm = tiny_model("gpt2", dtype=torch.float64)  # RMS norms of the library compute in float32 whatever the dtype
    expected = full_sequence_jacobian(lm, prompt())
    assert relative(exact_jacobian(lm, prompt()) - expected, expected) < 1e-12


def test_central_difference_in_float64():
    """A derivative-free check: perturb h^1 of the last token and rerun the blocks."""
    from sparse_control.models.decode import DecodeStep

    lm = tiny_model("gpt2", dtype=torch.float64)
    step = DecodeStep(lm, prompt())
    blocks, start = step.block_functions(), step.stream()[1].detach()[0]
    direction = torch.sin(torch.arange(WIDTH, dtype=torch.float64))[None]

    def final(hidden):
        for block in blocks[1:]:
            hidden = block(hidden)
        return hidden

    with torch.no_grad():
        difference = (final(start + 1e-5 * direction) - final(start - 1e-5 * direction)) / 2e-5
    assert relative(exact_jacobian(lm, prompt(), [1])[0] @ direction[0] - difference[0], difference[0]) < 1e-7


def test_layer_subset_in_the_order_asked():
    lm = tiny_model()
    every = exact_jacobian(lm, prompt())
    assert torch.allclose(exact_jacobian(lm, prompt(), [2, 0]), every[[2, 0]], rtol=1e-5, atol=1e-6)


def test_repeats_bit_for_bit():
    lm = tiny_model()
    assert torch.equal(exact_jacobian(lm, prompt()), exact_jacobian(lm, prompt()))


def test_leaves_the_model_as_it_was():
    lm = tiny_model()
    before = {
        name: len(module._forward_hooks) + len(module._forward_pre_hooks) for name, module in lm.model.named_modules()
    }
    attention = lm.model.config._attn_implementation
    logits = lm.model(input_ids=prompt()[None]).logits
    exact_jacobian(lm, prompt())
    after = {
        name: len(module._forward_hooks) + len(module._forward_pre_hooks) for name, module in lm.model.named_modules()
    }
    assert before == after and lm.model.config._attn_implementation == attention
    assert torch.equal(lm.model(input_ids=prompt()[None]).logits, logits)
    assert all(parameter.grad is None for parameter in lm.model.parameters())


def test_training_mode_of_one_submodule_is_refused():
    lm = tiny_model()
    lm.layout.blocks[1].mlp.train()
    with pytest.raises(UnsupportedModel, match="model.layers.1.mlp.*training mode"):
        exact_jacobian(lm, prompt())


def test_inference_mode_is_refused():
    lm = tiny_model()
    with torch.inference_mode(), pytest.raises(UnsupportedModel, match="inference_mode"):
        exact_jacobian(lm, prompt())


def test_offloaded_parameters_are_refused():
    lm = tiny_model()
    lm.layout.blocks[0].mlp.to("meta")
    with pytest.raises(UnsupportedModel, match="offloaded"):
        exact_jacobian(lm, prompt())


def test_low_precision_warns():
    with pytest.warns(UserWarning, match="bfloat16 are coarse"):
        exact_jacobian(tiny_model(dtype=torch.bfloat16), prompt())


@pytest.mark.parametrize("layers", [[3], [-1]])
def test_layer_outside_the_model(layers):
    with pytest.raises(ValueError, match=r"layers\[0\] must be an integer in 0..2"):
        exact_jacobian(tiny_model(), prompt(), layers)


@pytest.mark.parametrize(
    "ids", [torch.tensor([1]), torch.ones(2, 3, dtype=torch.long), torch.ones(3), "text", [1, None], [1, -2]]
)
def test_bad_input_ids(ids):
    with pytest.raises(ValueError, match="input_ids must"):
        exact_jacobian(tiny_model(), ids)


def test_an_id_outside_the_vocabulary():
    with pytest.raises(ValueError, match=r"ids in 0..99, got 1..100"):
        exact_jacobian(tiny_model(), [1, 100])


def test_one_layer_must_be_a_sequence():
    with pytest.raises(ValueError, match="layers must be a sequence, got 1"):
        exact_jacobian(tiny_model(), prompt(), 1)


def test_layer_index_is_what_enters_the_block():
    """`Site("resid", l)` is h^(l+1): its response is J[l + 1]."""
    from sparse_control.models.sites import Site, add_at_sites
    from sparse_control.models.stream import full_stream

    lm = tiny_model("gpt2", dtype=torch.float64)
    vector = torch.sin(torch.arange(WIDTH, dtype=torch.float64))

    def final(scale):
        with torch.no_grad(), add_at_sites(lm, {Site("resid", 0): scale * vector}, length=24):
            return full_stream(lm, prompt()[None])[-1][0, -1]

    response = (final(1e-5) - final(-1e-5)) / 2e-5
    assert relative(exact_jacobian(lm, prompt(), [1])[0] @ vector - response, response) < 1e-7


def test_sum_over_a_corpus_in_parts():
    lm = tiny_model()
    prompts = [prompt(shift=shift) for shift in range(5)]
    each = torch.stack([full_sequence_jacobian(lm, ids)[[0, 2]] for ids in prompts]).double()
    seen = []
    found = jacobian_sum(lm, prompts, [0, 2], start=0, stop=2)
    assert relative(found - each[:2].sum(0), each[:2].sum(0)) < 1e-6
    whole = jacobian_sum(lm, prompts, [0, 2], start=2, stop=5, total=found, progress=lambda n, total: seen.append(n))
    assert whole is found and seen == [3, 4, 5]
    assert relative(whole - each.sum(0), each.sum(0)) < 1e-6


def test_averages_do_not_chain():
    """A product of averaged factors is another operator than the average of products."""
    lm = tiny_model()
    prompts = [prompt(shift=shift) for shift in range(4)]
    each = torch.stack([exact_jacobian(lm, ids) for ids in prompts]).double()
    factors = torch.stack([torch.linalg.solve(j[1].T, j[0].T).T for j in each])  # J^0 = J^1 D_0
    chained = each[:, 1].mean(0) @ factors.mean(0)
    found = jacobian_sum(lm, prompts, [0], start=0, stop=4)[0] / 4
    assert relative(chained - found, found) > 1e-2


def test_non_finite_jacobian_names_prompt_and_layer():
    lm = tiny_model()
    with torch.no_grad():
        lm.layout.blocks[1].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(InputError, match="corpus prompt 0: the Jacobian of layer 0 is not finite"):
        jacobian_sum(lm, [prompt(), prompt()], [0], start=0, stop=2)


@pytest.mark.slow
def test_default_model_against_full_sequence_rows(default_model):
    """A few rows of the real model's Jacobian, every layer, by full-sequence autograd."""
    from sparse_control.models.stream import first_input_as_leaf, full_stream

    ids = default_model.encode("The lighthouse keeper wrote in the log that the storm had passed by morning. " * 8)[
        :128
    ]
    found = exact_jacobian(default_model, ids)
    with torch.enable_grad(), first_input_as_leaf(default_model):
        stream = full_stream(default_model, ids[None])
    for coordinate in (0, 100, 575):
        pulled = torch.autograd.grad(stream[-1][0, -1, coordinate], stream[:-1], retain_graph=True)
        for layer in range(default_model.n_layers):
            row = pulled[layer][0, -1]
            assert relative(found[layer, coordinate] - row, row) < 1e-4
