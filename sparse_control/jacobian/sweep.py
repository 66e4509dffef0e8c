"""Jacobian products of one decode step: reverse and forward sweeps over the blocks.

With the keys and values before the last token cached, `J_x^l` is the Jacobian of blocks l..L-1 on one token.
The forward runs once, at batch 1; only tangents and cotangents are batched.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparse_control.models.decode import DecodeStep


def reverse_sweep(step: DecodeStep, cotangents: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Pull cotangents on h^L back to several layers in one sweep.

    Args:
        cotangents: (m, d).
        layers: source layers, 0..L-1.

    Returns:
        (m, d) for each layer: row i is `cotangents[i] @ J^l`.
    """
    stream = step.stream(min(layers), rows=len(cotangents))
    return _batched(stream[-1], [stream[layer] for layer in layers], cotangents)


def _batched(output: Tensor, inputs: Sequence[Tensor], rows: Tensor, retain_graph: bool = False) -> list[Tensor]:
    pulled = torch.autograd.grad(
        output, inputs, rows[:, None, None, :].to(output), is_grads_batched=True, retain_graph=retain_graph
    )
    return [grads[:, 0, 0] for grads in pulled]


def _rows(vectors: Mapping[int, Tensor]) -> int:
    return sum(len(block) for block in vectors.values())


def pull_back(step: DecodeStep, cotangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """`J^l` transposed on a block of vectors for each layer, all sharing one forward: {l: (m, d)} -> {l: (m, d)}."""
    stream = step.stream(min(cotangents), _rows(cotangents))
    return {
        layer: _batched(stream[-1], [stream[layer]], rows, retain_graph=True)[0] for layer, rows in cotangents.items()
    }


def push_forward(step: DecodeStep, tangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """`J^l` on a block of vectors for each layer, all sharing one forward: {l: (m, d)} -> {l: (m, d)}.

    One backward pass at batch 1 gives `u J^l` as a function of u, which is linear: its own derivative on the tangents
    is `J^l` on them.
    """
    stream = step.stream(min(tangents))
    with torch.enable_grad():
        dual = torch.zeros_like(stream[-1], requires_grad=True)
        pulled = torch.autograd.grad(stream[-1], [stream[layer] for layer in tangents], dual, create_graph=True)
    return {
        layer: _batched(functional, [dual], rows, retain_graph=True)[0]
        for functional, (layer, rows) in zip(pulled, tangents.items(), strict=True)
    }
