"""Patching: the context within which an intervention acts on a model's forwards, and on its own `generate`.

Positions are those of a prompt, wherever its tokens are read. A forward may read all of it, a part of it on cached
keys and values, or all of it again with new tokens behind it; each patches the sites that are among its tokens, and a
forward of which this cannot be known is refused.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sparse_control.arguments import instance, real_number
from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.models.hooks import STRANGER, Forward
from sparse_control.models.sites import Site, adding, capture_sites
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.readable import check_positions, check_readable, check_sites


def pair_contrasts(lm: LanguageModel, pair: Pair, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Direction rule P for one pair: `a_s(x_tar) - a_s(x_src)`, (1, site width) per site."""
    if pair.last_token_only:  # of other lengths, so not in one batch
        prompts = [torch.tensor([ids], device=lm.device) for ids in (pair.target_ids, pair.source_ids)]
        target, source = (capture_sites(lm, ids, sites) for ids in prompts)
        return {site: target[site] - source[site] for site in target}
    both = torch.tensor([pair.target_ids, pair.source_ids], device=lm.device)
    return {site: (value[0] - value[1])[None] for site, value in capture_sites(lm, both, sites).items()}


@contextmanager
def patched(
    lm: LanguageModel, intervention: Intervention, dose: float = 1.0, pair: Pair | None = None, reverse: bool = False
) -> Iterator[None]:
    """Apply an intervention to the forwards run inside the context (source document, "What every axis needs").

    Everything is checked and resolved before the first hook is registered; own hooks alone are removed, on any
    exit. At dose 0 there is no hook, so the model is bit-equal to the unpatched one. Contexts may be nested: their
    patches add up, and rule P reads its contrast under the patches of the outer ones.

    Non-negative positions count from the start of the prompt, negative ones from its end, and generated tokens are not
    patched. Around `lm.model.generate` the prompt is what `generate` is given, whether or not there is a cache, with
    beams, or with an assistant. Elsewhere it is what a forward without a cache reads, and forwards on its cache go on
    with it. A forward that reads that prompt again with more tokens behind it is refused where a position is negative:
    it may be a step of generation or a prompt of its own.

    Args:
        lm: the model; its weights, configuration and mode stay as they are.
        intervention: support, strengths, direction rule.
        dose: gamma, scales all strengths.
        pair: whose contrast rule P uses and whose orientation rule O uses; and whose prompts are patched: forwards of
            their token length, and those that read a part of one of them or more tokens behind it.
        reverse: -beta, for the target-side input (axis 2).

    Raises:
        ValueError: a pair is missing where rule P needs one, a dose that is not finite, a site outside the model or
            the prompt, a direction of the wrong width, a pair as `check_readable` refuses it; inside the context, a
            padded batch, or a forward whose prompt is not known to be the one that is patched.
        InputError: no forward of the model ran inside the context, or as `hooking`.
        UnsupportedModel: a submodule in training mode, or a compiled model.
    """
    dose = real_number("dose", dose) * (-1.0 if instance("reverse", reverse, bool) else 1.0)
    instance("intervention", intervention, Intervention).check(lm)
    contrasts: dict[Site, Tensor] = {}
    if pair is not None:
        check_readable(lm, (instance("pair", pair, Pair),))
        check_sites(intervention.support, (pair,))
    if pair is None and (intervention.directions is None or intervention.oriented):
        needs = "uses the pair's contrast" if intervention.directions is None else "turns its directions by the pair"
        raise ValueError(f"pair is missing: this intervention {needs}")
    if intervention.directions is None:
        contrasts = pair_contrasts(lm, pair, intervention.support)
    signs = [] if pair is None else [pair.sign]
    additions = intervention.acting([dose], contrasts, signs)
    if dose == 0 or not additions:
        yield
        return
    prompts = _Prompts(intervention.support, pair)
    with _watching_generate(lm, prompts), adding(lm, additions, prompts.locate):
        yield


