"""The MLP of one token as one matrix: its Jacobian from the weights.

At one token an MLP is `W_down z(W_1 x, W_2 x, ..)` with `z` acting on each hidden unit alone, so its Jacobian is
`W_down (diag(z'_1) W_1 + diag(z'_2) W_2 + ..)`: one product, after which each of about d cotangents meets a (d, d)
matrix where autograd takes every weight and several element-wise passes over the hidden units. Whether an MLP has
that form is not assumed but checked against autograd on one cotangent at every use; an MLP of another form is left to
autograd.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import unwrap

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}  # narrower dtypes are left to autograd


def _matrix(linear: nn.Module) -> Tensor:
    """(out, in)."""
    return linear.weight.T if isinstance(linear, Conv1D) else linear.weight


def _jacobian(hidden: Tensor, output: Tensor, calls: list[tuple[nn.Module, Tensor, Tensor]]) -> Tensor | None:
    """The Jacobian (d, d) of `output` with respect to `hidden`, or None where it is not the product of the weights.

    Args:
        hidden, output: (1, 1, d), with the graph between them.
        calls: the linear modules of the forward, in order, with their inputs and outputs.
    """
    if hidden.dtype not in TOLERANCE or len(calls) < 2:
        return None
    *first, (last, units, _) = calls
    n_units = units.shape[-1]
    if any(taken.shape != hidden.shape or out.shape[-1] % n_units for _, taken, out in first):
        return None
    slopes = torch.autograd.grad(units.sum(), [out for *_, out in first], retain_graph=True, materialize_grads=True)
    inner = torch.zeros(n_units, hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
    for (linear, *_), slope in zip(first, slopes, strict=True):
        for part, rows in zip(slope.flatten().split(n_units), _matrix(linear).split(n_units), strict=True):
            inner.addcmul_(part[:, None], rows)
    row = torch.sin(torch.arange(1, output.numel() + 1, device=hidden.device, dtype=hidden.dtype).square())
    (pulled,) = torch.autograd.grad(output, hidden, row.view_as(output), retain_graph=True)
    jacobian = _matrix(last) @ inner
    error = (row @ jacobian - pulled.flatten()).norm()
    return jacobian if error <= TOLERANCE[hidden.dtype] * pulled.norm() else None


@contextmanager
def merged_mlps(lm: LanguageModel) -> Iterator[None]:
    """In forwards of one token with grad on, each MLP is its value plus its Jacobian, for first derivatives."""
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(linear: nn.Module, args: tuple, output: Tensor) -> None:
        calls.append((linear, args[0], output))

    def replace(_mlp: nn.Module, args: tuple, output: Tensor | tuple) -> Tensor | tuple | None:
        hidden, value = args[0], unwrap(output)
        jacobian = _jacobian(hidden, value, calls) if value.requires_grad else None
        calls.clear()
        if jacobian is None:
            return None
        merged = value.detach() + (hidden - hidden.detach()) @ jacobian.T
        return (merged, *output[1:]) if isinstance(output, tuple) else merged

    handles = []
    for mlp in lm.layout.mlps:
        linears = [module for module in mlp.modules() if isinstance(module, (nn.Linear, Conv1D))]
        handles += [linear.register_forward_hook(record) for linear in linears]
        handles.append(mlp.register_forward_hook(replace))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
