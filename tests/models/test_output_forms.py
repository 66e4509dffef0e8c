"""Modules hand their states on in several forms: tensors or tuples, by position or by name. All are one model."""

import pytest
import torch

from sparse_control.models.sites import Site, add_at_sites, capture_sites, site_width
from sparse_control.models.stream import full_stream, unwrap
from tests.support.tiny import prompt, tiny_model

SITES = (Site("head", 1, 2), Site("mlp", 1), Site("resid", 0), Site("resid", 1, position=3))


def in_tuples(lm):
    """Every block and MLP returns (state, None), and what follows takes the state out of it."""
    for block in lm.layout.blocks:
        block.register_forward_pre_hook(lambda _module, args: (unwrap(args[0]), *args[1:]))
        block.register_forward_hook(lambda _module, _args, output: (output, None))
    lm.layout.final_norm.register_forward_pre_hook(lambda _module, args: (unwrap(args[0]),))
    return lm


def by_name(lm):
    """Every block gets its state as `hidden_states=`, and no positional argument."""
    for block in lm.layout.blocks:
        block.register_forward_pre_hook(
            lambda _module, args, kwargs: ((), kwargs | {"hidden_states": args[0]}), with_kwargs=True
        )
    return lm


@pytest.mark.parametrize("form", [in_tuples, by_name])
def test_states_and_patches_are_the_same_in_every_form(form):
    plain, other = tiny_model(), form(tiny_model())
    batch = torch.stack([prompt(), prompt(shift=3), prompt(shift=9)])
    with torch.no_grad():
        for state, expected in zip(full_stream(other, batch), full_stream(plain, batch), strict=True):
            assert state.shape == expected.shape and torch.equal(state, expected)
    captured, expected = (capture_sites(lm, batch, SITES) for lm in (other, plain))
    additions = {site: torch.linspace(-1, 2, site_width(plain, site)) for site in SITES}
    logits = []
    for lm in (other, plain):
        with torch.no_grad(), add_at_sites(lm, additions, length=24):
            logits.append(lm.model(input_ids=batch).logits)
    assert all(torch.equal(captured[site], expected[site]) for site in SITES)
    assert torch.equal(*logits) and not torch.equal(logits[0], plain.model(input_ids=batch).logits)
