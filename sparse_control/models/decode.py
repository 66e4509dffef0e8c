"""Single-token decode steps on cached keys and values.

Attention is causal, so nothing at earlier positions depends on the last token's residual states: the keys and values
before it are computed once, and every patch, tangent and cotangent reuses them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from sparse_control.errors import UnsupportedModel
from sparse_control.models.batches import group_by_length
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.merge import merged_mlps
from sparse_control.models.stream import block_input_as_leaf, capturing_stream, unwrap

TOKEN_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DECODE_ATTENTION = "sparse_control_decode"


@dataclass(frozen=True)
class Prefixes:
    """Keys and values before the last token of P prompts, padded on the right.

    Attributes:
        keys, values: per layer (P, key/value heads, tokens, head_dim); sliding windows keep fewer tokens.
        bias: per layer (P, 1, tokens + 1), -inf at the padding and 0 else, the new token's own place last.
        last: (P,) last token ids.
        positions: (P,) their positions.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    bias: tuple[Tensor, ...]
    last: Tensor
    positions: Tensor

    def __len__(self) -> int:
        return len(self.last)

    def take(self, index: Tensor) -> "Prefixes":
        """The prefixes of some prompts, in the order of `index`."""
        layers = (tuple(tensor[index] for tensor in part) for part in (self.keys, self.values, self.bias))
        return Prefixes(*layers, self.last[index], self.positions[index])


