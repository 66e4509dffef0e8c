"""A set of prompts read at their last token: unpatched once, then under batches of patches.

`Prompts` runs every patch as a full forward and takes any site. `CachedPrompts` takes sites at the last position
alone: the keys and values of all earlier tokens are computed once, and prompts and patches share one batch of
single-token decode steps.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from sparse_control.models import LanguageModel
from sparse_control.models.decode import decode_logits, read_prefixes
from sparse_control.models.sites import Site, add_at_sites, capturing_sites, site_width

MAXIMUM_ROWS = 128    # prompt-patch rows of one forward; bounds the (rows, V) logits in memory


def _by_length(ids: Sequence[Tensor]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for index, prompt in enumerate(ids):
        groups.setdefault(len(prompt), []).append(index)
    return list(groups.values())


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
        with torch.no_grad():
            self.logits, self.activations = self._unpatched(sites)

    def _unpatched(self, sites: Sequence[Site]) -> tuple[Tensor, dict[Site, Tensor]]:
        logits: dict[int, Tensor] = {}
        activations: dict[Site, dict[int, Tensor]] = {site: {} for site in sites}
        for group in _by_length(self.ids):
            with capturing_sites(self.lm, sites) as captured:
                output = self._full_forward(torch.stack([self.ids[i] for i in group]))
            logits.update(zip(group, output))
            for site in sites:
                activations[site].update(zip(group, _at_position(captured[site], site)))
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
        return {site: gradient[:, 0] for site, gradient in zip(sites, gradients)}


class CachedPrompts(Prompts):
    """P prompts, read by decode steps on cached keys and values; all sites must be at position -1.

    Raises:
        ValueError: as `Prompts`, and a site at another position.
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """

    def __init__(self, lm: LanguageModel, ids: Sequence[Sequence[int]], sites: Sequence[Site] = ()) -> None:
        _check_last(sites)
        super().__init__(lm, ids, sites)

    def _unpatched(self, sites: Sequence[Site]) -> tuple[Tensor, dict[Site, Tensor]]:
        self._prefixes = read_prefixes(self.lm, self.ids)
        with capturing_sites(self.lm, sites) as captured:
            logits = decode_logits(self.lm, self._prefixes)
        return logits[:, 0], {site: captured[site][:, 0] for site in sites}

    def take(self, index: Tensor) -> Self:
        taken = super().take(index)
        taken._prefixes = self._prefixes.take(index)
        return taken

    def _patched(self, additions: Mapping[Site, Tensor]) -> Tensor:
        _check_last(additions)
        rows = next(iter(additions.values())).shape[1]
        flat = {site: value.reshape(len(self) * rows, -1) for site, value in additions.items()}
        with add_at_sites(self.lm, flat, length=1):
            return decode_logits(self.lm, self._prefixes, rows)


def _check_last(sites: Sequence[Site] | Mapping[Site, Tensor]) -> None:
    for site in sites:
        if site.position != -1:
            raise ValueError(f"site {site.name}: cached prompts are patched at position -1 alone; use Prompts")


def read_prompts(lm: LanguageModel, ids: Sequence[Sequence[int]], sites: Sequence[Site] = ()) -> Prompts:
    """`CachedPrompts` where all sites are at the last position, else `Prompts`."""
    kind = CachedPrompts if all(site.position == -1 for site in sites) else Prompts
    return kind(lm, ids, sites)
