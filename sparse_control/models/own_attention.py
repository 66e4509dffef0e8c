"""Attention of the models that compute it in code of their own, in a form that takes keys and values from elsewhere.

BLOOM, Falcon and MPT do not ask the library's attention interface. Within `calling` their attention modules project as
they do, and leave the mixing of values to a registered attention function, which also gets the bias that ALiBi adds to
the scores of each key by its position. The softmax is the same for every constant that is added to all keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sparse_control.errors import InputError

ByPosition = Callable[[int], Tensor]  # n -> (heads, n), added to the scores of the keys at positions 0..n-1


@dataclass(frozen=True)
class Projected:
    """What an attention module makes of its input.

    Attributes:
        query: (B, heads, S, head_dim).
        key, value: (B, key/value heads, S, head_dim).
        scaling: of the products of queries and keys.
        alibi: the bias by position; None where positions are rotary.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    alibi: ByPosition | None


@dataclass(frozen=True)
class Adapter:
    """How one type of model attends.

    Attributes:
        attention: path of the attention module in a block.
        project: (module, hidden (B, S, d), arguments of the module by name) -> what is mixed.
        output: name of the output projection in the module.
        adds_residual: whether the module adds its argument `residual` to what the projection gives.
    """

    attention: str
    project: Callable[[nn.Module, Tensor, dict[str, Any]], Projected]
    output: str
    adds_residual: bool = False


def _modeling(model_type: str) -> Any:
    return import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def _ones(n: int, like: Tensor) -> Tensor:
    return torch.ones(1, n, dtype=torch.long, device=like.device)


def _bloom(module: nn.Module, hidden: Tensor, _arguments: dict[str, Any]) -> Projected:
    def alibi(n: int) -> Tensor:
        return _modeling("bloom").build_alibi_tensor(_ones(n, hidden), module.num_heads, hidden.dtype)[:, 0]

    query, key, value = module._reshape(module.query_key_value(hidden))
    return Projected(query, key, value, module.inv_norm_factor, alibi)


def _falcon(module: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Projected:
    def alibi(n: int) -> Tensor:  # scaled as the products are
        table = _modeling("falcon").build_alibi_tensor(_ones(n, hidden), module.num_heads, hidden.dtype)[:, 0]
        return table * module.inv_norm_factor

    query, key, value = (part.transpose(1, 2) for part in module._split_heads(module.query_key_value(hidden)))
    if arguments["alibi"] is None:
        query, key = _modeling("falcon").apply_rotary_pos_emb(query, key, *arguments["position_embeddings"])
    return Projected(query, key, value, module.inv_norm_factor, None if arguments["alibi"] is None else alibi)


def _mpt(module: nn.Module, hidden: Tensor, arguments: dict[str, Any]) -> Projected:
    def alibi(n: int) -> Tensor:  # its last key has none
        return arguments["position_bias"][:, 0, -n:].to(hidden.dtype)

    projected = module.Wqkv(hidden)
    if module.clip_qkv:
        projected = projected.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    parts = (part.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for part in projected.chunk(3, dim=-1))
    return Projected(*parts, module.softmax_scale, alibi)


ADAPTERS = {
    "bloom": Adapter("self_attention", _bloom, "dense", adds_residual=True),
    "falcon": Adapter("self_attention", _falcon, "dense"),
    "mpt": Adapter("attn", _mpt, "out_proj"),
}


def _forward(adapter: Adapter, module: nn.Module, name: str, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The module's forward with its mixing by the attention that is registered under `name`."""
    if args:  # BLOOM's residual
        kwargs["residual"] = args[0]
    parts = adapter.project(module, hidden_states, kwargs)
    mixed, weights = ALL_ATTENTION_FUNCTIONS[name](
        module, parts.query, parts.key, parts.value, None, scaling=parts.scaling, alibi=parts.alibi
    )
    output = getattr(module, adapter.output)(mixed.flatten(-2))  # (B, S, heads, head_dim) -> (B, S, d)
    return (kwargs["residual"] + output if adapter.adds_residual else output), weights


@contextmanager
def calling(adapter: Adapter, blocks: tuple[nn.Module, ...], name: str, stranger: str) -> Iterator[None]:
    """Let the attention of these blocks be the one registered under `name`; it is the modules' own on any exit.

    Args:
        stranger: what is said where another thread is within.

    Raises:
        InputError: another thread is within.
    """
    modules = [block.get_submodule(adapter.attention) for block in blocks]
    if any("forward" in vars(module) for module in modules):
        raise InputError(stranger)
    try:
        for module in modules:
            module.forward = partial(_forward, adapter, module, name)  # shadows the method
        yield
    finally:
        for module in modules:
            vars(module).pop("forward", None)
