"""Generation under an intervention against a loop without any cache, and against the library's own `generate`."""

import inspect
from itertools import permutations

import numpy as np
import pytest
import torch

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.sites import Site, add_at_sites, site_width
from sparse_control.protocol import generation
from sparse_control.protocol.generation import generate
from sparse_control.protocol.intervention import Intervention
from tests.support.pairs import hook_count, make_pair
from tests.support.tiny import CONFIGS, VOCABULARY, WIDTH, prompt, tiny_model

PROMPT = prompt(9)
N_TOKENS = 12
SITES = (Site("head", 0, 2), Site("mlp", 1), Site("resid", 2))
NOTHING = Intervention((), ())


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


def pushed(lm, sites=SITES, size=3.0, seed=0):
    """An intervention with random directions, strong enough to change what is generated."""
    generator = torch.Generator().manual_seed(seed)
    directions = [torch.randn(site_width(lm, site), generator=generator) * size for site in sites]
    return Intervention(tuple(sites), tuple(1.0 + index / 4 for index in range(len(sites))), tuple(directions))


def along_ones(position):
    """The residual stream of the first block, pushed at one position."""
    return Intervention((Site("resid", 0, None, position),), (1.0,), (torch.ones(WIDTH) * 4,))


@torch.no_grad()
def by_full_forwards(lm, intervention, ids, dose, phases, n=N_TOKENS):
    """Slow reference: every step reads the whole text anew, patched at absolute positions."""
    tokens, length = list(map(int, ids)), len(ids)
    for _ in range(n):
        additions = {}
        for site, strength, direction in zip(intervention.support, intervention.strengths, intervention.directions):
            places = [site.position % length] if phases in ("prompt", "both") else []
            places += range(length, len(tokens)) if phases in ("generation", "both") else []
            for place in places:
                moved = Site(site.component, site.layer, site.head, place)
                additions[moved] = (dose * strength * direction).float()
        with add_at_sites(lm, additions, length=len(tokens)):
            logits = lm.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
        if tokens[-1] == lm.model.generation_config.eos_token_id:
            break
    return tuple(tokens[length:])


@torch.no_grad()
def by_library(lm, ids, n=N_TOKENS):
    output = lm.model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, max_new_tokens=n, pad_token_id=0
    )
    return tuple(output[0, len(ids) :].tolist())


@pytest.mark.parametrize("name", CONFIGS)
def test_dose_zero_is_the_unpatched_model(name):
    lm = tiny_model(name)
    (zero,) = generate(lm, pushed(lm), PROMPT, [0.0], max_tokens=N_TOKENS)
    (plain,) = generate(lm, NOTHING, PROMPT, [1.0], max_tokens=N_TOKENS)
    assert zero.token_ids == plain.token_ids == by_library(lm, PROMPT)
    assert zero.log_probabilities == plain.log_probabilities


@pytest.mark.parametrize("phases", generation.PHASES)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mistral"])
def test_phases_agree_with_full_forwards(name, phases):
    lm = tiny_model(name)
    sites = (Site("head", 0, 2, 3), Site("mlp", 1, None, -1), Site("resid", 2, None, -2))
    intervention = pushed(lm, sites)
    before = hook_count(lm)
    for dose in (-1.0, 0.5, 2.0):
        (done,) = generate(lm, intervention, PROMPT, [dose], phases=phases, max_tokens=N_TOKENS)
        assert done.token_ids == by_full_forwards(lm, intervention, PROMPT, dose, phases)
    assert hook_count(lm) == before


def test_the_phases_differ(lm):
    texts = {
        phases: generate(lm, pushed(lm), PROMPT, [2.0], phases=phases, max_tokens=N_TOKENS)[0].token_ids
        for phases in generation.PHASES
    }
    assert len(set(texts.values())) == 3


def test_the_last_prompt_token_steers_the_first_new_one(lm):
    """And the generation phase, which begins with the first new token, leaves it alone."""
    site = Site("resid", 2)
    wanted = 71
    direction = lm.model.get_output_embeddings().weight[wanted] * 50
    intervention = Intervention((site,), (1.0,), (direction,))
    plain = by_library(lm, PROMPT)
    for phases, first in (("prompt", wanted), ("both", wanted), ("generation", plain[0])):
        (done,) = generate(lm, intervention, PROMPT, [1.0], phases=phases, max_tokens=3)
        assert done.token_ids[0] == first
        assert (done.token_ids[1] == wanted) is (phases != "prompt")


