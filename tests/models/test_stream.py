"""The residual stream and decode steps against the model's own forward."""

import pytest
import torch
from torch import nn

from sparse_control.errors import UnsupportedModel
from sparse_control.models.layout import find_layout
from sparse_control.models.self_check import self_check
from sparse_control.models.sites import Site
from sparse_control.models.stream import DecodeStep, full_stream, residual_stream, unwrap
from tests.tiny import CONFIGS, N_LAYERS, VOCABULARY, WIDTH, prompt, tiny_model


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_is_accepted(name):
    self_check(tiny_model(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_decode_step_gives_the_full_forward_logits(name):
    lm = tiny_model(name)
    plain = lm.model(input_ids=prompt()[None]).logits[:, -1]
    assert torch.allclose(DecodeStep(lm, prompt()).logits(), plain, rtol=1e-4, atol=1e-5)


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


def test_window_shorter_than_the_prompt_is_respected():
    """Tokens outside every window must not reach the last state; tokens inside must."""
    lm = tiny_model("mistral")  # 3 layers of window 5: the last token sees 13 tokens back
    near, far = prompt(), prompt()
    near[-3] = (near[-3] + 1) % VOCABULARY
    far[0] = (far[0] + 1) % VOCABULARY
    base = DecodeStep(lm, prompt()).logits()
    assert torch.equal(DecodeStep(lm, far).logits(), base)
    assert not torch.allclose(DecodeStep(lm, near).logits(), base)


def test_batched_additions_equal_single_ones():
    lm = tiny_model()
    step = DecodeStep(lm, prompt())
    site = Site("mlp", 1)
    vectors = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    together = step.logits({site: vectors})
    for row in range(4):
        assert torch.allclose(together[row], step.logits({site: vectors[row : row + 1]})[0], atol=1e-5)
    assert not torch.allclose(together[0], together[1])


def test_site_gradients_by_central_difference():
    lm = tiny_model("gpt2", dtype=torch.float64)
    step = DecodeStep(lm, prompt())
    direction = torch.zeros(VOCABULARY, dtype=torch.float64)
    direction[3], direction[4] = 1.0, -1.0
    for site in (Site("head", 1, 2), Site("mlp", 0), Site("resid", 2)):
        gradient = step.site_gradients([site], direction)[site]
        vector = torch.cos(torch.arange(len(gradient), dtype=torch.float64))[None]
        change = (step.logits({site: 1e-5 * vector}) - step.logits({site: -1e-5 * vector}))[0] @ direction / 2e-5
        assert abs(float(gradient @ vector[0] - change)) < 1e-7 * max(1.0, abs(float(change)))


@pytest.mark.parametrize(
    ("additions", "message"),
    [
        ({Site("mlp", 0): torch.zeros(2, WIDTH), Site("mlp", 1): torch.zeros(3, WIDTH)}, "one batch size"),
        ({Site("mlp", 0, position=0): torch.zeros(2, WIDTH)}, "position -1"),
        ({Site("mlp", 0): torch.zeros(2, WIDTH + 1)}, "width 33, the site has 32"),
        ({Site("mlp", 3): torch.zeros(2, WIDTH)}, "layer 3 is outside 0..2"),
        ({Site("head", 0, 4): torch.zeros(2, 8)}, "head 4 is outside 0..3"),
    ],
)
def test_bad_additions(additions, message):
    with pytest.raises(ValueError, match=message):
        DecodeStep(tiny_model(), prompt()).logits(additions)


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
