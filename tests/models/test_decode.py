"""Decode steps on cached keys and values against full forwards."""

import pytest
import torch

from sparse_control.models.decode import DecodeStep
from sparse_control.models.stream import full_stream
from tests.support.tiny import CONFIGS, N_LAYERS, VOCABULARY, prompt, tiny_model

LENGTHS = (24, 9, 24, 3)
PROMPTS = [prompt(length, shift=5 * index) for index, length in enumerate(LENGTHS)]


def full_states(lm, ids):
    with torch.no_grad():
        return torch.stack([state[0, -1] for state in full_stream(lm, ids[None])])


def decoded_states(step):
    return torch.stack([state[0, 0] for state in step.stream()]).detach()


@pytest.mark.parametrize("name", CONFIGS)
def test_states_and_blocks_of_one_prompt(name):
    lm = tiny_model(name)
    step, expected = DecodeStep(lm, prompt()), full_states(lm, prompt())
    assert torch.allclose(decoded_states(step), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for layer, block in enumerate(step.block_functions()):
            assert torch.allclose(block(expected[layer][None])[0], expected[layer + 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_prompts_of_different_lengths_together(name):
    lm = tiny_model(name)
    for ids, step in zip(PROMPTS, DecodeStep.batch(lm, PROMPTS), strict=True):
        assert torch.allclose(decoded_states(step), full_states(lm, ids), rtol=1e-4, atol=1e-5)


def test_graph_from_a_later_layer_on():
    stream = DecodeStep(tiny_model(), prompt()).stream(first=1)
    assert [state.requires_grad for state in stream] == [False] + [True] * N_LAYERS
    assert stream[1].is_leaf


def test_window_shorter_than_the_prompt_is_respected():
    """Tokens outside every window must not reach the last state; tokens inside must."""
    lm = tiny_model("mistral")  # 3 layers of window 5: the last token sees 12 tokens back
    near, far = prompt(), prompt()
    near[-3] = (near[-3] + 1) % VOCABULARY
    far[0] = (far[0] + 1) % VOCABULARY
    base, near, far = (decoded_states(DecodeStep(lm, ids)) for ids in (prompt(), near, far))
    assert torch.equal(far, base) and not torch.allclose(near, base)


def test_the_models_own_attention_is_put_back():
    lm = tiny_model()
    before = lm.model.config._attn_implementation
    step = DecodeStep(lm, prompt())
    lm.layout.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step.stream()
    assert lm.model.config._attn_implementation == before
