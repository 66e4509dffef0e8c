"""The last tokens of prompts, run in many patched copies on keys and values that are computed once.

Attention is causal, so a patch leaves everything before its position as it was, and everything below its block as well:
a forward starts at the earliest patched position and at the first patched block.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models.batches import group_by_length
from sparse_control.models.decode import SUFFIX_ATTENTION, read_cache, using_attention
from sparse_control.models.hooks import STRANGER
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.own_attention import ByPosition
from sparse_control.models.stream import capturing_stream, changing_block_input, check_no_autocast

KEPT_BYTES = 1 << 28  # of unpatched states per set of prompts


@dataclass(frozen=True)
class Suffixes:
    """The last S tokens of P prompts and what the tokens before them left behind, padded on the right.

    Attributes:
        keys, values: per layer (P, key/value heads, tokens, head_dim), of the tokens before; windows keep fewer.
        bias: per layer (P, S, tokens + S), added to the scores: -inf where a token is not seen, else 0.
        tokens: (P, S) ids.
        positions: (P, S).
        states: h^0..h^L of the unpatched suffixes, (P, S, d) each; empty where they are not kept.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    bias: tuple[Tensor, ...]
    tokens: Tensor
    positions: Tensor
    states: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, index: Tensor) -> "Suffixes":
        """The suffixes of some prompts, in the order of `index`."""
        parts = (self.keys, self.values, self.bias, self.states)
        keys, values, bias, states = (tuple(tensor[index] for tensor in part) for part in parts)
        return Suffixes(keys, values, bias, self.tokens[index], self.positions[index], states)


@torch.no_grad()
def read_suffixes(lm: LanguageModel, ids: Sequence[Tensor], length: int) -> Suffixes:
    """Run all but the last tokens of the prompts; those of equal length share a forward.

    Args:
        ids: P sequences (T_i,), T_i >= S.
        length: S, tokens that will be run again under patches.

    Raises:
        InputError: a prompt is too long for the model.
        UnsupportedModel: the model keeps no plain keys and values per layer.
    """
    for index, prompt in enumerate(ids):
        lm.check_length(len(prompt), f"prompts[{index}]")
    before = [prompt[: len(prompt) - length] for prompt in ids]
    cached: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for group in group_by_length(before):
        tokens = torch.stack([before[index] for index in group])
        if tokens.shape[1] == 0:
            continue
        layers = read_cache(lm, tokens)
        for row, index in enumerate(group):
            cached[index] = [(keys[row], values[row]) for keys, values in layers]
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=lm.model.config).layers]
    keys, values, bias = [], [], []
    for layer in range(lm.n_layers):
        found = [cached[index][layer] if index in cached else None for index in range(len(ids))]
        keys.append(_padded([pair and pair[0] for pair in found], lm))
        values.append(_padded([pair and pair[1] for pair in found], lm))
        bias.append(_bias([0 if pair is None else pair[0].shape[1] for pair in found], length, windows[layer], lm))
    positions = [torch.arange(len(prompt) - length, len(prompt), device=lm.device) for prompt in ids]
    last = torch.stack([prompt[len(prompt) - length :] for prompt in ids])
    return Suffixes(tuple(keys), tuple(values), tuple(bias), last, torch.stack(positions))


@torch.no_grad()
def run_unpatched(lm: LanguageModel, suffixes: Suffixes) -> tuple[Suffixes, Tensor]:
    """Run the last tokens without patches: the suffixes with their states, and the logits (P, V) at the last token.

    States of more than `KEPT_BYTES` are not kept; every patched forward then starts at block 0.
    """
    with capturing_stream(lm) as states:
        logits = suffix_logits(lm, suffixes, 1)[:, 0]
    fits = sum(state.nbytes for state in states) <= KEPT_BYTES
    return replace(suffixes, states=tuple(states) if fits else ()), logits


def _padded(tensors: Sequence[Tensor | None], lm: LanguageModel) -> Tensor:
    """(P, heads, longest, head_dim) from P tensors (heads, tokens, head_dim); None: no tokens."""
    some = next((tensor for tensor in tensors if tensor is not None), None)
    if some is None:
        return torch.empty(len(tensors), 0, 0, 0, device=lm.device, dtype=lm.model.dtype)
    tensors = [some[:, :0] if tensor is None else tensor for tensor in tensors]
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.stack([nn.functional.pad(tensor, (0, 0, 0, longest - tensor.shape[1])) for tensor in tensors])


def _bias(kept: Sequence[int], length: int, window: int | None, lm: LanguageModel) -> Tensor:
    """(P, S, tokens + S) for prompts with `kept` cached tokens each: what each suffix token sees."""
    before = torch.tensor(kept, device=lm.device)[:, None, None]  # (P, 1, 1)
    query = torch.arange(length, device=lm.device)[None, :, None]  # position after the first suffix token
    place = torch.arange(max(kept), device=lm.device)[None, None]
    own = torch.arange(length, device=lm.device)[None, None]
    key = torch.cat([(place - before).expand(len(kept), 1, -1), own.expand(len(kept), 1, -1)], dim=-1)
    padding = torch.cat([place >= before, torch.zeros_like(own, dtype=torch.bool).expand(len(kept), 1, -1)], dim=-1)
    hidden = padding | (key > query)
    if window is not None:
        hidden = hidden | (query - key >= window)
    return torch.zeros(hidden.shape, device=lm.device, dtype=lm.model.dtype).masked_fill(hidden, -torch.inf)


