"""A set of prompts read at their last token: unpatched once, then under batches of patches.

`CachedPrompts` computes what patches leave as it is once: keys and values of the tokens before the earliest declared
position, and the states below the first patched block. Prompts, doses and sites share one batch of the tokens after.
`Prompts` runs every patch as a full forward; it is the plain way the other is tested against.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from sparse_control.models import LanguageModel
from sparse_control.models.batches import group_by_length
from sparse_control.models.sites import Site, add_at_sites, capturing_sites, site_width
from sparse_control.models.suffix import Suffixes, read_suffixes, run_unpatched, suffix_logits

MAXIMUM_ROWS = 128  # prompt-patch rows of one forward; bounds the (rows, V) logits in memory


def _at_position(activations: Tensor, site: Site) -> Tensor:
    length = activations.shape[1]
    if not -length <= site.position < length:
        raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
    return activations[:, site.position]


class Prompts:
    """P prompts, read by full forwards.

    Args:
        lm: the model.
        ids: P sequences of token ids, of any lengths >= 2; prompts of equal length share a forward, none is padded.
        sites: whose unpatched activations are kept.

    Attributes:
        logits: (P, V) unpatched, at the last token.
        activations: site -> (P, site width), unpatched, at the site's position.

    Raises:
        ValueError: no prompts, a prompt too short, a site outside the model or a prompt.
    """

    def __init__(self, lm: LanguageModel, ids: Sequence[Sequence[int]], sites: Sequence[Site] = ()) -> None:
        if len(ids) == 0:
            raise ValueError("prompts: none given")
        self.lm = lm
        self.ids = [torch.as_tensor(prompt, device=lm.device) for prompt in ids]
        for index, prompt in enumerate(self.ids):
            if prompt.ndim != 1 or len(prompt) < 2:
                raise ValueError(f"prompts[{index}] must hold at least two token ids, got shape {tuple(prompt.shape)}")
            lm.check_length(len(prompt), f"prompts[{index}]")
        with torch.no_grad():
            self.logits, self.activations = self._unpatched(sites)

    def _unpatched(self, sites: Sequence[Site]) -> tuple[Tensor, dict[Site, Tensor]]:
        logits: dict[int, Tensor] = {}
        activations: dict[Site, dict[int, Tensor]] = {site: {} for site in sites}
        for group in group_by_length(self.ids):
            with capturing_sites(self.lm, sites) as captured:
                output = self._full_forward(torch.stack([self.ids[i] for i in group]))
            logits.update(zip(group, output, strict=True))
            for site in sites:
                activations[site].update(zip(group, _at_position(captured[site], site), strict=True))
        order = range(len(self))
        return (
            torch.stack([logits[i] for i in order]),
            {site: torch.stack([rows[i] for i in order]) for site, rows in activations.items()},
        )

    def _full_forward(self, input_ids: Tensor) -> Tensor:
        return self.lm.model(input_ids=input_ids, use_cache=False, logits_to_keep=1).logits[:, -1]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor) -> Self:
        """The prompts at some indices (long tensor), without running the model again; may be empty."""
        taken = copy(self)
        taken.ids = [self.ids[i] for i in index.tolist()]
        taken.logits = self.logits[index]
        taken.activations = {site: value[index] for site, value in self.activations.items()}
        return taken

    @torch.no_grad()
    def patched_logits(self, additions: Mapping[Site, Tensor]) -> Tensor:
        """Logits (P, R, V) at the last token under R patches of each prompt.

        Args:
            additions: what is added at each site, (P, R, site width) each.

        Raises:
            ValueError: no site, shapes that disagree, a site outside the model or a prompt.
        """
        (rows,) = {value.shape[:2] for value in additions.values()}
        chunk = max(1, MAXIMUM_ROWS // len(self))
        parts = [
            self._patched({site: value[:, start : start + chunk] for site, value in additions.items()})
            for start in range(0, rows[1], chunk)
        ]
        return torch.cat(parts, dim=1)

    def _patched(self, additions: Mapping[Site, Tensor]) -> Tensor:
        outputs = []
        for index, prompt in enumerate(self.ids):
            here = {site: value[index] for site, value in additions.items()}
            repeats = next(iter(here.values())).shape[0]
            with add_at_sites(self.lm, here, length=len(prompt)):
                outputs.append(self._full_forward(prompt.expand(repeats, -1)))
        return torch.stack(outputs)

    def gradients(self, sites: Sequence[Site], directions: Tensor) -> dict[Site, Tensor]:
        """Gradient of `<directions[p], logits of prompt p>` with respect to what is added at each site.

        Args:
            directions: (P, V).

        Returns:
            site -> (P, site width).
        """
        with torch.enable_grad():
            like = {"dtype": self.lm.model.dtype, "device": self.lm.device, "requires_grad": True}
            zeros = {site: torch.zeros(len(self), 1, site_width(self.lm, site), **like) for site in sites}
            value = (self._patched(zeros)[:, 0] * directions).sum()
            gradients = torch.autograd.grad(value, list(zeros.values()))
        return {site: gradient[:, 0] for site, gradient in zip(sites, gradients, strict=True)}


@dataclass(frozen=True)
class _Batch:
    """Prompts that run together: the last S tokens of each.

    Attributes:
        members: their indices among all prompts.
        suffixes: what is run.
        start: position of the first of the S tokens where it is the same in all, for positions counted from 0.
    """

    members: tuple[int, ...]
    suffixes: Suffixes
    start: int | None

    def place(self, site: Site) -> Site:
        """The site counted within the S tokens.

        Raises:
            ValueError: it stands before them.
        """
        length = self.suffixes.tokens.shape[1]
        position = site.position if site.position < 0 else site.position - (self.start or 0)
        if self.start is None and site.position >= 0 or not -length <= position < length:
            raise ValueError(
                f"site {site.name} is outside the tokens that are run again; name it when prompts are read"
            )
        return replace(site, position=position)


class CachedPrompts(Prompts):
    """P prompts of which every patch runs the tokens from the earliest of `sites` on, without sites the last one.

    Patches at other sites are taken where they are no earlier.

    Raises:
        ValueError: as `Prompts`.
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """

    def _unpatched(self, sites: Sequence[Site]) -> tuple[Tensor, dict[Site, Tensor]]:
        lengths = [_rerun_length(len(prompt), sites) for prompt in self.ids]
        from_start = any(site.position >= 0 for site in sites)
        kinds: dict[tuple[int, int | None], list[int]] = {}
        for index, (prompt, length) in enumerate(zip(self.ids, lengths, strict=True)):
            kinds.setdefault((length, len(prompt) - length if from_start else None), []).append(index)
        self._batches = []
        logits: dict[int, Tensor] = {}
        activations: dict[Site, dict[int, Tensor]] = {site: {} for site in sites}
        for (length, start), members in kinds.items():
            suffixes = read_suffixes(self.lm, [self.ids[index] for index in members], length)
            with capturing_sites(self.lm, sites) as captured:
                suffixes, rows = run_unpatched(self.lm, suffixes)
            batch = _Batch(tuple(members), suffixes, start)
            self._batches.append(batch)
            logits.update(zip(members, rows, strict=True))
            for site in sites:
                activations[site].update(zip(members, captured[site][:, batch.place(site).position], strict=True))
        return self._in_order(logits), {site: self._in_order(rows) for site, rows in activations.items()}

    def _in_order(self, rows: Mapping[int, Tensor]) -> Tensor:
        return torch.stack([rows[index] for index in range(len(self))])

    def take(self, index: Tensor) -> Self:
        taken = super().take(index)
        wanted = index.tolist()
        taken._batches = []
        for batch in self._batches:
            places = [place for place, member in enumerate(wanted) if member in batch.members]
            if places:
                rows = torch.tensor([batch.members.index(wanted[place]) for place in places], device=index.device)
                taken._batches.append(_Batch(tuple(places), batch.suffixes.take(rows), batch.start))
        return taken

    def _patched(self, additions: Mapping[Site, Tensor]) -> Tensor:
        rows = next(iter(additions.values())).shape[1]
        first = min(site.layer for site in additions)
        logits: dict[int, Tensor] = {}
        for batch in self._batches:
            members = list(batch.members)
            flat = {batch.place(site): value[members].flatten(0, 1) for site, value in additions.items()}
            with add_at_sites(self.lm, flat, length=batch.suffixes.tokens.shape[1]):
                logits.update(zip(members, suffix_logits(self.lm, batch.suffixes, rows, first), strict=True))
        return self._in_order(logits)


def _rerun_length(length: int, sites: Sequence[Site]) -> int:
    """Tokens from the earliest site on in a prompt of `length` tokens; 1 without sites."""
    for site in sites:
        if not -length <= site.position < length:
            raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
    return max((length - site.position % length for site in sites), default=1)


def read_prompts(lm: LanguageModel, ids: Sequence[Sequence[int]], sites: Sequence[Site] = ()) -> Prompts:
    """`CachedPrompts`: what patches at `sites` leave as it is, is computed once."""
    return CachedPrompts(lm, ids, sites)
