"""Sites: names, widths, reading, and patches that act and leave nothing behind."""

import pytest
import torch

from sparse_control.models.sites import (
    Site,
    add_at_sites,
    all_sites,
    capture_sites,
    capturing_sites,
    parse_site,
    site_width,
)
from sparse_control.models.stream import full_stream
from tests.support.tiny import CONFIGS, N_LAYERS, WIDTH, prompt, tiny_model


def hooks(lm) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in lm.model.modules())


@pytest.mark.parametrize("site", [Site("head", 5, 3), Site("mlp", 12), Site("resid", 0, position=4)])
def test_names_round_trip(site):
    assert parse_site(site.name) == site


def test_name_form():
    assert Site("head", 5, 3).name == "L05.head.3@-1"
    assert Site("mlp", 5).name == "L05.mlp@-1" and Site("resid", 5, position=2).name == "L05.resid@2"


@pytest.mark.parametrize("name", ["", "L5", "L05.head@-1", "L05.attn@-1", "L05.mlp.3@-1", "x L05.mlp@-1"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="unknown site"):
        parse_site(name)


def test_inconsistent_sites():
    with pytest.raises(ValueError, match="component must be one of"):
        Site("attn", 0)
    with pytest.raises(ValueError, match="head must be given"):
        Site("head", 0)
    with pytest.raises(ValueError, match="head must be given"):
        Site("mlp", 0, 1)


def test_all_sites_order_and_widths():
    lm = tiny_model()
    sites = all_sites(lm, ("head", "mlp", "resid"))
    assert len(sites) == len(set(sites)) == N_LAYERS * 6
    assert [site.name for site in sites[:6]] == [*(f"L00.head.{h}@-1" for h in range(4)), "L00.mlp@-1", "L00.resid@-1"]
    assert [site_width(lm, site) for site in sites[3:5]] == [8, WIDTH], "heads are query heads, not key/value heads"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_site_kind_is_alive(name):
    lm = tiny_model(name)
    plain = lm.model(input_ids=prompt()[None]).logits[:, -1]
    for site in (Site("head", 0, 0), Site("head", 2, 3), Site("mlp", 1), Site("resid", 1)):
        with add_at_sites(lm, {site: torch.linspace(-1, 2, site_width(lm, site))}, length=24):
            assert not torch.allclose(lm.model(input_ids=prompt()[None]).logits[:, -1], plain), site.name
    assert hooks(lm) == 0


@pytest.mark.parametrize("position", [-1, 0, 7, -20])
def test_a_patch_changes_its_own_position_and_later_ones_only(position):
    lm = tiny_model()
    plain = lm.model(input_ids=prompt()[None]).logits[0]
    with add_at_sites(lm, {Site("resid", 0, position=position): torch.ones(WIDTH)}, length=24):
        patched = lm.model(input_ids=prompt()[None]).logits[0]
    at = position % 24
    assert torch.equal(patched[:at], plain[:at]) and not torch.allclose(patched[at], plain[at])


def test_the_site_moves_by_exactly_the_vector():
    lm = tiny_model()
    vector = torch.linspace(-1, 1, WIDTH)
    site = Site("resid", 1)
    before = capture_sites(lm, prompt()[None], [site])[site]
    with add_at_sites(lm, {site: vector}, length=24):
        after = capture_sites(lm, prompt()[None], [site])[site]
    assert torch.equal(after, before + vector)


def test_heads_are_slices_of_the_projection_input():
    lm = tiny_model()
    seen = []
    handle = lm.layout.attention_outputs[1].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    captured = capture_sites(lm, prompt()[None], [Site("head", 1, head) for head in range(4)])
    handle.remove()
    assert torch.equal(torch.cat(list(captured.values()), dim=-1), seen[0][:, -1])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_mlp_site_is_what_the_mlp_adds_to_the_stream(name):
    """Read, it is what the stream has more behind it; patched, the stream moves by dose times vector at any dose.

    Also behind a norm that follows the MLP (Gemma 2 and 3, OLMo 2 and 3, GLM-4) and a factor on what it adds (Granite).
    """
    lm, ids = tiny_model(name, dtype=torch.float64), prompt()[None]
    vector = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        before = full_stream(lm, ids)
        for layer in range(N_LAYERS):
            site = Site("mlp", layer, position=5)
            for dose in (1.0, 2.0, 4.0, -0.5):
                with add_at_sites(lm, {site: dose * vector}, length=24):
                    moved = full_stream(lm, ids)[layer + 1][0] - before[layer + 1][0]
                assert torch.allclose(moved[5], dose * vector, atol=1e-9), (site.name, dose)
                assert torch.equal(moved[:5], torch.zeros_like(moved[:5]))
            added = capture_sites(lm, ids, [site])[site]
            with add_at_sites(lm, {site: -added}, length=24), capturing_sites(lm, [site]) as captured:
                without = full_stream(lm, ids)[layer + 1][0, 5]
            assert captured[site][:, 5].abs().max() < 1e-9
            assert torch.allclose(before[layer + 1][0, 5] - without, added[0], atol=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_head_site_is_a_slice_of_what_is_projected(name):
    """The slice moves by the vector, the projected sum linearly; a norm behind it, where there is one, bends that."""
    lm, ids = tiny_model(name, dtype=torch.float64), prompt()[None]
    site = Site("head", 1, 2)
    vector = torch.randn(lm.head_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    projection = lm.layout.attention_outputs[1]
    given = []
    handle = projection.register_forward_hook(lambda _module, args, output: given.append((args[0], output)))
    with torch.no_grad():
        lm.model(input_ids=ids, use_cache=False)
        for dose in (1.0, 2.0):
            with add_at_sites(lm, {site: dose * vector}, length=24):
                lm.model(input_ids=ids, use_cache=False)
    handle.remove()
    (plain, projected), *pushed = given
    for dose, (taken, output) in zip((1.0, 2.0), pushed, strict=True):
        moved = torch.zeros_like(plain)
        moved[:, -1, 2 * lm.head_dim : 3 * lm.head_dim] = dose * vector
        assert torch.allclose(taken - plain, moved, atol=1e-12)
    assert torch.allclose(pushed[1][1] - projected, 2 * (pushed[0][1] - projected), atol=1e-9)


def test_rows_of_a_batch_get_their_own_vectors():
    lm = tiny_model()
    batch = torch.stack([prompt(), prompt(shift=3)])
    vectors = torch.stack([torch.ones(WIDTH), -torch.ones(WIDTH)])
    with add_at_sites(lm, {Site("mlp", 0): vectors}, length=24):
        together = lm.model(input_ids=batch).logits[:, -1]
    for row in range(2):
        with add_at_sites(lm, {Site("mlp", 0): vectors[row]}, length=24):
            assert torch.allclose(lm.model(input_ids=batch[row : row + 1]).logits[0, -1], together[row], atol=1e-5)


def test_forwards_of_another_length_are_refused():
    lm = tiny_model()
    with pytest.raises(ValueError, match="the patch is for forwards of 24 tokens, got one of 10"):
        with add_at_sites(lm, {Site("mlp", 0): torch.ones(WIDTH)}, length=24):
            lm.model(input_ids=prompt(10)[None])
    assert hooks(lm) == 0


def test_no_hook_stays_after_an_exception():
    lm = tiny_model()
    with pytest.raises(RuntimeError, match="inside"), add_at_sites(lm, {Site("mlp", 0): torch.ones(WIDTH)}, length=24):
        assert hooks(lm) > 0
        raise RuntimeError("inside")
    assert hooks(lm) == 0


def test_a_bad_site_among_good_ones_registers_nothing():
    lm = tiny_model()
    additions = {Site("mlp", 0): torch.ones(WIDTH), Site("mlp", 9): torch.ones(WIDTH)}
    with pytest.raises(ValueError, match="layer 9 is outside 0..2"), add_at_sites(lm, additions, length=24):
        pass
    assert hooks(lm) == 0


@pytest.mark.parametrize("position", [24, -25])
def test_position_outside_the_prompt(position):
    lm = tiny_model()
    site = Site("mlp", 0, position=position)
    with pytest.raises(ValueError, match="outside a prompt of 24 tokens"):
        capture_sites(lm, prompt()[None], [site])
    with pytest.raises(ValueError, match="outside a prompt of 24 tokens"):
        with add_at_sites(lm, {site: torch.ones(WIDTH)}, length=24):
            pass
    assert hooks(lm) == 0


def test_foreign_hooks_survive():
    lm = tiny_model()
    handle = lm.layout.mlps[0].register_forward_hook(lambda *_: None)
    with add_at_sites(lm, {Site("mlp", 0): torch.ones(WIDTH)}, length=24):
        lm.model(input_ids=prompt()[None])
    assert hooks(lm) == 1
    handle.remove()
