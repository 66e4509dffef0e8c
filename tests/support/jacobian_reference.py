"""Slow, plain Jacobians: autograd over the whole sequence, one output coordinate at a time."""

import torch
from torch import Tensor

from sparse_control.models import LanguageModel
from sparse_control.models.stream import first_input_as_leaf, full_stream


def full_sequence_jacobian(lm: LanguageModel, input_ids: Tensor) -> Tensor:
    """(L, d, d) from a full forward and d separate backward passes."""
    with torch.enable_grad(), first_input_as_leaf(lm):
        stream = full_stream(lm, input_ids[None])
    rows = []
    for coordinate in range(lm.width):
        pulled = torch.autograd.grad(stream[-1][0, -1, coordinate], stream[:-1], retain_graph=True)
        rows.append(torch.stack([state[0, -1] for state in pulled]))
    return torch.stack(rows, dim=1)


def relative(difference: Tensor, reference: Tensor) -> float:
    return float(difference.double().norm() / reference.double().norm())
