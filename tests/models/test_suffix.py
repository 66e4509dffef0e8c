"""The last tokens of prompts on cached keys and values against full forwards."""

import pytest
import torch

from sparse_control.models.sites import Site, add_at_sites, site_width
from sparse_control.models.suffix import read_suffixes, run_unpatched, suffix_logits
from tests.support.tiny import CONFIGS, prompt, tiny_model

PROMPTS = [prompt(24), prompt(9, 5), prompt(24, 7), prompt(6, 3)]


@pytest.mark.parametrize("length", [1, 3, 6])
@pytest.mark.parametrize("name", CONFIGS)
def test_patched_rows_of_ragged_prompts(name, length):
    """6 tokens are the whole of the last prompt and more than a window."""
    lm = tiny_model(name, dtype=torch.float64)
    suffixes, unpatched = run_unpatched(lm, read_suffixes(lm, PROMPTS, length))
    for site in (Site("resid", 1, position=-length), Site("head", 0, 2, position=-length), Site("mlp", 2)):
        shape = 4, 2, site_width(lm, site)
        vectors = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad(), add_at_sites(lm, {site: vectors.flatten(0, 1)}, length=length):
            found = suffix_logits(lm, suffixes, 2, first=site.layer)
        for index, ids in enumerate(PROMPTS):
            for row in range(2):
                with torch.no_grad(), add_at_sites(lm, {site: vectors[index, row]}, length=len(ids)):
                    expected = lm.model(input_ids=ids[None]).logits[0, -1]
                assert torch.allclose(found[index, row], expected, atol=1e-5)
                if site.position == -1:  # a window may hide an earlier one from the last block
                    assert not torch.allclose(found[index, row], unpatched[index], atol=1e-3)


def test_taking_prompts():
    lm = tiny_model()
    suffixes, logits = run_unpatched(lm, read_suffixes(lm, PROMPTS, 2))
    taken = suffix_logits(lm, suffixes.take(torch.tensor([3, 0])), 1, first=1)[:, 0]
    assert torch.allclose(taken, logits[[3, 0]], atol=1e-5)
