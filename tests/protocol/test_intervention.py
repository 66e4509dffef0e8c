"""Patching: exact, additive, alive at every kind of site, and gone afterwards."""

import numpy as np
import pytest
import torch

from sparse_control.models.sites import Site, capture_sites, site_width
from sparse_control.protocol import Intervention, patched
from sparse_control.protocol.patching import pair_contrasts
from tests.support.pairs import hook_count, make_pair, plain_logits
from tests.support.tiny import N_LAYERS, prompt, tiny_model

KINDS = [
    Site("head", 1, 3), Site("head", 0, 0, position=4), Site("mlp", 2), Site("mlp", 1, position=-3),
    Site("resid", 0), Site("resid", 1, position=5), Site("resid", N_LAYERS - 1),
]  # fmt: skip
LAST = Site("resid", N_LAYERS - 1)


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


@pytest.fixture(scope="module")
def pair():
    return make_pair(0)


def vector(lm, site: Site, seed: int = 0) -> torch.Tensor:
    return torch.randn(site_width(lm, site), generator=torch.Generator().manual_seed(seed))


def fixed(lm, *sites: Site, strengths=None) -> Intervention:
    strengths = strengths or tuple(1.0 + i for i in range(len(sites)))
    return Intervention(sites, strengths, tuple(vector(lm, site, seed) for seed, site in enumerate(sites)))


@pytest.mark.parametrize("site", KINDS, ids=lambda site: site.name)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_neox"])
def test_every_kind_of_site_is_alive(name, site, pair):
    lm = tiny_model(name)
    before = plain_logits(lm, pair.source_ids)
    with patched(lm, fixed(lm, site), pair=pair):
        assert (plain_logits(lm, pair.source_ids) - before).abs().max() > 1e-4
    assert torch.equal(plain_logits(lm, pair.source_ids), before)
    assert hook_count(lm) == 0


@pytest.mark.parametrize("site", KINDS, ids=lambda site: site.name)
def test_the_site_moves_by_dose_times_strength_times_direction(lm, pair, site):
    intervention = fixed(lm, site, strengths=(-1.5,))
    ids = torch.tensor([pair.source_ids])
    before = capture_sites(lm, ids, [site])[site][0]
    for dose in (1.0, 0.5, -2.0):
        with patched(lm, intervention, dose=dose, pair=pair):
            moved = capture_sites(lm, ids, [site])[site][0] - before
        # capturing hooks run after the patch and so see it
        assert torch.allclose(moved, dose * -1.5 * vector(lm, site), atol=1e-5)


@pytest.mark.parametrize("rule", ["P", "F"])
def test_dose_zero_is_bit_equal(lm, pair, rule):
    sites = (Site("head", 0, 1), Site("mlp", 1), LAST)
    intervention = Intervention(sites, (1.0, 2.0, 3.0)) if rule == "P" else fixed(lm, *sites)
    before = plain_logits(lm, pair.source_ids)
    with patched(lm, intervention, dose=0.0, pair=pair):
        assert torch.equal(plain_logits(lm, pair.source_ids), before)
        assert hook_count(lm) == 0


def test_last_residual_site_reaches_the_target(lm, pair):
    target = plain_logits(lm, pair.target_ids)
    with patched(lm, Intervention((LAST,), (1.0,)), pair=pair):
        reached = plain_logits(lm, pair.source_ids)
    assert torch.allclose(reached, target, atol=1e-4)
    with patched(lm, Intervention((LAST,), (1.0,)), pair=pair, reverse=True):
        back = plain_logits(lm, pair.target_ids)
    assert torch.allclose(back, plain_logits(lm, pair.source_ids), atol=1e-4)


def test_residual_sites_at_every_differing_position_reach_the_target(lm):
    pair = make_pair(3, positions=(2, 5))
    sites = tuple(Site("resid", 0, position=p) for p in range(2, 9))
    with patched(lm, Intervention(sites, (1.0,) * len(sites)), pair=pair):
        reached = plain_logits(lm, pair.source_ids)
    assert torch.allclose(reached, plain_logits(lm, pair.target_ids), atol=1e-4)


def test_opposite_patches_cancel(lm, pair):
    site = Site("mlp", 1)
    intervention = fixed(lm, site)
    before = plain_logits(lm, pair.source_ids)
    with patched(lm, intervention, pair=pair), patched(lm, intervention, pair=pair, reverse=True):
        assert torch.allclose(plain_logits(lm, pair.source_ids), before, atol=1e-5)
    with patched(lm, intervention, dose=0.5, pair=pair), patched(lm, intervention, dose=0.5, pair=pair):
        twice = plain_logits(lm, pair.source_ids)
    with patched(lm, intervention, pair=pair):
        assert torch.allclose(plain_logits(lm, pair.source_ids), twice, atol=1e-5)


