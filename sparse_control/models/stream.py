"""The residual stream, and one decode step on cached keys and values (definitions A1, A2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from sparse_control.errors import UnsupportedModel
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.sites import Site, add_at_sites, capturing_sites, site_width

DECODE_ATTENTION = "sparse_control_decode"


def unwrap(output: Tensor | tuple) -> Tensor:
    """The hidden state of a block's output, which is a tensor in some library versions and a tuple in others."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _capturing_stream(lm: LanguageModel) -> Iterator[list[Tensor]]:
    """Collect h^0..h^L of each forward, (B, T, d) each."""
    stream: list[Tensor] = []

    def first_input(_module: nn.Module, args: tuple, kwargs: dict) -> None:
        stream.append(args[0] if args else kwargs["hidden_states"])

    def block_output(_module: nn.Module, _args: tuple, output: Tensor | tuple) -> None:
        stream.append(unwrap(output))

    handles = [lm.layout.blocks[0].register_forward_pre_hook(first_input, with_kwargs=True)]
    handles += [block.register_forward_hook(block_output) for block in lm.layout.blocks]
    try:
        yield stream
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def first_input_as_leaf(lm: LanguageModel) -> Iterator[None]:
    """Cut the graph below the first block: in each forward h^0 becomes a leaf that requires grad."""

    def cut(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (args[0].detach().requires_grad_(), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": kwargs["hidden_states"].detach().requires_grad_()}

    handle = lm.layout.blocks[0].register_forward_pre_hook(cut, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def full_stream(lm: LanguageModel, input_ids: Tensor) -> list[Tensor]:
    """h^0..h^L at every position: L+1 tensors (B, T, d), by hooks on the blocks; differentiable where grad is on.

    `h^L` is the last block's output, before the final norm (`hidden_states[-1]` is after it).

    Args:
        input_ids: (B, T), equal lengths, no padding.
    """
    with _capturing_stream(lm) as stream:
        lm.model.base_model(input_ids=input_ids, use_cache=False)
    if len(stream) != lm.n_layers + 1:
        raise UnsupportedModel(f"{lm.name}: {len(stream)} residual states captured, expected {lm.n_layers + 1}")
    return stream


@torch.no_grad()
def residual_stream(lm: LanguageModel, input_ids: Tensor) -> Tensor:
    """Query-end residual states h^0..h^L at the last token (source document, 1; definitions A1).

    Args:
        input_ids: (B, T), equal lengths, no padding.

    Returns:
        (B, L+1, d), float32 or the model's dtype where that is wider.
    """
    last = torch.stack([state[:, -1] for state in full_stream(lm, input_ids)], dim=1)
    return last if last.dtype == torch.float64 else last.float()


@dataclass(frozen=True)
class Prefix:
    """Keys and values before the last token, per layer: (key/value heads, tokens, head_dim)."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


_active_prefix: ContextVar[Prefix] = ContextVar("active_prefix")


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
    """Attention of one new token per batch row over a prefix that all rows share.

    Written as plain matrix products per key/value head, so that a batch of rows, tangents or
    cotangents becomes rows of one product, and forward-mode differentiation has its rules.
    """
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks and position biases are not supported")
    prefix = _active_prefix.get()
    keys, values = prefix.keys[module.layer_idx], prefix.values[module.layer_idx]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // keys.shape[0]
    outputs = []
    for head in range(keys.shape[0]):
        q = query[:, head * groups : (head + 1) * groups, 0]  # (B, G, head_dim)
        before = q.reshape(-1, q.shape[-1]).mm(keys[head].T).view(*q.shape[:-1], -1)  # (B, G, T-1)
        own = (q * key[:, head]).sum(-1, keepdim=True)  # (B, G, 1)
        scores = torch.cat([before, own], dim=-1) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        weights = scores.softmax(dim=-1)
        weights_before = weights[..., :-1]
        mixed = weights_before.reshape(-1, keys.shape[1]).mm(values[head]).view(*q.shape[:-1], -1)
        outputs.append(mixed + weights[..., -1:] * value[:, head])
    return torch.cat(outputs, dim=1).unsqueeze(1), None  # (B, 1, H, head_dim)


AttentionInterface.register(DECODE_ATTENTION, _decode_attention)


@contextmanager
def _decoding(lm: LanguageModel, prefix: Prefix) -> Iterator[None]:
    """Let the model's attention read `prefix`; its configuration is put back on any exit."""
    configs = {
        id(module.config): module.config
        for module in lm.model.modules()
        if getattr(module, "config", None) is not None and hasattr(module.config, "_attn_implementation")
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    token = _active_prefix.set(prefix)
    try:
        for config in configs.values():
            config._attn_implementation = DECODE_ATTENTION
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]
        _active_prefix.reset(token)


class DecodeStep:
    """The last token of a prompt as a single-token decode step on the keys and values of the tokens before it.

    Attention is causal, so nothing at earlier positions depends on the last token's residual states;
    their keys and values are computed once and every patch, tangent and cotangent reuses them.

    Args:
        lm: the model.
        input_ids: (T,), T >= 2.

    Raises:
        ValueError: `input_ids` is not one sequence of at least two tokens.
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """

    def __init__(self, lm: LanguageModel, input_ids: Tensor) -> None:
        input_ids = torch.as_tensor(input_ids, device=lm.device)
        if input_ids.ndim != 1 or len(input_ids) < 2:
            raise ValueError(f"input_ids must be (T,) with T >= 2, got shape {tuple(input_ids.shape)}")
        self.lm = lm
        self.n_tokens = len(input_ids)
        self._last = input_ids[-1:]
        with torch.no_grad():
            cache = lm.model.base_model(input_ids=input_ids[None, :-1], use_cache=True).cache
        layers = cache.layers
        if len(layers) != lm.n_layers or any(getattr(layer, "keys", None) is None for layer in layers):
            raise UnsupportedModel(f"{lm.name}: not every layer caches plain keys and values")
        self._prefix = Prefix(tuple(layer.keys[0] for layer in layers), tuple(layer.values[0] for layer in layers))

    def _forward(self, model: nn.Module, batch: int = 1) -> object:
        with _decoding(self.lm, self._prefix):
            position = torch.full((batch, 1), self.n_tokens - 1, device=self.lm.device)
            return model(input_ids=self._last.expand(batch, 1), position_ids=position, use_cache=False)

    def _logits(self, batch: int = 1) -> Tensor:
        return self._forward(self.lm.model, batch).logits[:, -1]  # (B, V)

    @torch.no_grad()
    def logits(self, additions: Mapping[Site, Tensor] | None = None) -> Tensor:
        """Logits (B, V) at the last token under B different patches of the same prompt.

        Args:
            additions: what is added at each site, (B, site width) each, all at position -1; None: unpatched, B = 1.
        """
        if not additions:
            return self._logits()
        batch = {len(value) for value in additions.values()}
        if len(batch) != 1:
            raise ValueError(f"additions must have one batch size, got {sorted(batch)}")
        if any(site.position != -1 for site in additions):
            raise ValueError("additions of a decode step must all be at position -1")
        with add_at_sites(self.lm, additions, length=1):
            return self._logits(batch.pop())

    @torch.no_grad()
    def activations(self, sites: Sequence[Site]) -> dict[Site, Tensor]:
        """Unpatched activations (site width,) at the last token."""
        with capturing_sites(self.lm, sites) as captured:
            self._forward(self.lm.model.base_model)
        return {site: captured[site][0, -1] for site in sites}

    def site_gradients(self, sites: Sequence[Site], direction: Tensor) -> dict[Site, Tensor]:
        """Gradient of `<direction, logits>` with respect to what is added at each site.

        Args:
            direction: (V,) cotangent on the logits.

        Returns:
            (site width,) for each site.
        """
        with torch.enable_grad():
            zeros = {
                site: torch.zeros(1, site_width(self.lm, site), dtype=direction.dtype, device=self.lm.device).requires_grad_()
                for site in sites
            }
            with add_at_sites(self.lm, zeros, length=1):
                value = (self._logits()[0] * direction).sum()
            return {site: g[0] for site, g in zip(sites, torch.autograd.grad(value, list(zeros.values())))}

    def stream(self) -> list[Tensor]:
        """h^0..h^L of the last token, (1, 1, d) each, with the graph from h^0 on: h^0 is a leaf that requires grad."""
        with torch.enable_grad(), first_input_as_leaf(self.lm), _capturing_stream(self.lm) as stream:
            self._forward(self.lm.model.base_model)
        return stream

    def block_functions(self) -> list[Callable[[Tensor], Tensor]]:
        """Block l at the last token as a function h^l (B, d) -> h^(l+1) (B, d), for every l."""
        calls: list[tuple[tuple, dict]] = []

        def record(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append((args[1:], kwargs) if args else ((), {k: v for k, v in kwargs.items() if k != "hidden_states"}))

        handles = [block.register_forward_pre_hook(record, with_kwargs=True) for block in self.lm.layout.blocks]
        try:
            with torch.no_grad():
                self._forward(self.lm.model.base_model)
        finally:
            for handle in handles:
                handle.remove()

        def function(block: nn.Module, args: tuple, kwargs: dict) -> Callable[[Tensor], Tensor]:
            def run(hidden: Tensor) -> Tensor:
                with _decoding(self.lm, self._prefix):
                    return unwrap(block(hidden.unsqueeze(1), *args, **kwargs)).squeeze(1)

            return run

        return [function(block, *call) for block, call in zip(self.lm.layout.blocks, calls)]
