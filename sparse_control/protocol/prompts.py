"""A set of prompts read at their last token: unpatched once, then under batches of patches (definitions A2, B).

`Prompts` runs every patch as a full forward and takes any site. `CachedPrompts` takes sites at the last position
alone: the keys and values of all earlier tokens are computed once, and prompts and patches share one batch of
single-token decode steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from sparse_control.errors import UnsupportedModel
from sparse_control.models import LanguageModel
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


@dataclass(frozen=True)
class _Prefixes:
    """Keys and values (P, key/value heads, tokens, head_dim) per layer, padded on the right.

    Layers with a sliding window keep fewer tokens than others. `bias` (P, 1, 1, 1, tokens + 1) per layer is -inf at
    the padding and 0 else, the new token included.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    bias: tuple[Tensor, ...]

    def take(self, index: Tensor) -> "_Prefixes":
        return _Prefixes(*(tuple(tensor[index] for tensor in part) for part in (self.keys, self.values, self.bias)))


DECODE_ATTENTION = "sparse_control_decode_prompts"
_active: ContextVar[_Prefixes] = ContextVar("active_prefixes")


def _decode_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_ignored: object,
) -> tuple[Tensor, None]:
    """Attention of one new token per row; the R rows of a prompt share its keys and values without copies."""
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks and position biases are not supported")
    prefixes = _active.get()
    keys, values = prefixes.keys[module.layer_idx], prefixes.values[module.layer_idx]
    n, kv, _, dim = keys.shape
    rows, groups = query.shape[0] // n, query.shape[1] // kv
    scaling = dim**-0.5 if scaling is None else scaling

    def by_prompt(x: Tensor, per_head: int) -> Tensor:  # (P R, kv G, 1, dim) -> (P, kv, R, G, dim)
        return x.view(n, rows, kv, per_head, dim).transpose(1, 2)

    q, own_key, own_value = by_prompt(query, groups), by_prompt(key, 1), by_prompt(value, 1)
    flat = q.reshape(n, kv, rows * groups, dim)
    before = (flat @ keys.transpose(-1, -2)).view(n, kv, rows, groups, -1)
    own = (q * own_key).sum(-1, keepdim=True)
    scores = torch.cat([before, own], dim=-1) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = (scores + prefixes.bias[module.layer_idx]).softmax(dim=-1)
    mixed = (weights[..., :-1].reshape(n, kv, rows * groups, -1) @ values).view_as(q)
    output = mixed + weights[..., -1:] * own_value
    return output.transpose(1, 2).reshape(n * rows, 1, kv * groups, dim), None


AttentionInterface.register(DECODE_ATTENTION, _decode_attention)


@contextmanager
def _decoding(lm: LanguageModel, prefixes: _Prefixes) -> Iterator[None]:
    """Let the model's attention read `prefixes`; its configuration is put back on any exit."""
    configs = {
        id(module.config): module.config
        for module in lm.model.modules()
        if getattr(module, "config", None) is not None and hasattr(module.config, "_attn_implementation")
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    token = _active.set(prefixes)
    try:
        for config in configs.values():
            config._attn_implementation = DECODE_ATTENTION
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]
        _active.reset(token)


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
        caches: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for group in _by_length(self.ids):
            before = torch.stack([self.ids[i][:-1] for i in group])
            layers = self.lm.model.base_model(input_ids=before, use_cache=True).cache.layers
            if len(layers) != self.lm.n_layers or any(getattr(layer, "keys", None) is None for layer in layers):
                raise UnsupportedModel(f"{self.lm.name}: not every layer caches plain keys and values")
            for row, index in enumerate(group):
                caches[index] = [(layer.keys[row], layer.values[row]) for layer in layers]
        by_layer = [[caches[i][layer] for i in range(len(self))] for layer in range(self.lm.n_layers)]
        self._prefixes = _Prefixes(
            keys=tuple(_padded([key for key, _ in layer]) for layer in by_layer),
            values=tuple(_padded([value for _, value in layer]) for layer in by_layer),
            bias=tuple(_padding_bias([key for key, _ in layer]) for layer in by_layer),
        )
        self._last = torch.stack([prompt[-1] for prompt in self.ids])
        self._positions = torch.tensor([len(prompt) - 1 for prompt in self.ids], device=self.lm.device)
        with capturing_sites(self.lm, sites) as captured:
            logits = self._decode(1)
        return logits[:, 0], {site: captured[site][:, 0] for site in sites}

    def take(self, index: Tensor) -> Self:
        taken = super().take(index)
        taken._prefixes = self._prefixes.take(index)
        taken._last, taken._positions = self._last[index], self._positions[index]
        return taken

    def _decode(self, rows: int) -> Tensor:
        """(P, rows, V): one forward of P * rows single tokens, the rows of a prompt side by side."""
        with _decoding(self.lm, self._prefixes):
            logits = self.lm.model(
                input_ids=self._last.repeat_interleave(rows)[:, None],
                position_ids=self._positions.repeat_interleave(rows)[:, None],
                use_cache=False,
            ).logits[:, -1]
        return logits.view(len(self), rows, -1)

    def _patched(self, additions: Mapping[Site, Tensor]) -> Tensor:
        _check_last(additions)
        rows = next(iter(additions.values())).shape[1]
        flat = {site: value.reshape(len(self) * rows, -1) for site, value in additions.items()}
        with add_at_sites(self.lm, flat, length=1):
            return self._decode(rows)


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """(P, heads, longest, head_dim) from P tensors (heads, tokens, head_dim)."""
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.stack([nn.functional.pad(tensor, (0, 0, 0, longest - tensor.shape[1])) for tensor in tensors])


def _padding_bias(tensors: Sequence[Tensor]) -> Tensor:
    """(P, 1, 1, 1, longest + 1): -inf where `_padded` padded; the last place is the new token's own."""
    lengths = torch.tensor([tensor.shape[1] for tensor in tensors], device=tensors[0].device)[:, None]
    places = torch.arange(int(lengths.max()) + 1, device=lengths.device)
    hidden = (places >= lengths) & (places < places[-1])
    bias = torch.zeros(hidden.shape, dtype=tensors[0].dtype, device=lengths.device).masked_fill(hidden, -torch.inf)
    return bias[:, None, None, None]


def _check_last(sites: Sequence[Site] | Mapping[Site, Tensor]) -> None:
    for site in sites:
        if site.position != -1:
            raise ValueError(f"site {site.name}: cached prompts are patched at position -1 alone; use Prompts")


def read_prompts(lm: LanguageModel, ids: Sequence[Sequence[int]], sites: Sequence[Site] = ()) -> Prompts:
    """`CachedPrompts` where all sites are at the last position, else `Prompts`."""
    kind = CachedPrompts if all(site.position == -1 for site in sites) else Prompts
    return kind(lm, ids, sites)
