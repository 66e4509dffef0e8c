"""Single-token decode steps on cached keys and values.

Attention is causal, so nothing at earlier positions depends on the last token's residual states: the keys and values
before it are computed once, and every tangent and cotangent reuses them.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from sparse_control.arguments import brief
from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.batches import group_by_length
from sparse_control.models.hooks import STRANGER
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.merge import merged_mlps
from sparse_control.models.own_attention import ByPosition, calling
from sparse_control.models.stream import block_input_as_leaf, capturing_stream, check_no_autocast, unwrap

TOKEN_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DECODE_ATTENTION, SUFFIX_ATTENTION = "sparse_control_decode", "sparse_control_suffix"
_SWITCHING = threading.Lock()


def as_prompt(lm: LanguageModel, input_ids: Sequence[int] | Tensor, name: str) -> Tensor:
    """Token ids (T,) on the model's device.

    Raises:
        ValueError: not one sequence of at least two ids of the model's vocabulary, or one that is too long for it.
    """
    try:
        ids = torch.as_tensor(input_ids, device=lm.device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{name} must be a sequence of token ids, got {brief(input_ids)}; encode text first"
        ) from error
    if ids.ndim != 1 or len(ids) < 2 or ids.dtype not in TOKEN_DTYPES:
        raise ValueError(f"{name} must be token ids (T,) with T >= 2, got {ids.dtype} of shape {tuple(ids.shape)}")
    if not 0 <= int(ids.min()) <= int(ids.max()) < lm.vocabulary:
        raise ValueError(f"{name} must hold ids in 0..{lm.vocabulary - 1}, got {int(ids.min())}..{int(ids.max())}")
    lm.check_length(len(ids), name)
    return ids


@torch.no_grad()
def read_cache(lm: LanguageModel, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer after a forward over `tokens` (B, T): (B, key/value heads, tokens, head_dim) each.

    Sliding windows keep fewer tokens, the last ones.

    Raises:
        UnsupportedModel: the model keeps no plain keys and values per layer, or is run under autocast.
    """
    check_no_autocast(lm)
    layers = lm.layout.decoder(input_ids=tokens, use_cache=True).cache.layers
    if len(layers) != lm.n_layers or any(getattr(layer, "keys", None) is None for layer in layers):
        raise UnsupportedModel(f"{lm.name}: not every layer caches plain keys and values")
    return [(layer.keys, layer.values) for layer in layers]


@contextmanager
def using_attention(lm: LanguageModel, name: str) -> Iterator[None]:
    """Let the model's attention be a registered one; its configuration is put back on any exit.

    Raises:
        InputError: another thread is using the model so.
    """
    if lm.layout.adapter is not None:
        with calling(lm.layout.adapter, lm.layout.blocks, name, f"{lm.name}: {STRANGER}"):
            yield
        return
    configs = {
        id(module.config): module.config
        for module in lm.model.modules()
        if getattr(module, "config", None) is not None and hasattr(module.config, "_attn_implementation")
    }
    with _SWITCHING:
        before = {key: config._attn_implementation for key, config in configs.items()}
        if any(name in (DECODE_ATTENTION, SUFFIX_ATTENTION) for name in before.values()):
            raise InputError(f"{lm.name}: {STRANGER}")
        for config in configs.values():
            config._attn_implementation = name
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def check_heads(lm: LanguageModel, query: Tensor, key: Tensor, value: Tensor, cached: tuple[Tensor, Tensor]) -> None:
    """Refuse an attention whose cache is not its keys and values, or whose heads the output projection does not take.

    Args:
        query: (B, heads, S, key width).
        key: (B, key/value heads, S, key width).
        value: (B, key/value heads, S, head_dim).
        cached: keys and values before them, of any number of tokens.

    Raises:
        UnsupportedModel: another form of cache, or heads of another number or width.
    """
    own, before = ([(part.shape[-3], part.shape[-1]) for part in pair] for pair in ((key, value), cached))
    if own != before:
        raise UnsupportedModel(f"{lm.name}: caches something other than the keys and values of its heads")
    found = (query.shape[1], value.shape[-1])
    if found != (lm.n_heads, lm.head_dim):
        raise UnsupportedModel(
            f"{lm.name}: attention has {found[0]} heads of width {found[1]}, its output projection takes "
            f"{lm.n_heads} of {lm.head_dim}"
        )


