"""Decode steps on cached keys and values against full forwards."""

import pytest
import torch

from sparse_control.models.decode import decode_logits, read_prefixes
from sparse_control.models.sites import Site, add_at_sites
from tests.tiny import CONFIGS, VOCABULARY, WIDTH, prompt, tiny_model

LENGTHS = (24, 9, 24, 3)
PROMPTS = [prompt(length, shift=5 * index) for index, length in enumerate(LENGTHS)]


def full_logits(lm, ids):
    return lm.model(input_ids=ids[None]).logits[0, -1]


@pytest.mark.parametrize("name", CONFIGS)
def test_one_prompt(name):
    lm = tiny_model(name)
    decoded = decode_logits(lm, read_prefixes(lm, [prompt()]))
    assert torch.allclose(decoded[0, 0], full_logits(lm, prompt()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_of_different_lengths_with_several_rows_each(name):
    lm = tiny_model(name)
    decoded = decode_logits(lm, read_prefixes(lm, PROMPTS), rows=3)
    assert decoded.shape == (4, 3, VOCABULARY)
    for index, ids in enumerate(PROMPTS):
        for row in range(3):
            assert torch.allclose(decoded[index, row], full_logits(lm, ids), rtol=1e-4, atol=1e-5)


def test_taking_prompts():
    lm = tiny_model()
    prefixes = read_prefixes(lm, PROMPTS)
    taken = decode_logits(lm, prefixes.take(torch.tensor([3, 0])))
    assert torch.allclose(taken, decode_logits(lm, prefixes)[[3, 0]], atol=1e-5)


def test_rows_are_patched_each_by_its_own_vector():
    lm = tiny_model()
    vectors = torch.randn(4 * 2, WIDTH, generator=torch.Generator().manual_seed(0))
    site = Site("mlp", 1)
    with add_at_sites(lm, {site: vectors}, length=1):
        together = decode_logits(lm, read_prefixes(lm, PROMPTS), rows=2).view(8, -1)
    for index in range(8):
        ids = PROMPTS[index // 2]
        with add_at_sites(lm, {site: vectors[index]}, length=len(ids)):
            assert torch.allclose(together[index], full_logits(lm, ids), rtol=1e-4, atol=1e-4)


def test_window_shorter_than_the_prompt_is_respected():
    """Tokens outside every window must not reach the last state; tokens inside must."""
    lm = tiny_model("mistral")  # 3 layers of window 5: the last token sees 12 tokens back
    near, far = prompt(), prompt()
    near[-3] = (near[-3] + 1) % VOCABULARY
    far[0] = (far[0] + 1) % VOCABULARY
    base, near, far = (decode_logits(lm, read_prefixes(lm, [ids])) for ids in (prompt(), near, far))
    assert torch.equal(far, base) and not torch.allclose(near, base)


def test_the_models_own_attention_is_put_back():
    lm = tiny_model()
    before = lm.model.config._attn_implementation
    with pytest.raises(ValueError, match="layer 9"), add_at_sites(lm, {Site("mlp", 9): torch.ones(WIDTH)}, length=1):
        pass
    broken = read_prefixes(lm, [prompt()])
    lm.layout.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decode_logits(lm, broken)
    assert lm.model.config._attn_implementation == before
