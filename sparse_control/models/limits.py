"""How long a prompt may be before a model computes something else, or nothing, at its positions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "positions_embed")  # learned, or one row a position


@dataclass(frozen=True)
class PromptLimit:
    """The longest prompt that is read, in tokens, and why longer ones are not."""

    tokens: int
    reason: str


def prompt_limit(model: nn.Module) -> PromptLimit | None:
    """The smallest limit of a model; None where prompts may be of any length.

    Up to it a forward over the first tokens and one over all tokens give them the same keys and values, on which every
    cached forward rests. Beyond it they differ, as its rotary angles depend on the length, or there is no position.
    """
    return min(_limits(model), key=lambda limit: limit.tokens, default=None)


def _limits(model: nn.Module) -> Iterator[PromptLimit]:
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and _has_position_table(model):
        yield PromptLimit(longest, "positions it has")
    if config.model_type == "mpt":
        yield PromptLimit(config.max_seq_len, "positions its attention has a bias for")
    for rope in _rope_parameters(getattr(config, "rope_parameters", None)):
        kind = rope.get("rope_type")
        if kind == "dynamic" and longest is not None:
            yield PromptLimit(longest, "tokens after which its rotary angles depend on the length")
        if kind == "longrope":
            original = rope.get("original_max_position_embeddings") or longest
            yield PromptLimit(original, "tokens after which its rotary angles depend on the length")


def _has_position_table(model: nn.Module) -> bool:
    names = (name.rpartition(".")[2] for name, _ in (*model.named_modules(), *model.named_buffers()))
    return any(name in POSITION_TABLES for name in names)


def _rope_parameters(found: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of rotary positions, which some models have one of per kind of layer."""
    if not isinstance(found, Mapping):
        return
    if "rope_type" in found:
        yield found
    for inner in found.values():
        yield from _rope_parameters(inner)
