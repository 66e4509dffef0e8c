"""What is checked of a model's derivatives before hours go into an average of them."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import jvp

from sparse_control.errors import UnsupportedModel
from sparse_control.jacobian.guard import check_decode_step, exact_mode, source_layers
from sparse_control.jacobian.sweep import pull_back, push_forward
from sparse_control.models.decode import DecodeStep, as_prompt
from sparse_control.models.language_model import LanguageModel
from sparse_control.seeds import stream

TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 1e-2}  # else 1e-4: norms compute in float32 in wider models, too


def check_derivatives(lm: LanguageModel, input_ids: Sequence[int] | Tensor, layers: Sequence[int]) -> None:
    """Check on one prompt that derivatives are finite and forward mode agrees with reverse: `<v, J u> = <J^T v, u>`.

    Forward mode goes through the blocks as they are, so that a kernel whose backward is wrong or missing fails here, at
    the layer it acts on; where a kernel has no forward mode, that is noted and the rest is checked. A prompt that ends
    before an attention window does is noted, too: the average would never see the window at work.

    Args:
        input_ids: (T,), T >= 2, of the length that is going to be averaged over.
        layers: source layers.

    Raises:
        ValueError: bad `input_ids` or `layers`.
        UnsupportedModel: names the layer; or as `check_exact_mode` and `check_decode_step`.
    """
    draws = stream(0, "jacobian", "preflight", "adjoint").standard_normal((2, lm.width))
    u, v = torch.from_numpy(draws).to(lm.device, lm.model.dtype)
    with exact_mode(lm):
        ids, layers = as_prompt(lm, input_ids, "input_ids"), source_layers(lm, layers)
        step = DecodeStep(lm, ids)
        check_decode_step(lm, step, ids)
        reverse = pull_back(step, dict.fromkeys(layers, v[None]))
        try:
            forward = _forward_mode(step, u, layers)
        except RuntimeError as error:  # not implemented, or a function with a backward alone, such as BLOOM's GELU
            reason = " ".join(str(error).split())[:120]
            warnings.warn(f"{lm.name}: forward mode cannot check the reverse derivatives ({reason})", stacklevel=2)
            forward = {layer: rows[0] for layer, rows in push_forward(step, dict.fromkeys(layers, u[None])).items()}
    for layer, pushed in forward.items():
        pushed, pulled = pushed.double(), reverse[layer][0].double()
        if not (torch.isfinite(pushed).all() and torch.isfinite(pulled).all()):
            raise UnsupportedModel(f"{lm.name}: derivatives at layer {layer} are not finite; use a wider dtype")
        difference = abs(float(v.double() @ pushed - pulled @ u.double()))
        if difference > TOLERANCE.get(lm.model.dtype, 1e-4) * float(v.double().norm() * pushed.norm()):
            raise UnsupportedModel(
                f"{lm.name}: forward and reverse derivatives at layer {layer} are not adjoint "
                f"(off by {difference:.2g}); a kernel has a wrong derivative, or the dtype is too narrow"
            )
    config = lm.model.config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window and len(ids) < window:
        warnings.warn(
            f"{lm.name}: prompts of {len(ids)} tokens never fill the attention window of {window}", stacklevel=2
        )


def _forward_mode(step: DecodeStep, tangent: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """`J^l u` of one tangent (d,) for every layer, by forward mode through plain blocks, last layer first."""
    hidden = [state.detach()[0] for state in step.stream()]  # (1, d) each
    pushed: dict[int, Tensor] = {}
    with torch.no_grad():
        for layer, block in enumerate(step.block_functions()):
            if layer in layers:
                pushed[layer] = tangent
            for source, carried in pushed.items():
                pushed[source] = jvp(block, (hidden[layer],), (carried[None],))[1][0]
    return dict(reversed(pushed.items()))
