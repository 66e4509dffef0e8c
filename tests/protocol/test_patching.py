"""A patch acts on its prompt however the prompt is read and gone on with, or the forward is refused."""

import pytest
import torch
from transformers import DynamicCache

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.sites import Site, add_at_sites, site_width
from sparse_control.protocol import Intervention, patched
from tests.support.pairs import hook_count, make_pair, plain_logits
from tests.support.tiny import WIDTH, prompt, tiny_model

PROMPT = prompt(9)
N_TOKENS = 6
POSITIONS = (-1, -3, 2)


@pytest.fixture(scope="module")
def lm():
    return quiet(tiny_model())


@pytest.fixture(scope="module")
def helper():
    return quiet(tiny_model(seed=3))


def quiet(lm):
    """Texts of any length, and batches without padding."""
    lm.model.generation_config.eos_token_id, lm.model.generation_config.pad_token_id = None, 0
    return lm


def pushed(lm, position, size=3.0):
    sites = (Site("head", 0, 2, position), Site("mlp", 1, None, position), Site("resid", 1, None, position))
    generator = torch.Generator().manual_seed(1)
    return Intervention(
        sites, (1.0, 1.2, 1.5), tuple(torch.randn(site_width(lm, site), generator=generator) * size for site in sites)
    )


@torch.no_grad()
def by_full_forwards(lm, intervention, ids, n=N_TOKENS):
    """The plain way: every step reads the whole text anew, patched at absolute positions of the prompt."""
    tokens, length = list(map(int, ids)), len(ids)
    additions = {
        Site(site.component, site.layer, site.head, site.position % length): strength * direction.float()
        for site, strength, direction in zip(
            intervention.support, intervention.strengths, intervention.directions, strict=True
        )
    }
    for _ in range(n):
        with add_at_sites(lm, additions, length=len(tokens)):
            tokens.append(int(lm.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[length:]


def generated(lm, ids, **ways):
    done = lm.model.generate(ids, do_sample=False, max_new_tokens=N_TOKENS, min_new_tokens=N_TOKENS, **ways)
    return done[:, ids.shape[1] :].tolist()


WAYS = {
    "with a cache": {},
    "without a cache": {"use_cache": False},
    "in chunks": {"prefill_chunk_size": 4},
    "in chunks, the last of one token": {"prefill_chunk_size": 8},
    "with a static cache": {"cache_implementation": "static"},
    "with looked-up drafts": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2"])
def test_any_way_of_generating_gives_the_text_of_the_plain_way(name, position):
    lm = quiet(tiny_model(name))
    intervention, before = pushed(lm, position), hook_count(lm)
    expected = by_full_forwards(lm, intervention, PROMPT)
    if name == "llama":
        assert expected != generated(lm, PROMPT[None])[0]
    for way, options in WAYS.items():
        with patched(lm, intervention):
            assert generated(lm, PROMPT[None], **options) == [expected], way
    assert hook_count(lm) == before and "generate" not in vars(lm.model)


@pytest.mark.parametrize("position", POSITIONS)
def test_drafts_of_another_model_or_of_its_own(lm, helper, position):
    expected = [by_full_forwards(lm, pushed(lm, position), PROMPT)]
    for assistant in (helper, lm):
        with patched(lm, pushed(lm, position)):
            assert generated(lm, PROMPT[None], assistant_model=assistant.model) == expected
    with pytest.raises(UnsupportedModel, match="assistant_early_exit leaves blocks out"):
        with patched(lm, pushed(lm, position)):
            generated(lm, PROMPT[None], assistant_early_exit=1)
    assert lm.model.config.num_hidden_layers == lm.n_layers


def test_batches_and_beams(lm):
    both = torch.stack([PROMPT, prompt(9, 5)])
    intervention = pushed(lm, -1)
    expected = [by_full_forwards(lm, intervention, ids) for ids in both]
    for use_cache in (True, False):
        with patched(lm, intervention):
            assert generated(lm, both, use_cache=use_cache) == expected
    absolute = pushed(lm, 8)
    texts = []
    for chosen, use_cache in ((intervention, True), (intervention, False), (absolute, True), (absolute, False)):
        with patched(lm, chosen):
            texts.append(generated(lm, both, num_beams=3, use_cache=use_cache))
    assert texts == texts[:1] * 4


def test_embeddings_instead_of_ids(lm):
    intervention = pushed(lm, -1)
    embeddings = lm.model.get_input_embeddings()(PROMPT[None])
    with patched(lm, intervention):
        done = lm.model.generate(inputs_embeds=embeddings, do_sample=False, max_new_tokens=N_TOKENS)
    assert done[0].tolist() == by_full_forwards(lm, intervention, PROMPT)


def test_a_pair_is_patched_where_its_prompt_ends_in_any_forward(lm):
    pair = make_pair(0)
    intervention = pushed(lm, -1)
    ids = torch.tensor([pair.source_ids])
    expected = by_full_forwards(lm, intervention, pair.source_ids)
    for way, options in WAYS.items():
        with patched(lm, intervention, pair=pair):
            assert generated(lm, ids, **options) == [expected], way
    tokens = list(pair.source_ids)
    with patched(lm, intervention, pair=pair):
        for _ in range(N_TOKENS):  # a loop of one's own
            tokens.append(int(plain_logits(lm, tokens).argmax()))
    assert tokens[9:] == expected


def test_a_loop_of_ones_own_whose_prompt_has_no_known_end_is_refused(lm):
    """Position -1 would wander to every new token."""
    tokens = PROMPT.tolist()
    with patched(lm, pushed(lm, -1)):
        tokens.append(int(plain_logits(lm, tokens).argmax()))
        with pytest.raises(ValueError, match="reads the last prompt again with more tokens behind it"):
            plain_logits(lm, tokens)
    tokens = PROMPT.tolist()
    with patched(lm, pushed(lm, 2)):
        for _ in range(N_TOKENS):
            tokens.append(int(plain_logits(lm, tokens).argmax()))
    assert tokens[9:] == by_full_forwards(lm, pushed(lm, 2), PROMPT)


def test_a_context_of_one_pair_does_not_pass_another_prompt_untouched(lm):
    pair, other = make_pair(0), make_pair(1, length=5, positions=(2,))
    for ids in (other.source_ids, (*other.source_ids, *pair.source_ids)):
        with pytest.raises(
            ValueError, match=f"patches a prompt of 9 tokens, and a forward of {len(ids)} reads another"
        ):
            with patched(lm, pushed(lm, -1), pair=pair):
                plain_logits(lm, ids)
    with pytest.raises(ValueError, match="patches a prompt of 9 tokens, got one of 5"):
        with patched(lm, pushed(lm, -1), pair=pair):
            generated(lm, torch.tensor([other.source_ids]))
    assert hook_count(lm) == 0


def test_a_second_prompt_within_generate_is_refused(lm):
    """The unconditional prompt of classifier-free guidance."""
    with pytest.raises(ValueError, match="reads another"):
        with patched(lm, pushed(lm, -1)):
            generated(lm, PROMPT[None], guidance_scale=2.0)
    with pytest.raises(ValueError, match="reads another"):
        with patched(lm, pushed(lm, -1)):
            generated(lm, PROMPT[None], guidance_scale=2.0, negative_prompt_ids=prompt(9, 4)[None])


def test_keys_and_values_from_outside_are_refused(lm):
    with torch.no_grad():
        cache = lm.model(input_ids=PROMPT[None], use_cache=True).cache
    with pytest.raises(ValueError, match="keys and values that were not read within the context"):
        with patched(lm, pushed(lm, -1)), torch.no_grad():
            lm.model(input_ids=PROMPT[None, :1], cache=cache, use_cache=True)
    cache = DynamicCache(config=lm.model.config)
    with torch.no_grad():
        lm.model(input_ids=PROMPT[None, :5], cache=cache, use_cache=True)
    with pytest.raises(ValueError, match="not read within the context"):
        with patched(lm, pushed(lm, 2)):
            generated(lm, PROMPT[None], cache=cache)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"cache_implementation": "static"}])
