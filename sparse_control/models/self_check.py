"""Whether the library's reading of a model agrees with the model itself, on one short input."""

import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.sites import Site, add_at_sites
from sparse_control.models.stream import first_input_as_leaf, full_stream, unwrap

N_TOKENS = 12
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def _relative(difference: torch.Tensor, reference: torch.Tensor) -> float:
    return float(difference.double().norm() / reference.double().norm().clamp_min(1e-30))


def _final_state(lm: LanguageModel, input_ids: torch.Tensor) -> torch.Tensor:
    kept = []
    handle = lm.layout.final_norm.register_forward_hook(lambda _module, _args, output: kept.append(unwrap(output)))
    try:
        lm.model(input_ids=input_ids, use_cache=False)
    finally:
        handle.remove()
    if not kept:
        raise UnsupportedModel(f"{lm.name}: the final norm was not called")
    return kept[0]


def self_check(lm: LanguageModel) -> None:
    """Compare the captured stream, a Jacobian row, a decode step and a zero patch with the model's own results.

    Raises:
        UnsupportedModel: names the model and the check that failed.
    """
    tolerance = TOLERANCE[lm.model.dtype]
    vocabulary = lm.model.get_input_embeddings().num_embeddings
    input_ids = (torch.arange(1, N_TOKENS + 1, device=lm.device) * 7919 % vocabulary)[None]

    with torch.no_grad():
        stream = full_stream(lm, input_ids)
        final = _final_state(lm, input_ids)
        renormed = unwrap(lm.layout.final_norm(stream[-1]))
        plain = lm.model(input_ids=input_ids, use_cache=False).logits[:, -1]
    if not all(torch.isfinite(state).all() for state in stream):
        raise UnsupportedModel(f"{lm.name}: the residual stream is not finite")
    if _relative(renormed - final, final) > tolerance:
        raise UnsupportedModel(f"{lm.name}: the captured last state, normed again, is not the model's own final state")

    cached = DecodeStep(lm, input_ids[0]).stream()
    if _relative(cached[-1][0, -1].detach() - stream[-1][0, -1], stream[-1][0, -1]) > tolerance:
        raise UnsupportedModel(f"{lm.name}: a decode step on cached keys and values does not give the model's state")

    with torch.enable_grad():
        with first_input_as_leaf(lm):
            whole = full_stream(lm, input_ids)
        (row,) = torch.autograd.grad(whole[-1][0, -1, 0], whole[0])
        (cached_row,) = torch.autograd.grad(cached[-1][0, -1, 0], cached[0])
    if _relative(cached_row[0, -1] - row[0, -1], row[0, -1]) > 10 * tolerance:
        raise UnsupportedModel(f"{lm.name}: a Jacobian row from one decode step differs from full-sequence autograd")

    site = Site("resid", 0)
    zero = {site: torch.zeros(lm.width, device=lm.device)}
    with torch.no_grad(), add_at_sites(lm, zero, length=N_TOKENS):
        patched = lm.model(input_ids=input_ids, use_cache=False).logits[:, -1]
    if not torch.equal(patched, plain):
        raise UnsupportedModel(f"{lm.name}: a patch of dose 0 changes the logits")