@dataclass(frozen=True)
class _Decoding:
    """What the attention of a decode step reads.

    Attributes:
        lm: the model.
        cache: per layer keys (key/value heads, T, key width) and values (key/value heads, T, head_dim).
        linear: attention is its value plus its Jacobian, for first derivatives.
        marked: layer and head to whose output one is added, or None.
    """

    lm: LanguageModel
    cache: Sequence[tuple[Tensor, Tensor]]
    linear: bool
    marked: tuple[int, int] | None = None


_active: ContextVar[_Decoding] = ContextVar("active_decoding")


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
    alibi: ByPosition | None = None,
    **_ignored: object,
) -> tuple[Tensor, None]:
    """Attention of one new token after the cached ones, (1, heads G, 1, key width) -> (1, 1, heads G, head_dim).

    Written as plain matrix products per key/value head, so that forward-mode differentiation has its rules.
    """
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks and position biases are not supported")
    decoding = _active.get(None)
    if decoding is None:  # the configuration is that of another thread's forward
        raise InputError(f"{type(module).__name__}: {STRANGER}")
    keys, values = decoding.cache[module.layer_idx]
    check_heads(decoding.lm, query, key, value, (keys, values))
    heads, _, dim = keys.shape
    scaling = dim**-0.5 if scaling is None else scaling
    bias = None if alibi is None else alibi(keys.shape[1] + 1).unflatten(0, (heads, -1))  # (heads, G, T + 1)
    if decoding.linear:
        return _linear_attention(query, key, value, keys, values, scaling, softcap, bias), None
    outputs = []
    for head, q in enumerate(query.reshape(heads, -1, dim)):  # (G, key width)
        own = (q * key[0, head]).sum(-1, keepdim=True)
        scores = torch.cat([q @ keys[head].T, own], dim=-1) * scaling  # (G, T + 1)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        weights = (scores if bias is None else scores + bias[head]).softmax(dim=-1)
        outputs.append(weights[:, :-1] @ values[head] + weights[:, -1:] * value[0, head])
    mixed = torch.cat(outputs)  # (heads G, head_dim)
    if decoding.marked is not None and decoding.marked[0] == module.layer_idx:
        mixed[decoding.marked[1]] += 1.0
    return mixed[None, None], None


def _linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    softcap: float | None,
    bias: Tensor | None,
) -> Tensor:
    """Attention of one new token of one prompt as its value plus its Jacobian, one small matrix per head.

    Rows of tangents and cotangents then meet small matrices and no longer the prefix and the softmax.

    Args:
        query: (1, heads G, 1, key width).
        key, value: (1, heads, 1, key width) and (1, heads, 1, dim), the new token's own.
        keys, values: (heads, T, key width) and (heads, T, dim), of the prefix.
        bias: (heads, G, T + 1), added to the scores; None: nothing is.

    Returns:
        (1, 1, heads G, dim).
    """
    heads, _, dim = values.shape
    with torch.no_grad():
        all_keys, all_values = (torch.cat([before, own[0]], dim=1) for before, own in ((keys, key), (values, value)))
        grouped = query.reshape(heads, -1, keys.shape[2])  # (heads, G, key width)
        scores = grouped @ all_keys.mT * scaling  # (heads, G, T + 1)
        slope = torch.full_like(scores, scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap)
            slope, scores = slope * (1 - scores.square()), scores * softcap
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(dim=-1)
        mixed = weights @ all_values  # (heads, G, dim)
        # d mixed = sum_t (v_t - mixed) w_t d score_t + w_own d v_own
        pull = (all_values[:, None] - mixed[:, :, None]) * (weights * slope)[..., None]  # (heads, G, T + 1, dim)
        by_query = (all_keys.mT[:, None] @ pull).flatten(0, 1)  # (heads G, key width, dim)
        by_key = (grouped[..., None] * pull[:, :, -1:]).transpose(1, 2).flatten(2)  # (heads, key width, G dim)
        by_value = weights[:, :, -1:, None] * torch.eye(dim, dtype=values.dtype, device=values.device)
        by_value = by_value.transpose(1, 2).flatten(2)
    # zero in value, with the derivative: sums of plain 2-D products, whose rows vmap folds into one GEMM
    queries, owns, own_values = ((part - part.detach())[:, :, 0].unbind(1) for part in (query, key, value))
    from_queries = torch.stack(
        [row @ matrix for row, matrix in zip(queries, by_query, strict=True)], dim=1
    )  # (1, heads G, dim)
    from_own = [k @ left + v @ right for k, v, left, right in zip(owns, own_values, by_key, by_value, strict=True)]
    change = from_queries + torch.stack(from_own, dim=1).view_as(from_queries)
    return (mixed.view_as(change) + change)[:, None]