def as_prompt(lm: LanguageModel, input_ids: Sequence[int] | Tensor, name: str) -> Tensor:
    """Token ids (T,) on the model's device.

    Raises:
        ValueError: not one sequence of at least two ids of the model's vocabulary.
    """
    try:
        ids = torch.as_tensor(input_ids, device=lm.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a sequence of token ids, got {input_ids!r}; encode text first") from error
    if ids.ndim != 1 or len(ids) < 2 or ids.dtype not in TOKEN_DTYPES:
        raise ValueError(f"{name} must be token ids (T,) with T >= 2, got {ids.dtype} of shape {tuple(ids.shape)}")
    vocabulary = lm.model.get_input_embeddings().num_embeddings
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise ValueError(f"{name} must hold ids in 0..{vocabulary - 1}, got {int(ids.min())}..{int(ids.max())}")
    return ids


@torch.no_grad()
def read_prefixes(lm: LanguageModel, ids: Sequence[Tensor]) -> Prefixes:
    """Run all tokens but the last of each prompt; prompts of equal length share a forward.

    Args:
        ids: P sequences (T_i,), T_i >= 2.

    Raises:
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """
    cached: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for group in group_by_length(ids):
        before = torch.stack([ids[index][:-1] for index in group])
        layers = lm.model.base_model(input_ids=before, use_cache=True).cache.layers
        if len(layers) != lm.n_layers or any(getattr(layer, "keys", None) is None for layer in layers):
            raise UnsupportedModel(f"{lm.name}: not every layer caches plain keys and values")
        for row, index in enumerate(group):
            cached[index] = [(layer.keys[row], layer.values[row]) for layer in layers]
    by_layer = [[cached[index][layer] for index in range(len(ids))] for layer in range(lm.n_layers)]
    return Prefixes(
        keys=tuple(_padded([key for key, _ in layer]) for layer in by_layer),
        values=tuple(_padded([value for _, value in layer]) for layer in by_layer),
        bias=tuple(_padding_bias([key for key, _ in layer]) for layer in by_layer),
        last=torch.stack([prompt[-1] for prompt in ids]),
        positions=torch.tensor([len(prompt) - 1 for prompt in ids], device=lm.device),
    )


def _padded(tensors: Sequence[Tensor]) -> Tensor:
    """(P, heads, longest, head_dim) from P tensors (heads, tokens, head_dim)."""
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.stack([nn.functional.pad(tensor, (0, 0, 0, longest - tensor.shape[1])) for tensor in tensors])


def _padding_bias(tensors: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([tensor.shape[1] for tensor in tensors], device=tensors[0].device)[:, None]
    places = torch.arange(int(lengths.max()) + 1, device=lengths.device)
    hidden = (places >= lengths) & (places < places[-1])
    bias = torch.zeros(hidden.shape, dtype=tensors[0].dtype, device=lengths.device).masked_fill(hidden, -torch.inf)
    return bias[:, None]


@dataclass(frozen=True)
class _Decoding:
    """What the attention of a decode step reads; `linear`: its value plus its Jacobian, for first derivatives."""

    prefixes: Prefixes
    linear: bool


_active: ContextVar[_Decoding] = ContextVar("active_decoding")


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """(P, m, a) @ (P, a, b); one prompt goes through a plain 2-D product, whose rows vmap can fold into one GEMM."""
    return rows[0].mm(matrices[0])[None] if len(matrices) == 1 else rows.bmm(matrices)


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
    """Attention of one new token per row; the R rows of a prompt share its keys and values without copies.

    Written as plain matrix products per key/value head, so that rows, tangents and cotangents become rows of one
    product and forward-mode differentiation has its rules.
    """
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks and position biases are not supported")
    prefixes = _active.get().prefixes
    keys, values = prefixes.keys[module.layer_idx], prefixes.values[module.layer_idx]
    prompts, heads, _, dim = keys.shape
    groups = query.shape[1] // heads
    scaling = dim**-0.5 if scaling is None else scaling
    if _active.get().linear:
        return _linear_attention(query, key, value, keys[0], values[0], scaling, softcap), None
    bias = prefixes.bias[module.layer_idx]  # (P, 1, T)
    outputs = []
    for head in range(heads):
        q = query[:, head * groups : (head + 1) * groups, 0]  # (P R, G, dim)
        before = _product(q.reshape(prompts, -1, dim), keys[:, head].mT).view(*q.shape[:2], -1)
        own = (q * key[:, head]).sum(-1, keepdim=True)  # (P R, G, 1)
        scores = torch.cat([before, own], dim=-1) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if prompts > 1:
            scores = (scores.view(prompts, -1, scores.shape[-1]) + bias).view_as(scores)
        weights = scores.softmax(dim=-1)
        mixed = _product(weights[..., :-1].reshape(prompts, -1, keys.shape[2]), values[:, head]).view_as(q)
        outputs.append(mixed + weights[..., -1:] * value[:, head])
    return torch.cat(outputs, dim=1).unsqueeze(1), None  # (P R, 1, heads G, dim)


def _linear_attention(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scaling: float, softcap: float | None
) -> Tensor:
    """Attention of one new token of one prompt as its value plus its Jacobian, one (dim, dim) matrix per head.

    Rows of tangents and cotangents then meet small matrices and no longer the prefix and the softmax.

    Args:
        query: (1, heads G, 1, dim).
        key, value: (1, heads, 1, dim), the new token's own.
        keys, values: (heads, T, dim), of the prefix.

    Returns:
        (1, 1, heads G, dim).
    """
    heads, _, dim = keys.shape
    with torch.no_grad():
        all_keys, all_values = (torch.cat([before, own[0]], dim=1) for before, own in ((keys, key), (values, value)))
        grouped = query.view(heads, -1, dim)  # (heads, G, dim)
        scores = grouped @ all_keys.mT * scaling  # (heads, G, T + 1)
        slope = torch.full_like(scores, scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap)
            slope, scores = slope * (1 - scores.square()), scores * softcap
        weights = scores.softmax(dim=-1)
        mixed = weights @ all_values  # (heads, G, dim)
        # d mixed = sum_t (v_t - mixed) w_t d score_t + w_own d v_own
        pull = (all_values[:, None] - mixed[:, :, None]) * (weights * slope)[..., None]  # (heads, G, T + 1, dim)
        by_query = (all_keys.mT[:, None] @ pull).flatten(0, 1)  # (heads G, dim in, dim out)
        by_key = (grouped[..., None] * pull[:, :, -1:]).transpose(1, 2).flatten(2)  # (heads, dim in, G dim out)
        by_value = weights[:, :, -1:, None] * torch.eye(dim, dtype=values.dtype, device=values.device)
        by_value = by_value.transpose(1, 2).flatten(2)
    # zero in value, with the derivative: sums of plain 2-D products, whose rows vmap folds into one GEMM
    queries, owns, own_values = ((part - part.detach())[:, :, 0].unbind(1) for part in (query, key, value))
    from_queries = torch.stack([row @ matrix for row, matrix in zip(queries, by_query)], dim=1)  # (1, heads G, dim)
    from_own = [k @ left + v @ right for k, v, left, right in zip(owns, own_values, by_key, by_value)]
    change = from_queries + torch.stack(from_own, dim=1).view_as(from_queries)
    return (mixed.view_as(change) + change)[:, None]


AttentionInterface.register(DECODE_ATTENTION, _decode_attention)


@contextmanager
def using_attention(lm: LanguageModel, name: str) -> Iterator[None]:
    """Let the model's attention be a registered one; its configuration is put back on any exit."""
    configs = {
        id(module.config): module.config
        for module in lm.model.modules()
        if getattr(module, "config", None) is not None and hasattr(module.config, "_attn_implementation")
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


@contextmanager
def _decoding(lm: LanguageModel, prefixes: Prefixes, linear: bool = False) -> Iterator[None]:
    """Let the model's attention read `prefixes`."""
    token = _active.set(_Decoding(prefixes, linear))
    try:
        with using_attention(lm, DECODE_ATTENTION):
            yield
    finally:
        _active.reset(token)


def _forward(lm: LanguageModel, model: nn.Module, prefixes: Prefixes, rows: int, linear: bool = False) -> Any:
    with _decoding(lm, prefixes, linear):
        return model(
            input_ids=prefixes.last.repeat_interleave(rows)[:, None],
            position_ids=prefixes.positions.repeat_interleave(rows)[:, None],
            use_cache=False,
        )


def decode_logits(lm: LanguageModel, prefixes: Prefixes, rows: int = 1) -> Tensor:
    """Logits (P, rows, V) at the last token: one forward of P * rows single tokens, the rows of a prompt side by side.

    Differentiable where grad is on; hooks of the caller act on batch rows in that order.
    """
    logits = _forward(lm, lm.model, prefixes, rows).logits[:, -1]
    return logits.view(len(prefixes), rows, -1)


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
        self.lm = lm
        self._prefixes = read_prefixes(lm, [as_prompt(lm, input_ids, "input_ids")])

    @classmethod
    def batch(cls, lm: LanguageModel, prompts: Sequence[Tensor]) -> list["DecodeStep"]:
        """The steps of several prompts; those of equal length share the forward over their first tokens."""
        steps = {}
        for group in group_by_length(prompts):
            prefixes = read_prefixes(lm, [prompts[index] for index in group])
            for row, index in enumerate(group):
                steps[index] = step = cls.__new__(cls)
                step.lm, step._prefixes = lm, prefixes.take(torch.tensor([row], device=lm.device))
        return [steps[index] for index in range(len(prompts))]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values it holds."""
        return sum(tensor.nbytes for tensor in self._prefixes.keys + self._prefixes.values)

    def stream(self, first: int = 0, rows: int = 1) -> list[Tensor]:
        """h^0..h^L of the last token, (1, 1, d) each, with the graph from h^first on, a leaf that requires grad.

        The graph is for first derivatives: attention, and MLPs where it pays, are their values plus their Jacobians.

        Args:
            first: source layer, 0..L-1.
            rows: how many cotangents will pass; merging an MLP costs as much as pulling about d / 2 through it.
        """
        merging = merged_mlps(self.lm) if 2 * rows > self.lm.width else nullcontext()
        with torch.enable_grad(), block_input_as_leaf(self.lm, first), merging, capturing_stream(self.lm) as stream:
            _forward(self.lm, self.lm.model.base_model, self._prefixes, rows=1, linear=True)
        return stream

    @torch.no_grad()
    def block_functions(self) -> list[Callable[[Tensor], Tensor]]:
        """Block l at the last token as a function h^l (B, d) -> h^(l+1) (B, d), for every l."""
        calls: list[tuple[tuple, dict]] = []

        def record(_module: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append((args[1:], kwargs) if args else ((), {k: v for k, v in kwargs.items() if k != "hidden_states"}))

        handles = [block.register_forward_pre_hook(record, with_kwargs=True) for block in self.lm.layout.blocks]
        try:
            _forward(self.lm, self.lm.model.base_model, self._prefixes, rows=1)
        finally:
            for handle in handles:
                handle.remove()

        def function(block: nn.Module, args: tuple, kwargs: dict) -> Callable[[Tensor], Tensor]:
            def run(hidden: Tensor) -> Tensor:
                with _decoding(self.lm, self._prefixes):
                    return unwrap(block(hidden.unsqueeze(1), *args, **kwargs)).squeeze(1)

            return run

        return [function(block, *call) for block, call in zip(self.lm.layout.blocks, calls)]
