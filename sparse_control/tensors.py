"""The check of tensor arguments that Jacobians and interventions share."""

from typing import Any

import torch
from torch import Tensor

from sparse_control.arguments import real_tensor


def as_float64(name: str, values: Any) -> Tensor:
    """Real numbers of any shape, in a tensor or in anything `real_tensor` takes, as a float64 CPU tensor.

    Raises:
        ValueError: not a dense array of finite real numbers.
    """
    if not isinstance(values, Tensor):
        return torch.from_numpy(real_tensor(name, values))
    dense = values.layout == torch.strided and not (values.is_nested or values.is_meta or values.is_quantized)
    if not dense or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} must be a dense tensor of real numbers, got {values.dtype} on {values.device}")
    converted = values.detach().to("cpu", torch.float64)
    if not torch.isfinite(converted).all():
        raise ValueError(f"{name} must be finite")
    return converted