def test_a_head_moves_its_own_slice_alone(lm, pair):
    """Grouped queries: heads are counted by query heads (4), not by key/value heads (2)."""
    ids = torch.tensor([pair.source_ids])
    heads = [Site("head", 1, head) for head in range(lm.n_heads)]
    before = capture_sites(lm, ids, heads)
    with patched(lm, fixed(lm, heads[3]), pair=pair):
        after = capture_sites(lm, ids, heads)
    for head in heads[:3]:
        assert torch.equal(after[head], before[head])
    assert not torch.equal(after[heads[3]], before[heads[3]])


def test_every_row_of_a_batch_is_patched(lm, pair):
    with torch.no_grad(), patched(lm, fixed(lm, Site("resid", 1)), pair=pair):
        batch = lm.model(input_ids=torch.tensor([pair.source_ids] * 3), use_cache=False).logits[:, -1]
        single = plain_logits(lm, pair.source_ids)
    assert torch.allclose(batch, single.expand(3, -1), atol=1e-4)


def test_without_a_pair_every_forward_is_patched_from_its_own_end(lm):
    intervention = fixed(lm, Site("resid", 1))
    for length in (5, 8):
        pair = make_pair(1, length=length, positions=(2,))
        with patched(lm, intervention, pair=pair):
            expected = plain_logits(lm, pair.source_ids)
        with patched(lm, intervention):
            assert torch.equal(plain_logits(lm, pair.source_ids), expected)
            assert torch.equal(plain_logits(lm, pair.source_ids), expected)
    assert hook_count(lm) == 0


@pytest.mark.parametrize("with_pair", [True, False])
def test_no_hook_stays_after_an_exception(lm, pair, with_pair):
    before = plain_logits(lm, pair.source_ids)
    with pytest.raises(RuntimeError, match="inside"):
        with patched(lm, fixed(lm, *KINDS), pair=pair if with_pair else None):
            plain_logits(lm, pair.source_ids)
            raise RuntimeError("inside")
    assert hook_count(lm) == 0
    assert torch.equal(plain_logits(lm, pair.source_ids), before)


def test_a_failing_forward_leaves_nothing(lm, pair):
    def fail(*_):
        raise RuntimeError("in a hook")

    handle = lm.layout.blocks[1].register_forward_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="in a hook"):
            with patched(lm, fixed(lm, Site("mlp", 0))):
                plain_logits(lm, pair.source_ids)
        assert hook_count(lm) == 1
    finally:
        handle.remove()


def test_foreign_hooks_and_the_model_stay_as_they_are(lm, pair):
    calls = []
    handle = lm.layout.mlps[1].register_forward_hook(lambda *_: calls.append(1))
    state = {name: value.clone() for name, value in lm.model.state_dict().items()}
    try:
        with patched(lm, fixed(lm, Site("mlp", 1)), pair=pair):
            plain_logits(lm, pair.source_ids)
        plain_logits(lm, pair.source_ids)
    finally:
        handle.remove()
    assert len(calls) == 2
    assert all(torch.equal(value, state[name]) for name, value in lm.model.state_dict().items())
    assert not lm.model.training


def test_contrast_is_target_minus_source(lm, pair):
    site = Site("head", 2, 1)
    both = (pair.source_ids, pair.target_ids)
    source, target = (capture_sites(lm, torch.tensor([ids]), [site])[site] for ids in both)
    assert torch.allclose(pair_contrasts(lm, pair, [site])[site], target - source, atol=1e-6)


def test_own_vectors_of_any_kind(lm, pair):
    site = Site("mlp", 0)
    values = vector(lm, site)
    expected = None
    for form in (values, values.numpy(), values.tolist(), np.float64(values.numpy())):
        with patched(lm, Intervention((site,), np.array([2.0]), [form]), pair=pair):
            logits = plain_logits(lm, pair.source_ids)
        assert expected is None or torch.equal(logits, expected)
        expected = logits