AttentionInterface.register(DECODE_ATTENTION, _decode_attention)


class DecodeStep:
    """The last token of one prompt as a function of its own residual states, for Jacobians.

    Args:
        lm: the model.
        input_ids: (T,), T >= 2.

    Raises:
        ValueError: `input_ids` is not one sequence of at least two tokens.
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """

    def __init__(self, lm: LanguageModel, input_ids: Sequence[int] | Tensor) -> None:
        ids = as_prompt(lm, input_ids, "input_ids")
        self._set(lm, ids, read_cache(lm, ids[None, :-1]), 0)

    def _set(self, lm: LanguageModel, ids: Tensor, cache: list[tuple[Tensor, Tensor]], row: int) -> None:
        self.lm, self._last, self._position = lm, ids[-1:], len(ids) - 1
        self._cache = [(keys[row], values[row]) for keys, values in cache]

    @classmethod
    def batch(cls, lm: LanguageModel, prompts: Sequence[Tensor]) -> list["DecodeStep"]:
        """The steps of several prompts (T_i,); those of equal length share the forward over their first tokens."""
        steps = {}
        for group in group_by_length(prompts):
            lm.check_length(len(prompts[group[0]]))
            cache = read_cache(lm, torch.stack([prompts[index][:-1] for index in group]))
            for row, index in enumerate(group):
                steps[index] = cls.__new__(cls)
                steps[index]._set(lm, prompts[index], cache, row)
        return [steps[index] for index in range(len(prompts))]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values it holds."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._cache)

    @contextmanager
    def _decoding(self, linear: bool = False, marked: tuple[int, int] | None = None) -> Iterator[None]:
        token = _active.set(_Decoding(self.lm, self._cache, linear, marked))
        try:
            with using_attention(self.lm, DECODE_ATTENTION):
                yield
        finally:
            _active.reset(token)

    def _forward(self) -> None:
        position = torch.tensor([[self._position]], device=self.lm.device)
        self.lm.layout.decoder(input_ids=self._last[None], position_ids=position, use_cache=False)

    def stream(self, first: int = 0, rows: int = 1) -> list[Tensor]:
        """h^0..h^L of the last token, (1, 1, d) each, with the graph from h^first on, a leaf that requires grad.

        The graph is for first derivatives: attention, and MLPs where it pays, are their values plus their Jacobians.

        Args:
            first: source layer, 0..L-1.
            rows: how many cotangents will pass; merging an MLP costs as much as pulling about d / 2 through it.
        """
        merging = merged_mlps(self.lm) if 2 * rows > self.lm.width else nullcontext()
        with torch.enable_grad(), block_input_as_leaf(self.lm, first), merging, capturing_stream(self.lm) as stream:
            with self._decoding(linear=True):
                self._forward()
        return stream

    @torch.no_grad()
    def moved_heads(self, layer: int, head: int) -> list[int]:
        """The slices of the output projection's input that move where one is added to a head's output."""
        taken: list[Tensor] = []
        handle = self.lm.layout.attention_outputs[layer].register_forward_pre_hook(
            lambda _module, args: taken.append(args[0].flatten())
        )
        try:
            for marked in (None, (layer, head)):
                with self._decoding(marked=marked):
                    self._forward()
        finally:
            handle.remove()
        moved = (taken[0] != taken[1]).view(self.lm.n_heads, -1).any(dim=-1)
        return moved.nonzero().flatten().tolist()

    @torch.no_grad()
    def block_functions(self) -> list[Callable[[Tensor], Tensor]]:
        """Block l at the last token as a function h^l (1, d) -> h^(l+1) (1, d), for every l, by its own code."""
        calls: list[tuple[tuple, dict]] = []

        def record(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append(
                (args[1:], kwargs) if args else ((), {k: v for k, v in kwargs.items() if k != "hidden_states"})
            )

        handles = [block.register_forward_pre_hook(record, with_kwargs=True) for block in self.lm.layout.blocks]
        try:
            with self._decoding():
                self._forward()
        finally:
            for handle in handles:
                handle.remove()

        def function(block: nn.Module, args: tuple, kwargs: dict) -> Callable[[Tensor], Tensor]:
            def run(hidden: Tensor) -> Tensor:
                with self._decoding():
                    return unwrap(block(hidden.unsqueeze(1), *args, **kwargs)).squeeze(1)

            return run

        return [function(block, *call) for block, call in zip(self.lm.layout.blocks, calls, strict=True)]
