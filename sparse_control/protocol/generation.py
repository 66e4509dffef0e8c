"""Generation under an intervention, with the prompt phase and the generation phase told apart.

A token's activation steers the logits at its own position, so a patch of the last prompt token already steers the first
generated token. In the prompt phase a site's position is one of the prompt's; in the generation phase its place is that
of each new token, when that token is read to produce the next one. Every dose starts from an empty cache: keys and
values that were computed under one dose never serve another.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sparse_control.arguments import brief, choice, elements, instance, real_number, whole_number
from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.decode import as_prompt
from sparse_control.models.sites import Addition, Site, add_at_sites
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.patching import pair_contrasts
from sparse_control.seeds import stream

Phases = Literal["prompt", "generation", "both"]
PHASES: tuple[str, ...] = get_args(Phases)


@dataclass(frozen=True)
class Generation:
    """What the model goes on with at one dose.

    Attributes:
        dose: gamma; 0 is the unpatched model.
        token_ids: the new tokens, the one that ended the text included.
        text: their text without special tokens; None where the model has no tokenizer.
        log_probabilities: of each new token under the patched model, in nats.
        stop_reason: `end` (a stop token came) or `length` (all tokens asked for).
    """

    dose: float
    token_ids: tuple[int, ...]
    text: str | None
    log_probabilities: tuple[float, ...]
    stop_reason: Literal["end", "length"]


@torch.no_grad()
def generate(
    lm: LanguageModel,
    intervention: Intervention,
    prompt: str | Sequence[int] | Tensor,
    doses: Sequence[float],
    *,
    phases: Phases = "both",
    max_tokens: int = 40,
    temperature: float = 0.0,
    seed: int = 0,
    stop_ids: Collection[int] | None = None,
    pair: Pair | None = None,
    together: bool = False,
) -> tuple[Generation, ...]:
    """Continue a prompt once per dose; the doses do not influence each other.

    Args:
        lm: the model; its weights, configuration and mode stay as they are.
        intervention: support, strengths and directions.
        prompt: a text, tokenised with the model's BOS policy, or its token ids (T,), T >= 2.
        doses: gamma, one generation each; at 0 there is no hook.
        phases: where the intervention acts: `prompt`, at the sites' positions in the prompt; `generation`, at the
            position of every new token that is read, whatever the sites' positions; or `both`.
        max_tokens: most new tokens.
        temperature: 0 takes the likeliest token (greedy); above 0 one is drawn.
        seed: of the draws; each dose uses the same random numbers, so that doses differ by the dose alone.
        stop_ids: tokens that end a text; None: those of the model's generation configuration.
        pair: whose contrast rule P uses, and then its source is the prompt; or whose orientation rule O uses.
        together: one batch of all doses, each with its own keys and values; faster, and equal up to rounding.

    Returns:
        one `Generation` per dose, in order.

    Raises:
        ValueError: names the argument: no dose, a number that is not finite, a site outside the model or the prompt,
            two sites that are one place in the generation phase, rule P without its pair or beyond the prompt, more
            tokens than the model has positions for.
        InputError: the patched logits are not finite.
        UnsupportedModel: a submodule in training mode, which draws anew in every forward.
    """
    instance("together", together, bool)
    call = _Call.checked(lm, intervention, prompt, doses, phases, max_tokens, temperature, seed, pair)
    stop = _stop_ids(lm) if stop_ids is None else _checked_stop_ids(stop_ids)
    generations: list[Generation] = []
    for group in [call.doses] if together else [[dose] for dose in call.doses]:
        signs = [] if pair is None else [pair.sign]
        live = intervention.acting(group, call.contrasts, signs) if any(group) else {}
        moving = {replace(site, position=-1): value for site, value in live.items()}
        generations += _continued(
            lm,
            call.ids,
            group,
            in_prompt=live if phases != "generation" else {},
            in_generation=moving if phases != "prompt" else {},
            max_tokens=call.max_tokens,
            temperature=call.temperature,
            draws=[stream(seed, "generation", "none", "sampling") for _ in group],
            stop=stop,
        )
    return tuple(generations)


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments of `generate`, checked and converted.

    Attributes:
        ids: of the prompt (T,).
        contrasts: of the pair, for rule P.
    """

    ids: Tensor
    doses: list[float]
    max_tokens: int
    temperature: float
    contrasts: Mapping[Site, Tensor]

    @classmethod
    def checked(
        cls,
        lm: LanguageModel,
        intervention: Intervention,
        prompt: str | Sequence[int] | Tensor,
        doses: Sequence[float],
        phases: Phases,
        max_tokens: int,
        temperature: float,
        seed: int,
        pair: Pair | None,
    ) -> "_Call":
        instance("lm", lm, LanguageModel)
        instance("intervention", intervention, Intervention)
        if pair is not None:
            instance("pair", pair, Pair)
        if isinstance(prompt, str) and lm.tokenizer is None:
            raise ValueError(f"prompt must be token ids, as the model has no tokenizer, got {brief(prompt)}")
        ids = as_prompt(lm, lm.encode(prompt) if isinstance(prompt, str) else prompt, "prompt")
        doses = [real_number(f"doses[{index}]", dose) for index, dose in enumerate(elements("doses", doses))]
        if not doses:
            raise ValueError("doses: none given")
        choice("phases", phases, PHASES)
        max_tokens = whole_number("max_tokens", max_tokens, 1)
        temperature = real_number("temperature", temperature)
        if temperature < 0:
            raise ValueError(f"temperature must not be negative, got {temperature!r}")
        whole_number("seed", seed, 0)
        _check_room(lm, len(ids), max_tokens)
        _check_places(lm, intervention, phases, len(ids))
        return cls(ids, doses, max_tokens, temperature, _contrasts(lm, intervention, phases, ids, pair))


