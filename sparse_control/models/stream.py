"""The residual stream, read and cut by hooks on the blocks (source document, 1)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from sparse_control.errors import UnsupportedModel
from sparse_control.models.language_model import LanguageModel

AUTOCAST_DEVICES = ("cpu", "cuda")


def check_no_autocast(lm: LanguageModel) -> None:
    """Refuse to read a model under autocast, which computes in another dtype than the record says.

    Raises:
        UnsupportedModel: names the dtype and the device.
    """
    for device in {*AUTOCAST_DEVICES, lm.device.type}:
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            raise UnsupportedModel(f"{lm.name}: autocast to {dtype} is on for {device}; leave torch.autocast first")


def unwrap(output: Tensor | tuple) -> Tensor:
    """The hidden state of a block's output, which is a tensor in some library versions and a tuple in others."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def capturing_stream(lm: LanguageModel) -> Iterator[list[Tensor]]:
    """Collect h^0..h^L of each forward, (B, T, d) each."""
    stream: list[Tensor] = []

    def block_input(_module: nn.Module, args: tuple, kwargs: dict) -> None:
        stream.append(args[0] if args else kwargs["hidden_states"])

    def last_output(_module: nn.Module, _args: tuple, output: Tensor | tuple) -> None:
        stream.append(unwrap(output))

    handles = [block.register_forward_pre_hook(block_input, with_kwargs=True) for block in lm.layout.blocks]
    handles.append(lm.layout.blocks[-1].register_forward_hook(last_output))
    try:
        yield stream
    finally:
        for handle in handles:
            handle.remove()


def first_input_as_leaf(lm: LanguageModel) -> AbstractContextManager[None]:
    """Cut the graph below the first block: in each forward h^0 becomes a leaf that requires grad."""
    return block_input_as_leaf(lm, 0)


def block_input_as_leaf(lm: LanguageModel, layer: int) -> AbstractContextManager[None]:
    """Cut the graph below block `layer`: in each forward h^layer becomes a leaf that requires grad."""
    return changing_block_input(lm, layer, lambda hidden: hidden.detach().requires_grad_())


@contextmanager
def changing_block_input(lm: LanguageModel, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """In each forward h^layer (B, T, d) is replaced by `change` of it before block `layer` reads it."""

    def replace(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

    handle = lm.layout.blocks[layer].register_forward_pre_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def full_stream(lm: LanguageModel, input_ids: Tensor) -> list[Tensor]:
    """h^0..h^L at every position: L+1 tensors (B, T, d), by hooks on the blocks; differentiable where grad is on.

    `h^L` is the last block's output, before the final norm (`hidden_states[-1]` is after it).

    Args:
        input_ids: (B, T), equal lengths, no padding.

    Raises:
        InputError: T is beyond what the model reads (`LanguageModel.check_length`).
        UnsupportedModel: under autocast, or the blocks do not run once each.
    """
    check_no_autocast(lm)
    lm.check_length(input_ids.shape[1])
    with capturing_stream(lm) as stream:
        lm.layout.decoder(input_ids=input_ids, use_cache=False)
    if len(stream) != lm.n_layers + 1:
        raise UnsupportedModel(f"{lm.name}: {len(stream)} residual states captured, expected {lm.n_layers + 1}")
    return stream


@torch.no_grad()
def residual_stream(lm: LanguageModel, input_ids: Tensor) -> Tensor:
    """Query-end residual states h^0..h^L at the last token (source document, 1).

    Args:
        input_ids: (B, T), equal lengths, no padding.

    Returns:
        (B, L+1, d), float32 or the model's dtype where that is wider.
    """
    last = torch.stack([state[:, -1] for state in full_stream(lm, input_ids)], dim=1)
    return last if last.dtype == torch.float64 else last.float()