class _Prompts:
    """Which prompt the forwards within a context read, and where its sites are among their tokens.

    Args:
        sites: of the intervention.
        pair: whose prompts are read, of one that is no minimal edit the source; None: any.
    """

    def __init__(self, sites: Sequence[Site], pair: Pair | None) -> None:
        self._sites = sites
        self._known: Tensor | None = None  # (prompts, T) ids that the forwards are known to read
        if pair is not None:
            self._known = torch.tensor([pair.source_ids] + [pair.target_ids] * (not pair.last_token_only))
        self._generating = False
        self._thread = threading.get_ident()
        self._length: int | None = None  # of the prompt that is being read, None before the first
        self._tokens: Tensor | None = None  # of the last forward without a cache
        self._read = 0  # tokens read so far, of the prompt and behind it
        self._patched: set[Site] = set()

    def locate(self, forward: Forward) -> dict[Site, int]:
        """Index of each site among the tokens of a forward, of those that are there.

        Raises:
            ValueError: hidden tokens, or a forward that is not known to read the prompt that is patched.
        """
        _check_unpadded(forward)
        end = forward.start + forward.length
        if forward.start == 0:
            self._length = self._prompt_length(forward)
            check_positions(self._sites, [self._length])
            self._tokens, self._read = forward.tokens, end
        elif self._length is None or forward.start > self._read:
            raise ValueError(
                "a forward goes on with keys and values that were not read within the context, so no patch reached "
                "them; read the prompt within it"
            )
        self._read = max(self._read, end)
        at = {site: site.position % self._length if site.position < 0 else site.position for site in self._sites}
        located = {site: position - forward.start for site, position in at.items() if forward.start <= position < end}
        self._patched |= set(located)
        return located

    def _prompt_length(self, forward: Forward) -> int:
        if self._known is not None:
            length = self._known.shape[1]
            sure = forward.length == length and (not self._generating or forward.tokens is None)
            if not sure and not _same_start(forward.tokens, self._known):
                raise ValueError(
                    f"the context patches a prompt of {length} tokens, and a forward of {forward.length} reads another "
                    "one; open a context for each prompt"
                )
            return length
        longer = self._length is not None and forward.length > self._length
        if longer and _same_start(forward.tokens, self._tokens) and any(site.position < 0 for site in self._sites):
            raise ValueError(
                "a forward reads the last prompt again with more tokens behind it, so the end of the prompt is not "
                "known; generate with lm.model.generate or a cache, give positions from the start, or open a context "
                "for each prompt"
            )
        return forward.length

    @contextmanager
    def generating(self, prompt: Tensor) -> Iterator[None]:
        """While the model's own `generate` goes on with a prompt of these ids (B, T), or embeddings (B, T, d)."""
        if threading.get_ident() != self._thread:
            raise InputError(STRANGER)
        if self._generating:  # the model is its own assistant
            yield
            return
        if self._known is not None and self._known.shape[1] != prompt.shape[1]:
            raise ValueError(
                f"the context patches a prompt of {self._known.shape[1]} tokens, got one of {prompt.shape[1]}"
            )
        check_positions(self._sites, [prompt.shape[1]])
        before, self._known, self._patched, self._generating = self._known, prompt, set(), True
        try:
            yield
        finally:
            self._known, self._generating = before, False
        if missed := [site.name for site in self._sites if site not in self._patched]:
            raise ValueError(
                f"generate did not read the prompt at {', '.join(missed)}, so no patch acted there; give it no cache "
                "that was filled outside the context"
            )


def _same_start(tokens: Tensor | None, known: Tensor | None) -> bool:
    """Whether each row of `tokens` begins as a row of `known` does, or is the beginning of one; None: not known."""
    if tokens is None or known is None or known.ndim != 2:
        return False
    length = min(tokens.shape[1], known.shape[1])
    alike = tokens[:, None, :length] == known.to(tokens.device)[None, :, :length]  # (B, prompts, length)
    return bool(alike.all(-1).any(-1).all())


def _check_unpadded(forward: Forward) -> None:
    mask, positions = (forward.arguments.get(name) for name in ("attention_mask", "position_ids"))
    flat = isinstance(mask, Tensor) and mask.ndim == 2
    if flat and not mask.all():
        raise ValueError("attention_mask hides tokens: patches need unpadded prompts; run equal lengths together")
    if forward.start != 0:
        return
    if positions is None and mask is not None and not flat:
        raise ValueError("attention_mask must be (B, T) or left out: another one may hide tokens, and patches need all")
    if positions is None:
        return
    counted = torch.arange(forward.length, device=positions.device)
    if positions.shape[-1] != forward.length or not (positions == counted).all():
        raise ValueError("position_ids must count a prompt's tokens from 0: patches need unpadded prompts")


@contextmanager
def _watching_generate(lm: LanguageModel, prompts: _Prompts) -> Iterator[None]:
    """Within the context `lm.model.generate` says which prompt it goes on with before it does so."""
    attributes = vars(lm.model)  # an entry here shadows the method of the class
    outer: Callable[..., Any] | None = attributes.get("generate")
    generate = lm.model.generate

    def watched(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("assistant_early_exit") is not None:  # it would be found too late to put the configuration back
            raise UnsupportedModel("generate: assistant_early_exit leaves blocks out, and their patches would not act")
        with prompts.generating(_generated_from(*args, **kwargs)):
            return generate(*args, **kwargs)

    attributes["generate"] = watched
    try:
        yield
    finally:
        if outer is None:
            del attributes["generate"]
        else:
            attributes["generate"] = outer


def _generated_from(inputs: Tensor | None = None, *_others: Any, **arguments: Any) -> Tensor:
    """The prompt among the arguments of `generate`."""
    for given in (arguments.get("inputs_embeds"), inputs, arguments.get("input_ids")):
        if given is not None:
            return given
    raise ValueError("generate: inputs: give the prompt; without one there is nothing to patch")
