"""Jacobian products of one decode step: reverse and forward sweeps over the blocks.

With the keys and values before the last token cached, `J_x^l` is the Jacobian of blocks l..L-1 on one token.
The forward runs once, at batch 1; only tangents and cotangents are batched.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import jvp, vmap

from sparse_control.models.decode import DecodeStep


def reverse_sweep(step: DecodeStep, cotangents: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """Pull cotangents on h^L back to several layers in one sweep.

    Args:
        cotangents: (m, d).
        layers: source layers, 0..L-1.

    Returns:
        (m, d) for each layer: row i is `cotangents[i] @ J^l`.
    """
    stream = step.stream()
    pulled = torch.autograd.grad(
        stream[-1], [stream[layer] for layer in layers], cotangents[:, None, None, :], is_grads_batched=True
    )
    return [rows[:, 0, 0] for rows in pulled]


def pull_back(step: DecodeStep, cotangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """`J^l` transposed on its own block of vectors for each layer: {l: (m, d)} -> {l: (m, d)}."""
    return {layer: reverse_sweep(step, rows, [layer])[0] for layer, rows in cotangents.items()}


def push_forward(step: DecodeStep, tangents: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """`J^l` on its own block of vectors for each layer, all layers sharing one forward: {l: (m, d)} -> {l: (m, d)}."""
    stream = step.stream()
    carried = torch.empty(0, stream[0].shape[-1]).to(stream[0])
    order: list[int] = []
    with torch.no_grad():
        for layer, block in enumerate(step.block_functions()):
            if layer in tangents:
                carried = torch.cat([carried, tangents[layer].to(carried)])
                order.append(layer)
            if order:
                hidden = stream[layer][0].detach()  # (1, d)
                carried = vmap(lambda tangent: jvp(block, (hidden,), (tangent[None],))[1][0])(carried)
    return dict(zip(order, carried.split([len(tangents[layer]) for layer in order])))
