"""The residual stream against the model's own forward, and the models that are refused."""

import pytest
import torch
from torch import nn

from sparse_control.errors import UnsupportedModel
from sparse_control.models.layout import find_layout
from sparse_control.models.self_check import self_check
from sparse_control.models.sites import Site, capture_sites
from sparse_control.models.stream import full_stream, residual_stream, unwrap
from sparse_control.models.suffix import read_suffixes, suffix_logits
from tests.support.tiny import CONFIGS, N_LAYERS, WIDTH, prompt, tiny_model


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_is_accepted(name):
    self_check(tiny_model(name))


def test_last_state_is_before_the_final_norm():
    lm = tiny_model()
    stream = full_stream(lm, prompt()[None])
    own = lm.model(input_ids=prompt()[None], output_hidden_states=True).hidden_states
    assert len(stream) == N_LAYERS + 1 == len(own)
    for layer in range(N_LAYERS):
        assert torch.equal(stream[layer], own[layer])
    assert not torch.allclose(stream[-1], own[-1])
    assert torch.allclose(lm.layout.final_norm(stream[-1]), own[-1], atol=1e-6)


def test_residual_stream_is_the_last_token_of_each_row():
    lm = tiny_model()
    batch = torch.stack([prompt(), prompt(shift=3)])
    stream = residual_stream(lm, batch)
    assert stream.shape == (2, N_LAYERS + 1, WIDTH) and stream.dtype == torch.float32
    for row in range(2):
        single = torch.stack([state[0, -1] for state in full_stream(lm, batch[row][None])])
        assert torch.allclose(stream[row], single, atol=1e-5)


def test_blocks_that_return_tuples():
    lm = tiny_model()
    expected = residual_stream(lm, prompt()[None])
    handle = lm.layout.blocks[-1].register_forward_hook(lambda _module, _args, output: (output,))
    norm = lm.layout.final_norm.register_forward_pre_hook(lambda _module, args: (unwrap(args[0]),))
    try:
        assert torch.equal(residual_stream(lm, prompt()[None]), expected)
    finally:
        handle.remove()
        norm.remove()


def test_unknown_layout_is_refused_by_name():
    class Odd(nn.Module):
        config = type("Config", (), {"model_type": "odd"})

    with pytest.raises(UnsupportedModel, match="'odd' has no module 'model.layers'.*gpt2"):
        find_layout(Odd())


def test_a_final_norm_that_is_not_a_function_of_the_last_state_is_refused():
    lm = tiny_model()
    calls, real = [], lm.layout.final_norm.forward

    def drifting(hidden):
        calls.append(None)
        return real(hidden) + len(calls)

    lm.layout.final_norm.forward = drifting
    with pytest.raises(UnsupportedModel, match="tiny-llama: the captured last state, normed again"):
        self_check(lm)


def test_attention_outside_the_interface_is_refused():
    """A block whose attention ignores the cached prefix gives other logits in a decode step."""
    lm = tiny_model()
    attention, real = lm.layout.blocks[1].self_attn, lm.layout.blocks[1].self_attn.forward

    def shifted(*args, **kwargs):
        output, weights = real(*args, **kwargs)
        return output + output.shape[1] * 0.1, weights

    attention.forward = shifted
    with pytest.raises(UnsupportedModel, match="decode step on cached keys and values"):
        self_check(lm)


def test_non_finite_weights_are_refused():
    lm = tiny_model()
    with torch.no_grad():
        lm.layout.blocks[0].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(UnsupportedModel, match="not finite"):
        self_check(lm)


@pytest.mark.parametrize(
    "read",
    [
        lambda lm, ids: residual_stream(lm, ids),
        lambda lm, ids: capture_sites(lm, ids, [Site("resid", 0)]),
        lambda lm, ids: read_suffixes(lm, list(ids), 2),
        lambda lm, ids: suffix_logits(lm, read_suffixes(lm, list(ids), ids.shape[1]), 1),
    ],
    ids=["states", "sites", "cache", "readouts"],
)
def test_nothing_is_read_under_autocast(read):
    """A record says float32; autocast would make it bfloat16 and say nothing."""
    lm, ids = tiny_model(), prompt(6)[None]
    read(lm, ids)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UnsupportedModel, match="autocast to bfloat16 is on"):
        read(lm, ids)