def test_padded_batches_are_refused_in_every_way_of_generating(lm, side, options):
    short = torch.cat([torch.zeros(2, dtype=torch.long), prompt(7, 5)] if side == "left" else
                      [prompt(7, 5), torch.zeros(2, dtype=torch.long)])  # fmt: skip
    ids = torch.stack([PROMPT, short])
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    if side == "right":
        mask = mask.flip(1)
    with pytest.raises(ValueError, match="unpadded prompts|hide tokens"):
        with patched(lm, pushed(lm, -1)):
            generated(lm, ids, attention_mask=mask, **options)
    assert hook_count(lm) == 0


def test_masks_and_positions_by_hand(lm):
    ids = PROMPT[None]
    lower = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    with patched(lm, pushed(lm, -1)), torch.no_grad():
        expected = lm.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        assert torch.equal(lm.model(input_ids=ids, position_ids=torch.arange(9)[None]).logits, expected)
        for hidden in ({"attention_mask": lower}, {"position_ids": torch.arange(1, 10)[None]}):
            with pytest.raises(ValueError, match="patches need"):
                lm.model(input_ids=ids, **hidden)


def test_nested_contexts_generate_with_the_sum(lm):
    first, second = pushed(lm, -1), pushed(lm, 2)
    sites, strengths = first.support + second.support, first.strengths + second.strengths
    together = Intervention(sites, strengths, first.directions + second.directions)
    expected = [by_full_forwards(lm, together, PROMPT)]
    for use_cache in (True, False):
        with patched(lm, first), patched(lm, second):
            assert generated(lm, PROMPT[None], use_cache=use_cache) == expected
    expected = [by_full_forwards(lm, first, PROMPT)]
    with patched(lm, first):
        assert generated(lm, PROMPT[None]) == expected
    assert "generate" not in vars(lm.model)


def test_a_context_in_which_nothing_ran_says_so(lm):
    with pytest.raises(InputError, match="no forward of the model ran"):
        with patched(lm, pushed(lm, -1)):
            pass
    with patched(lm, pushed(lm, -1), dose=0.0), patched(lm, Intervention((), (), ())):
        pass
    with pytest.raises(RuntimeError, match="own"):
        with patched(lm, pushed(lm, -1)):
            raise RuntimeError("own")
    assert hook_count(lm) == 0


def test_without_a_prompt_there_is_nothing_to_patch(lm):
    with pytest.raises(ValueError, match="generate: inputs: give the prompt"):
        with patched(lm, pushed(lm, -1)):
            lm.model.generate(max_new_tokens=1)
    assert WIDTH == lm.width
