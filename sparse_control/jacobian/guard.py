"""Conditions under which derivatives of a model are what they are said to be; all others are refused in one line."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as all_modules

from sparse_control.arguments import elements, instance, whole_number
from sparse_control.errors import UnsupportedModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.hooks import check_eager
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import check_no_autocast, full_stream

_ALONE = threading.RLock()  # hooks and an attention of our own are on the model while a derivative is taken
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of a state


@contextmanager
def exact_mode(lm: LanguageModel) -> Iterator[None]:
    """Where derivatives are taken: checked as `check_exact_mode` does, and by one thread of the process at a time.

    Raises:
        ValueError, UnsupportedModel: as `check_exact_mode`.
    """
    with _ALONE:
        check_exact_mode(lm)
        yield


def check_exact_mode(lm: LanguageModel) -> None:
    """Refuse modes and models whose derivatives would be silently wrong; warn where they are merely coarse.

    Raises:
        ValueError: lm is no LanguageModel.
        UnsupportedModel: the mode is inference mode, autocast, a function transform, anomaly detection or products
            below float32; or the model has a submodule in training mode, a compiled one or one with a backward hook,
            or parameters that are offloaded or quantised.
    """
    instance("lm", lm, LanguageModel)
    check_mode(lm)
    check_modules(lm)
    for name, parameter in lm.model.named_parameters():
        if parameter.is_meta:
            raise UnsupportedModel(f"{lm.name}: parameter {name!r} is offloaded; load the model onto one device")
        if not parameter.dtype.is_floating_point or parameter.dtype.itemsize < 2:  # integers, and 8-bit floats
            raise UnsupportedModel(f"{lm.name}: parameter {name!r} is quantised ({parameter.dtype}); dequantise it")
    if lm.model.dtype in (torch.bfloat16, torch.float16):
        warnings.warn(f"{lm.name}: Jacobians in {lm.model.dtype} are coarse; use float32", stacklevel=5)


def check_mode(lm: LanguageModel) -> None:
    """Refuse what the caller has switched on.

    Raises:
        UnsupportedModel: says what to leave or to switch off.
    """
    if torch.is_inference_mode_enabled():
        raise UnsupportedModel(f"{lm.name}: derivatives are zero under torch.inference_mode; leave it first")
    check_no_autocast(lm)
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        raise UnsupportedModel(f"{lm.name}: called inside torch.func or forward-mode differentiation; call it outside")
    if torch.is_anomaly_enabled():
        raise UnsupportedModel(f"{lm.name}: batched derivatives fail under anomaly detection; switch it off first")
    backend = "cuda" if lm.device.type == "cuda" else "mkldnn"
    precision = getattr(torch.backends, backend).matmul.fp32_precision
    if precision not in ("none", "ieee"):
        raise UnsupportedModel(
            f"{lm.name}: float32 products are taken in {precision}; "
            f"set torch.backends.{backend}.matmul.fp32_precision = 'ieee' for exact Jacobians"
        )


def check_modules(lm: LanguageModel) -> None:
    """Refuse submodules that do not run as they are written, forward and backward.

    Raises:
        UnsupportedModel: names the submodule.
    """
    lm.check_evaluation_mode()
    check_eager(lm)
    for name, module in lm.model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModel(
                f"{lm.name}: submodule {name or 'model'!r} has a backward hook, which can change derivatives; remove it"
            )
    if all_modules._global_backward_hooks or all_modules._global_backward_pre_hooks:
        raise UnsupportedModel("a backward hook on every module can change derivatives; remove it")


def source_layers(lm: LanguageModel, layers: Any) -> list[int]:
    """Source layers in the order asked; None: all of them.

    Raises:
        ValueError: not a sequence, empty, or a layer outside 0..L-1.
    """
    if layers is None:
        return list(range(lm.n_layers))
    found = [
        whole_number(f"layers[{index}]", layer, 0, lm.n_layers - 1)
        for index, layer in enumerate(elements("layers", layers))
    ]
    if not found:
        raise ValueError("layers must name at least one source layer, got none")
    return found


def has_forward_hooks(lm: LanguageModel) -> bool:
    """Whether somebody's hooks take part in the model's forward: its function is then theirs as well."""
    if all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks:
        return True
    return any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())


def check_decode_step(lm: LanguageModel, step: DecodeStep, input_ids: Tensor) -> None:
    """Refuse a model of which the last token alone is not what it is in the whole prompt.

    Hooks that count positions from the end or mix them, and rotary angles that depend on the length of a forward, give
    another function there; its Jacobian would be nobody's.

    Args:
        step: of `input_ids`.
        input_ids: (T,).

    Raises:
        UnsupportedModel: names the first state that differs.
    """
    with torch.no_grad():
        whole = full_stream(lm, input_ids[None])
    for layer, (alone, together) in enumerate(zip(step.stream(), whole, strict=True)):
        difference = (alone[0, -1] - together[0, -1]).double().norm()
        if not difference <= TOLERANCE.get(lm.model.dtype, 1e-4) * together[0, -1].double().norm():
            hooks = "; hooks on it may count positions" if has_forward_hooks(lm) else ""
            raise UnsupportedModel(
                f"{lm.name}: h^{layer} of the last token alone is not that of the whole prompt of {len(input_ids)} "
                f"tokens{hooks}"
            )


def decode_steps(lm: LanguageModel, prompts: list[Tensor]) -> Iterator[DecodeStep]:
    """The steps of several prompts (T_i,); each is checked where hooks of others are on the model."""
    for step, input_ids in zip(DecodeStep.batch(lm, prompts), prompts, strict=True):
        if has_forward_hooks(lm):
            check_decode_step(lm, step, input_ids)
        yield step
