"""Cached, batched decode steps against one full forward per prompt and patch."""

import pytest
import torch

from sparse_control.models.sites import Site, add_at_sites, capture_sites, site_width
from sparse_control.protocol.prompts import CachedPrompts, Prompts, read_prompts
from tests.support.pairs import hook_count, plain_logits
from tests.support.tiny import CONFIGS, VOCABULARY, WIDTH, prompt, tiny_model

IDS = [prompt(12).tolist(), prompt(7, 5).tolist(), prompt(12, 9).tolist(), prompt(2, 1).tolist()]
SITES = (Site("head", 0, 3), Site("mlp", 1), Site("resid", 1), Site("head", 2, 0))


def some_additions(lm, n: int, rows: int, sites=SITES) -> dict:
    generator = torch.Generator().manual_seed(1)
    return {site: torch.randn(n, rows, site_width(lm, site), generator=generator) for site in sites}


@torch.no_grad()
def reference(lm, ids, additions, row) -> torch.Tensor:
    with add_at_sites(lm, {site: value[row] for site, value in additions.items()}, length=len(ids)):
        return plain_logits(lm, ids)


@pytest.mark.parametrize("kind", [Prompts, CachedPrompts])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_batches_equal_single_forwards(name, kind):
    lm = tiny_model(name, dtype=torch.float64)
    prompts = kind(lm, IDS, SITES)
    additions = {site: value.double() for site, value in some_additions(lm, 4, 3).items()}
    patched = prompts.patched_logits(additions)
    assert patched.shape == (4, 3, VOCABULARY)
    for index, ids in enumerate(IDS):
        assert torch.allclose(prompts.logits[index], plain_logits(lm, ids), atol=1e-6)
        captured = capture_sites(lm, torch.tensor([ids]), SITES)
        for site in SITES:
            assert torch.allclose(prompts.activations[site][index], captured[site][0], atol=1e-6)
        for row in range(3):
            here = {site: value[index] for site, value in additions.items()}
            assert torch.allclose(patched[index, row], reference(lm, ids, here, row), atol=1e-5)
    assert hook_count(lm) == 0


def test_float32_within_the_stated_tolerance():
    lm = tiny_model()
    additions = some_additions(lm, 4, 5)
    plain, cached = (kind(lm, IDS, SITES).patched_logits(additions) for kind in (Prompts, CachedPrompts))
    assert (plain - cached).abs().max() < 1e-4


def test_more_rows_than_one_forward_takes(monkeypatch):
    lm = tiny_model()
    prompts = CachedPrompts(lm, IDS)
    additions = some_additions(lm, 4, 7)
    whole = prompts.patched_logits(additions)
    monkeypatch.setattr("sparse_control.protocol.prompts.MAXIMUM_ROWS", 8)
    assert torch.allclose(prompts.patched_logits(additions), whole, atol=1e-5)


def test_the_cache_is_not_used_up():
    lm = tiny_model()
    prompts = CachedPrompts(lm, IDS)
    additions = some_additions(lm, 4, 2)
    first = prompts.patched_logits(additions)
    prompts.patched_logits({site: 2 * value for site, value in additions.items()})
    assert torch.equal(prompts.patched_logits(additions), first)


def test_attention_setting_is_put_back_on_any_exit():
    lm = tiny_model()
    prompts = CachedPrompts(lm, IDS)
    before = lm.model.config._attn_implementation
    with pytest.raises(ValueError, match="direction has width 5"):
        prompts.patched_logits({Site("mlp", 0): torch.zeros(4, 2, 5)})
    assert lm.model.config._attn_implementation == before
    assert hook_count(lm) == 0


@pytest.mark.parametrize("kind", [Prompts, CachedPrompts])
def test_gradients_by_central_difference(kind):
    lm = tiny_model("gpt2", dtype=torch.float64)  # no float32 inside
    prompts = kind(lm, IDS[:3], SITES)
    directions = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = prompts.gradients(SITES, directions)
    for site in SITES:
        step = torch.randn(3, 1, site_width(lm, site), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        up, down = (prompts.patched_logits({site: sign * 1e-5 * step})[:, 0] for sign in (1, -1))
        slope = ((up - down) * directions).sum(-1) / 2e-5
        assert torch.allclose((gradients[site] * step[:, 0]).sum(-1), slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Prompts, CachedPrompts])