def test_an_absolute_position_is_the_same_place_as_its_negative(lm):
    length = len(PROMPT)
    for position in (2, length - 1):
        texts = [generate(lm, along_ones(p), PROMPT, [1.0], phases="prompt") for p in (position, position - length)]
        assert texts[0] == texts[1]
        assert texts[0] != generate(lm, NOTHING, PROMPT, [1.0])


def test_doses_do_not_touch_each_other(lm):
    intervention = pushed(lm)
    alone = {dose: generate(lm, intervention, PROMPT, [dose], max_tokens=N_TOKENS)[0] for dose in (-1.0, 0.0, 1.5)}
    assert len({done.token_ids for done in alone.values()}) == 3
    for order in permutations(alone):
        assert generate(lm, intervention, PROMPT, order, max_tokens=N_TOKENS) == tuple(alone[dose] for dose in order)


def test_every_dose_starts_without_a_cache(lm, monkeypatch):
    caches = []
    forward = lm.model.forward

    def watched(*args, **kwargs):
        output = forward(*args, **kwargs)
        caches.append((kwargs["cache"], output.cache))
        return output

    monkeypatch.setattr(lm.model, "forward", watched)
    generate(lm, pushed(lm), PROMPT, [-1.0, 0.0, 1.0], max_tokens=3, stop_ids=())
    given, made = zip(*caches, strict=True)
    assert [cache is None for cache in given] == [True, False, False] * 3
    assert len({id(cache) for cache in made}) == 3
    assert "cache" not in inspect.signature(generate).parameters


def test_doses_in_one_batch(lm):
    doses = (-1.0, 0.0, 1.5)
    one_by_one = generate(lm, pushed(lm), PROMPT, doses, max_tokens=N_TOKENS)
    batched = generate(lm, pushed(lm), PROMPT, doses, max_tokens=N_TOKENS, together=True)
    for alone, row in zip(one_by_one, batched, strict=True):
        assert alone.token_ids == row.token_ids and alone.stop_reason == row.stop_reason
        np.testing.assert_allclose(alone.log_probabilities, row.log_probabilities, atol=1e-4)


def test_a_stop_token_ends_the_text(lm):
    free = generate(lm, NOTHING, PROMPT, [0.0], max_tokens=N_TOKENS, stop_ids=())[0]
    assert free.stop_reason == "length" and len(free.token_ids) == N_TOKENS
    stop = free.token_ids[3]
    ended = generate(lm, NOTHING, PROMPT, [0.0], max_tokens=N_TOKENS, stop_ids=[stop])[0]
    assert ended.stop_reason == "end"
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    both = generate(lm, pushed(lm), PROMPT, [0.0, 1.5], max_tokens=N_TOKENS, stop_ids=[stop], together=True)
    assert both[0].token_ids == ended.token_ids


def test_log_probabilities(lm):
    (done,) = generate(lm, NOTHING, PROMPT, [0.0], max_tokens=2, stop_ids=())
    text = torch.cat([PROMPT, torch.tensor(done.token_ids)])
    with torch.no_grad():
        logits = lm.model(input_ids=text[None], use_cache=False).logits[0].double()
    expected = logits.log_softmax(-1)[[len(PROMPT) - 1, len(PROMPT)], list(done.token_ids)]
    np.testing.assert_allclose(done.log_probabilities, expected.numpy(), atol=1e-5)


def test_sampling_follows_the_distribution_and_the_seed(lm):
    def first(seed, temperature=1.0):
        done = generate(lm, NOTHING, PROMPT, [0.0], max_tokens=1, temperature=temperature, seed=seed, stop_ids=())
        return done[0].token_ids[0]

    with torch.no_grad():
        logits = lm.model(input_ids=PROMPT[None], use_cache=False).logits[0, -1].double()
    probabilities = (logits / 0.3).softmax(-1).numpy()
    counts = np.bincount([first(seed, 0.3) for seed in range(400)], minlength=VOCABULARY) / 400
    assert np.abs(counts - probabilities).sum() / 2 < 0.15 < 1 - probabilities.max()
    assert [first(seed) for seed in range(5)] == [first(seed) for seed in range(5)]
    assert all(first(seed, 1e-6) == int(logits.argmax()) for seed in range(5))


def test_sampled_doses_use_the_same_random_numbers(lm):
    options = {"max_tokens": N_TOKENS, "temperature": 1.0, "seed": 3, "stop_ids": ()}
    weak = pushed(lm, size=1e-6)
    zero, tiny = generate(lm, weak, PROMPT, [0.0, 1.0], **options)
    assert zero.token_ids == tiny.token_ids
    assert generate(lm, weak, PROMPT, [1.0, 0.0], **options)[1] == zero


