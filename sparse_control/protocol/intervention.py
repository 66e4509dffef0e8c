"""An intervention and the context manager that applies it (source document, "What every axis needs")."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparse_control.arguments import brief, elements, instance, real_number, whole_number
from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.decode import as_prompt
from sparse_control.models.sites import Site, add_at_sites, capture_sites, check_site, site_width
from sparse_control.protocol.panels.pair import Pair
from sparse_control.tensors import as_float64


def check_places(sites: Iterable[Site], lengths: Iterable[int]) -> None:
    """Refuse two names of one place, such as positions -1 and 8 in a prompt of nine tokens: it would count twice.

    Args:
        sites: distinct sites.
        lengths: of the prompts, in tokens.

    Raises:
        ValueError: names both sites, or a site outside a prompt.
    """
    for length in sorted(set(lengths)):
        named: dict[Site, Site] = {}
        for site in sites:
            if not -length <= site.position < length:
                raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
            first = named.setdefault(replace(site, position=site.position % length), site)
            if first != site:
                raise ValueError(
                    f"sites {first.name} and {site.name} are one place in a prompt of {length} tokens; name it once"
                )


def check_length(lm: LanguageModel, name: str, length: int) -> None:
    """Refuse a prompt longer than a model with learned positions has positions; rotary ones go on beyond theirs.

    Raises:
        InputError: names the prompt and both numbers.
    """
    config = lm.model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", None)
    if room is not None and getattr(config, "rope_parameters", None) is None and length > room:
        raise InputError(f"{name}: has {length} tokens, more than the {room} positions of {lm.name}; use a shorter one")


def check_readable(lm: LanguageModel, pairs: Any, name: str = "pairs") -> None:
    """Refuse what is no sequence of pairs, and a pair whose tokens are none of the model's.

    Raises:
        ValueError: not a sequence of pairs, none, or token or answer ids outside the vocabulary; names the pair.
        InputError: a prompt longer than the model's positions.
    """
    if isinstance(pairs, Pair):
        raise ValueError(f"{name} must be a sequence of pairs, got one pair; use (pair,) with pair {pairs.id}")
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Sequence):
        raise ValueError(f"{name} must be a sequence of pairs, such as a tuple, got {type(pairs).__name__}")
    if len(pairs) == 0:
        raise ValueError(f"{name}: none given; every pair was dropped, or the split is empty")
    outputs = lm.model.get_output_embeddings().weight.shape[0]
    for index, pair in enumerate(pairs):
        if not isinstance(pair, Pair):
            raise ValueError(f"{name}[{index}] must be a Pair, got {type(pair).__name__}")
        for side in ("source", "target"):
            as_prompt(lm, getattr(pair, f"{side}_ids"), f"pair {pair.id}: {side}_ids")
            for token in getattr(pair, f"{side}_answer_ids"):
                whole_number(f"pair {pair.id}: each of {side}_answer_ids", token, 0, outputs - 1)
        check_length(lm, f"pair {pair.id}", len(pair.source_ids))


@dataclass(frozen=True, eq=False)
class Intervention:
    """A support, base strengths and a direction rule: at each site `a <- a + dose * strength * direction`.

    Attributes:
        support: the sites, each once.
        strengths: beta, one per site.
        directions: one vector (site width,) per site, the same for every prompt (F, the mean contrast of the
            fitting split, or any vectors of your own); None: each pair's own contrast (P).

    Raises:
        ValueError: lengths that disagree, a site twice, a strength or direction that is not finite.
    """

    support: tuple[Site, ...]
    strengths: tuple[float, ...]
    directions: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.support, Site):
            raise ValueError(f"support must be a sequence of sites, got one site; use ({self.support.name},)")
        support = tuple(elements("support", self.support))
        for site in support:
            if not isinstance(site, Site):
                raise ValueError(f"support must hold Site objects, got {brief(site)}; parse names with parse_site")
        if len(set(support)) != len(support):
            twice = next(site for site in support if support.count(site) > 1)
            raise ValueError(f"support holds site {twice.name} twice")
        strengths = [
            real_number(f"strengths[{i}]", value) for i, value in enumerate(elements("strengths", self.strengths))
        ]
        if len(strengths) != len(support):
            raise ValueError(f"strengths has length {len(strengths)}, support has {len(support)} sites")
        object.__setattr__(self, "support", support)
        object.__setattr__(self, "strengths", tuple(strengths))
        if self.directions is None:
            return
        given = self.directions
        if not isinstance(given, (Sequence, np.ndarray, Tensor)) or isinstance(given, (str, bytes)):
            raise ValueError(f"directions must be a sequence of vectors, got {brief(given)}")
        if getattr(given, "ndim", 1) == 0 or len(given) != len(support):
            found = "none" if getattr(given, "ndim", 1) == 0 else len(given)
            raise ValueError(f"directions has length {found}, support has {len(support)} sites")
        directions = []
        for index, site in enumerate(support):
            vector = as_float64(f"directions[{index}] of site {site.name}", given[index])
            if vector.ndim != 1:
                shape = tuple(vector.shape)
                raise ValueError(f"directions[{index}] of site {site.name} must have one dimension, got shape {shape}")
            directions.append(vector)
        object.__setattr__(self, "directions", tuple(directions))

    def check(self, lm: LanguageModel) -> None:
        """Refuse a site outside the model, a direction of another width than its site, or a model in training mode.

        Raises:
            ValueError: names the site.
            UnsupportedModel: a submodule in training mode; its dropout would draw anew in every forward.
        """
        instance("lm", lm, LanguageModel).check_evaluation_mode()
        for index, site in enumerate(self.support):
            check_site(lm, site)
            if self.directions is not None and len(self.directions[index]) != site_width(lm, site):
                raise ValueError(
                    f"site {site.name}: direction has width {len(self.directions[index])}, "
                    f"the site has {site_width(lm, site)}"
                )

    def additions(self, doses: Sequence[float], contrasts: Mapping[Site, Tensor], n: int) -> dict[Site, Tensor]:
        """What is added at each site for `n` prompts and R doses: (n, R, site width), float64.

        Args:
            doses: (R,).
            contrasts: per site (n, site width), used where the intervention has no directions of its own.
            n: number of prompts.
        """
        scale = torch.tensor(list(doses), dtype=torch.float64)[None, :, None]
        added = {}
        for index, (site, strength) in enumerate(zip(self.support, self.strengths, strict=True)):
            fixed = self.directions is not None
            direction = self.directions[index].expand(n, -1) if fixed else contrasts[site].double()
            added[site] = scale.to(direction.device) * strength * direction[:, None]  # (n, R, width)
        return added


def pair_contrasts(lm: LanguageModel, pair: Pair, sites: Sequence[Site]) -> dict[Site, Tensor]:
    """Direction rule P for one pair: `a_s(x_tar) - a_s(x_src)`, (1, site width) per site."""
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

    In generation with a cache, non-negative positions are absolute and are patched by whichever forward reads that
    token of the prompt; negative ones count from the end of the prompt. Generated tokens are not patched.

    Args:
        lm: the model; its weights, configuration and mode stay as they are.
        intervention: support, strengths, direction rule.
        dose: gamma, scales all strengths.
        pair: whose contrast rule P uses. With a pair, forwards of its token length are patched; without one, every
            prompt is.
        reverse: -beta, for the target-side input (axis 2).

    Raises:
        ValueError: a pair is missing where rule P needs one, a dose that is not finite, a site outside the model or
            the prompt, a direction of the wrong width, a pair as `check_readable` refuses it; inside the context, a
            padded batch.
        UnsupportedModel: a submodule in training mode.
    """
    dose = real_number("dose", dose) * (-1.0 if instance("reverse", reverse, bool) else 1.0)
    instance("intervention", intervention, Intervention).check(lm)
    contrasts: dict[Site, Tensor] = {}
    if pair is not None:
        check_readable(lm, (instance("pair", pair, Pair),))
        check_places(intervention.support, [len(pair.source_ids)])
    if intervention.directions is None:
        if pair is None:
            raise ValueError("pair is missing: without directions of its own an intervention uses the pair's contrast")
        contrasts = pair_contrasts(lm, pair, intervention.support)
    additions = {site: value[0, 0] for site, value in intervention.additions([dose], contrasts, 1).items()}
    if dose == 0:
        yield
    elif pair is not None:
        with add_at_sites(lm, additions, length=len(pair.source_ids)):
            yield
    else:
        with _adding_to_prompts(lm, additions):
            yield