def test_taking_some_prompts(kind):
    lm = tiny_model()
    prompts = kind(lm, IDS, SITES)
    taken = prompts.take(torch.tensor([2, 0]))
    additions = some_additions(lm, 4, 2)
    expected = prompts.patched_logits(additions)[[2, 0]]
    assert torch.allclose(taken.patched_logits({s: v[[2, 0]] for s, v in additions.items()}), expected, atol=1e-5)
    assert torch.equal(taken.logits, prompts.logits[[2, 0]]) and len(taken) == 2
    assert len(prompts) == 4
    assert len(prompts.take(torch.tensor([], dtype=torch.long))) == 0


EARLIER = {
    "from the end": (Site("head", 0, 3, position=-2), Site("mlp", 1), Site("resid", 1, position=-2)),
    "from the start": (Site("mlp", 1, position=1), Site("head", 2, 0, position=1)),
    "both": (Site("head", 1, 1, position=-1), Site("resid", 0, position=0), Site("mlp", 2, position=-2)),
}


@pytest.mark.parametrize("where", EARLIER)
@pytest.mark.parametrize("name", CONFIGS)
def test_earlier_positions_run_on_the_prefix_before_them(name, where):
    lm, sites = tiny_model(name, dtype=torch.float64), EARLIER[where]
    cached, plain = (kind(lm, IDS, sites) for kind in (CachedPrompts, Prompts))
    additions = {site: value.double() for site, value in some_additions(lm, 4, 3, sites).items()}
    assert torch.allclose(cached.logits, plain.logits, atol=1e-6)
    assert all(torch.allclose(cached.activations[site], plain.activations[site], atol=1e-6) for site in sites)
    assert torch.allclose(cached.patched_logits(additions), plain.patched_logits(additions), atol=1e-5)
    index = torch.tensor([3, 0, 1])
    here = {site: value[index] for site, value in additions.items()}
    assert torch.allclose(cached.take(index).patched_logits(here), plain.patched_logits(additions)[index], atol=1e-5)


def test_a_suffix_longer_than_a_window():
    """Later tokens of the suffix see fewer cached ones than the first."""
    lm = tiny_model("mistral")
    ids, site = [prompt(20).tolist(), prompt(16, 3).tolist()], Site("mlp", 0, position=-8)
    additions = some_additions(lm, 2, 2, (site,))
    cached, plain = (kind(lm, ids, (site,)).patched_logits(additions) for kind in (CachedPrompts, Prompts))
    assert (plain - cached).abs().max() < 1e-4


def test_patches_start_at_their_block_from_the_unpatched_states():
    lm = tiny_model()
    prompts = read_prompts(lm, IDS, SITES)
    calls = []
    handles = [
        block.mlp.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
        for layer, block in enumerate(lm.layout.blocks)
    ]
    prompts.patched_logits(some_additions(lm, 4, 2, SITES[1:3]))
    for handle in handles:
        handle.remove()
    assert calls == [1, 2]
    assert not any("forward" in vars(block) for block in lm.layout.blocks)


def test_states_that_are_not_kept(monkeypatch):
    lm = tiny_model()
    expected = read_prompts(lm, IDS, SITES).patched_logits(some_additions(lm, 4, 2, SITES[1:3]))
    monkeypatch.setattr("sparse_control.models.suffix.KEPT_BYTES", 0)
    found = read_prompts(lm, IDS, SITES).patched_logits(some_additions(lm, 4, 2, SITES[1:3]))
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_failing_forward_leaves_the_blocks_as_they_were():
    lm = tiny_model()
    prompts = read_prompts(lm, IDS, SITES)
    handle = lm.layout.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prompts.patched_logits(some_additions(lm, 4, 2, SITES[1:3]))
    handle.remove()
    assert not any("forward" in vars(block) for block in lm.layout.blocks) and hook_count(lm) == 0


def test_bad_prompts():
    lm = tiny_model()
    with pytest.raises(ValueError, match="none given"):
        Prompts(lm, [])
    with pytest.raises(ValueError, match=r"prompts\[1\] must hold at least two token ids"):
        CachedPrompts(lm, [[1, 2], [3]])
    with pytest.raises(ValueError, match="position 3 is outside a prompt of 2 tokens"):
        Prompts(lm, [[1, 2]], (Site("mlp", 0, position=3),))
    for position in (-2, 0):
        with pytest.raises(ValueError, match="outside the tokens that are run again"):
            CachedPrompts(lm, [[1, 2]]).patched_logits({Site("mlp", 0, position=position): torch.zeros(1, 1, WIDTH)})
    with pytest.raises(ValueError, match="layer 7 is outside"):
        CachedPrompts(lm, [[1, 2]], (Site("mlp", 7),))