def _continued(
    lm: LanguageModel,
    ids: Tensor,
    doses: Sequence[float],
    *,
    in_prompt: Mapping[Site, Addition],
    in_generation: Mapping[Site, Addition],
    max_tokens: int,
    temperature: float,
    draws: Sequence[np.random.Generator],
    stop: frozenset[int],
) -> list[Generation]:
    """R doses as R rows of one batch, from the first forward on with a cache that lives in this call alone."""
    tokens = ids.expand(len(doses), -1)  # (R, T), then (R, 1)
    cache = None
    chosen: list[list[int]] = [[] for _ in doses]
    log_probabilities: list[list[float]] = [[] for _ in doses]
    ended = [False] * len(doses)
    for step in range(max_tokens):
        additions = in_prompt if step == 0 else in_generation
        length = tokens.shape[1]
        with add_at_sites(lm, additions, length=length) if additions else nullcontext():
            output = lm.model(input_ids=tokens, cache=cache, use_cache=True, logits_to_keep=1)
        cache = output.cache
        following = []
        for row, logits in enumerate(output.logits[:, -1].double().cpu().numpy()):
            if not np.isfinite(logits).all():
                raise InputError(
                    f"dose {doses[row]:g}: the logits of new token {step} are not finite; use a smaller dose"
                )
            token, log_probability = _chosen(logits, temperature, draws[row])
            following.append(token)
            if not ended[row]:
                chosen[row].append(token)
                log_probabilities[row].append(log_probability)
                ended[row] = token in stop
        if all(ended):
            break
        tokens = torch.tensor(following, device=ids.device)[:, None]
    return [
        Generation(dose, tuple(new), _text(lm, new), tuple(values), "end" if end else "length")
        for dose, new, values, end in zip(doses, chosen, log_probabilities, ended, strict=True)
    ]


def _chosen(logits: np.ndarray, temperature: float, draws: np.random.Generator) -> tuple[int, float]:
    """The next token and its log-probability at temperature 1, from float64 logits (V,)."""
    shifted = logits - logits.max()
    log_probabilities = shifted - np.log(np.exp(shifted).sum())
    if temperature == 0:
        token = int(logits.argmax())
    else:
        cumulated = np.exp(shifted / temperature).cumsum()
        place = np.searchsorted(cumulated, draws.random() * cumulated[-1], side="right")
        token = min(int(place), len(logits) - 1)  # the product may round up to the last sum
    return token, float(log_probabilities[token])


def _check_room(lm: LanguageModel, length: int, max_tokens: int) -> None:
    room = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
    if room is not None and length + max_tokens > room:
        raise ValueError(
            f"max_tokens: a prompt of {length} tokens and {max_tokens} new ones are more than the {room} positions "
            f"of {lm.name}"
        )
    lm.check_length(length + max_tokens, "prompt and max_tokens")


def _check_places(lm: LanguageModel, intervention: Intervention, phases: str, length: int) -> None:
    intervention.check(lm)
    if phases != "generation":
        for site in intervention.support:
            if not -length <= site.position < length:
                raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
    if phases != "prompt":
        places: dict[Site, Site] = {}
        for site in intervention.support:
            other = places.setdefault(replace(site, position=-1), site)
            if other is not site:
                raise ValueError(
                    f"support: {other.name} and {site.name} are one place in the generation phase; "
                    "give one of them, or phases='prompt'"
                )


def _contrasts(
    lm: LanguageModel, intervention: Intervention, phases: str, ids: Tensor, pair: Pair | None
) -> dict[Site, Tensor]:
    if intervention.oriented and pair is None:
        raise ValueError("pair is missing: an oriented intervention turns its directions by the pair")
    if intervention.directions is not None or not intervention.support:
        return {}
    if phases != "prompt":
        raise ValueError(
            "intervention: rule P has no contrast at tokens that are yet to come; give directions, or phases='prompt'"
        )
    if pair is None:
        raise ValueError("pair is missing: without directions of its own an intervention uses the pair's contrast")
    if tuple(ids.tolist()) != pair.source_ids:
        raise ValueError(f"pair: the prompt is not the source of pair {pair.id}")
    return pair_contrasts(lm, pair, intervention.support)


def _checked_stop_ids(stop_ids: Collection[int]) -> frozenset[int]:
    given = list(stop_ids) if isinstance(stop_ids, (set, frozenset)) else elements("stop_ids", stop_ids)
    return frozenset(whole_number(f"stop_ids[{index}]", token, 0) for index, token in enumerate(given))


def _stop_ids(lm: LanguageModel) -> frozenset[int]:
    configured: Any = getattr(lm.model.generation_config, "eos_token_id", None)
    if configured is None:
        return frozenset()
    return frozenset(configured if isinstance(configured, (list, tuple)) else [configured])


def _text(lm: LanguageModel, token_ids: Sequence[int]) -> str | None:
    return None if lm.tokenizer is None else lm.tokenizer.decode(token_ids, skip_special_tokens=True)
