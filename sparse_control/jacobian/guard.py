"""Conditions under which derivatives of a model can be trusted."""

import warnings

import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.models.language_model import LanguageModel


def check_exact_mode(lm: LanguageModel) -> None:
    """Refuse models and modes whose derivatives would be silently wrong; warn where they are merely coarse.

    Raises:
        UnsupportedModel: a submodule in training mode, offloaded or quantised parameters, TF32, inference mode.
    """
    if torch.is_inference_mode_enabled():
        raise UnsupportedModel(f"{lm.name}: derivatives are zero under torch.inference_mode; leave it first")
    lm.check_evaluation_mode()
    for name, parameter in lm.model.named_parameters():
        if parameter.is_meta:
            raise UnsupportedModel(f"{lm.name}: parameter {name!r} is offloaded; load the model onto one device")
        if not parameter.dtype.is_floating_point or parameter.dtype.itemsize < 2:  # integers, and 8-bit floats
            raise UnsupportedModel(f"{lm.name}: parameter {name!r} is quantised ({parameter.dtype}); dequantise it")
    if lm.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        raise UnsupportedModel("TF32 is on; set torch.backends.cuda.matmul.allow_tf32 = False for exact Jacobians")
    if lm.model.dtype in (torch.bfloat16, torch.float16):
        warnings.warn(f"{lm.name}: Jacobians in {lm.model.dtype} are coarse; use float32", stacklevel=3)