@contextmanager
def _adding_to_prompts(lm: LanguageModel, additions: Mapping[Site, Tensor]) -> Iterator[None]:
    """`add_at_sites` with the length of each forward as it comes.

    A forward on cached keys and values goes on with a prompt: its tokens have later absolute positions and a
    non-negative position is patched there, a negative one was resolved when the prompt was read.
    """
    with ExitStack() as running:

        def enter(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            running.close()  # of a forward that raised
            tokens = args[0] if args else kwargs.get("input_ids")
            tokens = kwargs["inputs_embeds"] if tokens is None else tokens
            mask = kwargs.get("attention_mask")
            if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.all():
                raise ValueError(
                    "attention_mask hides tokens: patches need unpadded prompts; run equal lengths together"
                )
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            start = 0 if cache is None else cache.get_seq_length()
            if start == 0:
                check_places(additions, [tokens.shape[1]])
            here = _within(additions, start, tokens.shape[1])
            if here:
                running.enter_context(add_at_sites(lm, here, length=tokens.shape[1]))

        def leave(_module: nn.Module, _args: tuple, _output: Any) -> None:
            running.close()

        base = lm.model.base_model
        handles = [base.register_forward_pre_hook(enter, with_kwargs=True), base.register_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _within(additions: Mapping[Site, Tensor], start: int, length: int) -> dict[Site, Tensor]:
    """The additions that belong to a forward over absolute positions start..start+length-1, counted from its start."""
    if start == 0:
        return dict(additions)
    return {
        replace(site, position=site.position - start): vector
        for site, vector in additions.items()
        if start <= site.position < start + length
    }