def test_rule_p_in_the_prompt_phase(lm):
    pair = make_pair(5, positions=(8,))
    own = Intervention((Site("resid", 2),), (1.0,))
    (moved,) = generate(lm, own, pair.source_ids, [1.0], phases="prompt", max_tokens=1, pair=pair)
    assert moved.token_ids == by_library(lm, torch.tensor(pair.target_ids), 1)
    with pytest.raises(ValueError, match="tokens that are yet to come"):
        generate(lm, own, pair.source_ids, [1.0], pair=pair)
    with pytest.raises(ValueError, match="pair is missing"):
        generate(lm, own, pair.source_ids, [1.0], phases="prompt")
    with pytest.raises(ValueError, match="not the source of pair tiny/5"):
        generate(lm, own, PROMPT, [1.0], phases="prompt", pair=pair)


def test_hooks_of_others_stay_and_a_failing_forward_leaves_none(lm):
    before = hook_count(lm)
    handle = lm.layout.blocks[0].register_forward_hook(lambda *_: None)
    generate(lm, pushed(lm), PROMPT, [1.0], max_tokens=2)
    assert hook_count(lm) == before + 1
    handle.remove()

    def failing(*_):
        raise RuntimeError("broken")

    handle = lm.layout.blocks[2].register_forward_hook(failing)
    with pytest.raises(RuntimeError, match="broken"):
        generate(lm, pushed(lm), PROMPT, [1.0], max_tokens=2)
    handle.remove()
    assert hook_count(lm) == before


@pytest.mark.parametrize(
    "change, message",
    [
        ({"doses": []}, "doses: none given"),
        ({"doses": [float("nan")]}, r"doses\[0\] must be a finite number"),
        ({"doses": ["1x"]}, r"doses\[0\] must be a finite number"),
        ({"phases": "all"}, "phases must be one of prompt, generation, both, got 'all'"),
        ({"max_tokens": 0}, "max_tokens must be an integer at least 1"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 60}, "more than the 64 positions"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"seed": -1}, "seed must be an integer at least 0"),
        ({"prompt": [3]}, "prompt must be token ids"),
        ({"prompt": [3, VOCABULARY]}, "prompt must hold ids in 0..99"),
    ],
)
def test_bad_arguments(lm, change, message):
    arguments = {"prompt": PROMPT, "doses": [1.0]} | change
    with pytest.raises(ValueError, match=message):
        generate(lm, pushed(lm), **arguments)


@pytest.mark.parametrize(
    "site, phases, message",
    [
        (Site("resid", 0, None, 9), "prompt", "position 9 is outside a prompt of 9 tokens"),
        (Site("resid", 0, None, -10), "both", "position -10 is outside"),
        (Site("resid", 7), "both", "layer 7 is outside 0..2"),
        (Site("head", 0, 4), "generation", "head 4 is outside 0..3"),
        (Site("head", 0, 1), "both", "direction has width 32, the site has 8"),
    ],
)
def test_bad_sites(lm, site, phases, message):
    before = hook_count(lm)
    with pytest.raises(ValueError, match=message):
        generate(lm, Intervention((site,), (1.0,), (torch.ones(WIDTH),)), PROMPT, [1.0], phases=phases)
    assert hook_count(lm) == before


def test_a_position_beyond_the_prompt_plays_no_part_in_the_generation_phase(lm):
    texts = {generate(lm, along_ones(p), PROMPT, [1.0], phases="generation") for p in (-1, 3, 40)}
    assert len(texts) == 1


def test_two_positions_of_one_place_are_refused_where_they_would_add_up(lm):
    sites = (Site("mlp", 1, None, 2), Site("mlp", 1, None, 5))
    generate(lm, pushed(lm, sites), PROMPT, [1.0], phases="prompt", max_tokens=1)
    with pytest.raises(ValueError, match="L01.mlp@2 and L01.mlp@5 are one place in the generation phase"):
        generate(lm, pushed(lm, sites), PROMPT, [1.0], phases="both")


def test_logits_that_overflow_are_named(lm):
    huge = Intervention((Site("resid", 2),), (1.0,), (torch.full((WIDTH,), 3e38),))
    with pytest.raises(InputError, match="dose 9: the logits of new token 0 are not finite"):
        generate(lm, huge, PROMPT, [9.0])


def test_a_model_in_training_mode_is_refused():
    lm = tiny_model()
    generate(lm, NOTHING, PROMPT, [0.0], max_tokens=1)
    next(module for name, module in lm.model.named_modules() if name.endswith("mlp")).train()
    with pytest.raises(UnsupportedModel, match=r"submodule '.*mlp' is in training mode; call model.eval\(\)"):
        generate(lm, NOTHING, PROMPT, [0.0], max_tokens=1)