@pytest.mark.parametrize(
    ("support", "strengths", "directions", "message"),
    [
        ((Site("mlp", 0),), (1.0, 2.0), None, "strengths has length 2, support has 1"),
        ((Site("mlp", 0),), (float("nan"),), None, r"strengths\[0\] must be a finite number, got nan"),
        ((Site("mlp", 0),), (10**400,), None, r"strengths\[0\] must be a finite number"),
        ((Site("mlp", 0),), (True,), None, r"strengths\[0\] must be a finite number, got True"),
        ((Site("mlp", 0),), ("x",), None, r"strengths\[0\] must be a finite number, got 'x'"),
        ((Site("mlp", 0), Site("mlp", 0)), (1.0, 1.0), None, "holds site L00.mlp@-1 twice"),
        (("L00.mlp@-1",), (1.0,), None, "support must hold Site objects, got 'L00.mlp@-1'"),
        ((Site("mlp", 0),), (1.0,), (), "directions has length 0, support has 1"),
        (
            (Site("mlp", 0),),
            (1.0,),
            (torch.full((32,), float("nan")),),
            r"directions\[0\] of site L00.mlp@-1 must be finite",
        ),
        (
            (Site("mlp", 0),),
            (1.0,),
            (torch.zeros(2, 32),),
            r"directions\[0\] of site L00.mlp@-1 must have one dimension",
        ),
    ],
)
def test_bad_interventions(support, strengths, directions, message):
    with pytest.raises(ValueError, match=message):
        Intervention(support, strengths, directions)


@pytest.mark.parametrize(
    ("site", "width", "message"),
    [
        (Site("mlp", 3), 32, "layer 3 is outside 0..2"),
        (Site("head", 0, 4), 8, "head 4 is outside 0..3"),
        (Site("resid", 0, position=9), 32, "position 9 is outside a prompt of 9 tokens"),
        (Site("resid", 0, position=-10), 32, "position -10 is outside a prompt of 9 tokens"),
        (Site("head", 0, 1), 32, "direction has width 32, the site has 8"),
    ],
)
@pytest.mark.parametrize("rule", ["P", "F"])
def test_bad_sites_register_nothing(lm, pair, site, width, message, rule):
    directions = (torch.zeros(32), torch.ones(width)) if rule == "F" else None
    if rule == "P" and "width" in message:
        pytest.skip("rule P has no width of its own")
    with pytest.raises(ValueError, match=message):
        with patched(lm, Intervention((Site("mlp", 0), site), (1.0, 1.0), directions), pair=pair):
            pass
    assert hook_count(lm) == 0


def test_position_outside_a_prompt_without_a_pair(lm, pair):
    with pytest.raises(ValueError, match="position 20 is outside a prompt of 9 tokens"):
        with patched(lm, fixed(lm, Site("mlp", 0, position=20))):
            plain_logits(lm, pair.source_ids)
    assert hook_count(lm) == 0


def test_bad_calls(lm, pair):
    with pytest.raises(ValueError, match="pair is missing"):
        with patched(lm, Intervention((Site("mlp", 0),), (1.0,))):
            pass
    for dose in (float("inf"), 10**400, "1x", None, True):
        with pytest.raises(ValueError, match="dose must be a"):
            with patched(lm, fixed(lm, Site("mlp", 0)), dose=dose, pair=pair):
                pass
    assert hook_count(lm) == 0


def steering(lm, position=-1):
    return Intervention((Site("resid", 1, position=position),), (3.0,), (torch.sin(torch.arange(lm.width)),))


@pytest.mark.parametrize("position", [-1, 2])
def test_generation_patches_the_prompt_alone(position):
    """With a cache, the patched prompt goes on as its patched keys and values say; later tokens are left alone."""
    lm = tiny_model()
    ids = prompt(8)[None]
    with patched(lm, steering(lm, position)), torch.no_grad():
        cache = lm.model(input_ids=ids, use_cache=True).cache
        inside = lm.model(input_ids=ids[:, :1], cache=cache, use_cache=True).logits
    with patched(lm, steering(lm, position)), torch.no_grad():
        cache = lm.model(input_ids=ids, use_cache=True).cache
    with torch.no_grad():
        outside = lm.model(input_ids=ids[:, :1], cache=cache, use_cache=True).logits
    assert torch.equal(inside, outside)


def test_the_base_model_is_patched_too():
    lm = tiny_model()
    with torch.no_grad():
        plain = lm.model.base_model(input_ids=prompt(8)[None]).last_hidden_state
        with patched(lm, steering(lm)):
            assert not torch.allclose(lm.model.base_model(input_ids=prompt(8)[None]).last_hidden_state, plain)


def test_padded_batches_are_refused():
    lm = tiny_model()
    mask = torch.ones(1, 8, dtype=torch.long)
    mask[0, -1] = 0
    with patched(lm, steering(lm)), pytest.raises(ValueError, match="patches need unpadded prompts"):
        lm.model(input_ids=prompt(8)[None], attention_mask=mask)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())