_active: ContextVar[Suffixes] = ContextVar("active_suffixes")


def _suffix_attention(
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
    """Attention of S new tokens per row; the R rows of a prompt share the keys and values before them uncopied."""
    if s_aux is not None or position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__}: attention sinks and position biases are not supported")
    suffixes = _active.get(None)
    if suffixes is None:  # the configuration is that of another thread's forward
        raise InputError(f"{type(module).__name__}: {STRANGER}")
    keys, values = suffixes.keys[module.layer_idx], suffixes.values[module.layer_idx]
    bias = suffixes.bias[module.layer_idx][:, None, None]  # (P, 1, 1, S, tokens + S)
    rows, heads, length, dim = key.shape
    prompts, before = len(suffixes), keys.shape[2]
    grouped = query.reshape(rows, heads, -1, length, dim)  # (P R, heads, G, S, key width)
    scaling = dim**-0.5 if scaling is None else scaling
    by_key = None if alibi is None else _by_key(alibi, suffixes, before).unflatten(1, (heads, -1))
    outputs = []
    for head in range(heads):
        q = grouped[:, head]
        scores = (q.reshape(rows, -1, dim) @ key[:, head].mT).view(*q.shape[:3], length)
        if before:
            past = q.reshape(prompts, -1, dim) @ keys[:, head].mT
            scores = torch.cat([past.view(*q.shape[:3], before), scores], dim=-1)
        scores = scores * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.view(prompts, -1, *scores.shape[1:]) + bias
        if by_key is not None:
            scores = scores + by_key[:, None, head, :, None]
        weights = scores.softmax(dim=-1).flatten(0, 1)  # (P R, G, S, tokens + S)
        mixed = weights[..., before:].reshape(rows, -1, length) @ value[:, head]
        if before:
            past = weights[..., :before].reshape(prompts, -1, before) @ values[:, head]
            mixed = mixed + past.view_as(mixed)
        outputs.append(mixed.view(*q.shape[:-1], -1))
    return torch.cat(outputs, dim=1).transpose(1, 2).contiguous(), None  # (P R, S, heads G, head_dim)


def _by_key(alibi: ByPosition, suffixes: Suffixes, before: int) -> Tensor:
    """(P, heads, tokens + S): the bias of every key by its position; of padding whatever, as it is not seen."""
    prefix = torch.arange(before, device=suffixes.positions.device).expand(len(suffixes), -1)
    positions = torch.cat([prefix, suffixes.positions], dim=1)  # (P, tokens + S)
    return alibi(int(positions.max()) + 1)[:, positions].transpose(0, 1)


AttentionInterface.register(SUFFIX_ATTENTION, _suffix_attention)


@contextmanager
def _starting_at(lm: LanguageModel, first: int, hidden: Tensor) -> Iterator[None]:
    """Let blocks below `first` pass their input on, and block `first` read `hidden`."""
    skipped = lm.layout.blocks[:first]
    try:
        for block in skipped:
            block.forward = lambda *args, **kwargs: args[0] if args else kwargs["hidden_states"]  # shadows the method
        with changing_block_input(lm, first, lambda _hidden: hidden):
            yield
    finally:
        for block in skipped:
            del block.forward


def suffix_logits(lm: LanguageModel, suffixes: Suffixes, rows: int, first: int = 0) -> Tensor:
    """Logits (P, rows, V) at the last token: one forward of P * rows suffixes, the rows of a prompt side by side.

    Differentiable where grad is on; hooks of the caller act on batch rows in that order.

    Args:
        rows: copies of each prompt.
        first: block the forward starts at, from the unpatched states; no patch stands below it.

    Raises:
        UnsupportedModel: under autocast.
    """
    check_no_autocast(lm)
    token = _active.set(suffixes)
    try:
        with using_attention(lm, SUFFIX_ATTENTION):
            if first == 0 or not suffixes.states:
                return _forward(lm, suffixes, rows)
            with _starting_at(lm, first, suffixes.states[first].repeat_interleave(rows, dim=0)):
                return _forward(lm, suffixes, rows)
    finally:
        _active.reset(token)


def _forward(lm: LanguageModel, suffixes: Suffixes, rows: int) -> Tensor:
    logits = lm.model(
        input_ids=suffixes.tokens.repeat_interleave(rows, dim=0),
        position_ids=suffixes.positions.repeat_interleave(rows, dim=0),
        use_cache=False,
        logits_to_keep=1,
    ).logits[:, -1]
    return logits.view(len(suffixes), rows, -1)
