"""Whether the library's reading of a model agrees with the model itself, on one short input."""

import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.sites import COMPONENTS, Site, add_at_sites, all_sites, capturing_sites, site_width
from sparse_control.models.stream import first_input_as_leaf, full_stream, unwrap
from sparse_control.models.suffix import read_suffixes, suffix_logits

N_TOKENS, N_RERUN = 12, 3
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


@torch.no_grad()
def _check_mlp_site(lm: LanguageModel, input_ids: torch.Tensor, state: torch.Tensor, layer: int) -> None:
    """What is added at an MLP's site is what the residual stream (d,) behind the block moves by, at any dose."""
    pushes = [dose * state.roll(1) for dose in (1.0, -3.0)]  # as large as the state, and elsewhere
    for push in pushes:
        with add_at_sites(lm, {Site("mlp", layer): push}, length=input_ids.shape[1]):
            moved = full_stream(lm, input_ids)[layer + 1][0, -1] - state
        if _relative(moved - push, push) > 10 * TOLERANCE[lm.model.dtype]:
            raise UnsupportedModel(
                f"{lm.name}: what the MLP of block {layer} adds to the residual stream is not found; "
                "it goes through something that is neither a known norm nor a known factor"
            )


def self_check(lm: LanguageModel) -> None:
    """Hold stream, Jacobian row, decode step, rerun suffix, sites and a zero patch against the model's own results.

    Raises:
        UnsupportedModel: names the model and the check that failed.
    """
    try:
        _compare(lm)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model of another build raises where it is read as a decoder
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnsupportedModel(f"{lm.name}: cannot be read as a decoder ({reason:.300})") from error


def _compare(lm: LanguageModel) -> None:
    tolerance = TOLERANCE[lm.model.dtype]
    length = N_TOKENS if lm.prompt_limit is None else min(N_TOKENS, lm.prompt_limit.tokens)
    input_ids = (torch.arange(1, length + 1, device=lm.device) * 7919 % lm.vocabulary)[None]

    with torch.no_grad():
        stream = full_stream(lm, input_ids)
        final = _final_state(lm, input_ids)
        renormed = unwrap(lm.layout.final_norm(stream[-1]))
        plain = lm.model(input_ids=input_ids, use_cache=False).logits[:, -1]
    if not all(torch.isfinite(state).all() for state in stream):
        raise UnsupportedModel(f"{lm.name}: the residual stream is not finite")
    if _relative(renormed - final, final) > tolerance:
        raise UnsupportedModel(f"{lm.name}: the captured last state, normed again, is not the model's own final state")

    step = DecodeStep(lm, input_ids[0])
    cached = step.stream()
    if _relative(cached[-1][0, -1].detach() - stream[-1][0, -1], stream[-1][0, -1]) > tolerance:
        raise UnsupportedModel(f"{lm.name}: a decode step on cached keys and values does not give the model's state")

    with torch.enable_grad():
        with first_input_as_leaf(lm):
            whole = full_stream(lm, input_ids)
        (row,) = torch.autograd.grad(whole[-1][0, -1, 0], whole[0])
        (cached_row,) = torch.autograd.grad(cached[-1][0, -1, 0], cached[0])
    if _relative(cached_row[0, -1] - row[0, -1], row[0, -1]) > 10 * tolerance:
        raise UnsupportedModel(f"{lm.name}: a Jacobian row from one decode step differs from full-sequence autograd")

    for layer, head in ((0, 0), (lm.n_layers - 1, lm.n_heads - 1)):
        if (moved := step.moved_heads(layer, head)) != [head]:
            raise UnsupportedModel(f"{lm.name}: head {head} of layer {layer} moves slices {moved} of what is projected")

    suffixes = read_suffixes(lm, [input_ids[0]], N_RERUN)
    with torch.no_grad():
        rerun = suffix_logits(lm, suffixes, 1)[:, 0]
    if _relative(rerun - plain, plain) > tolerance:
        raise UnsupportedModel(f"{lm.name}: the last tokens, run again on cached keys and values, give other logits")

    sites = all_sites(lm, COMPONENTS)
    with torch.no_grad(), capturing_sites(lm, sites) as captured:
        lm.model(input_ids=input_ids, use_cache=False)
    for site in sites:
        if site not in captured or captured[site].shape[1:] != (length, site_width(lm, site)):
            raise UnsupportedModel(f"{lm.name}: a forward does not pass site {site.name} as one row per token")

    for layer in sorted({0, lm.n_layers // 2, lm.n_layers - 1}):
        _check_mlp_site(lm, input_ids, stream[layer + 1][0, -1], layer)

    site = Site("resid", 0)
    zero = {site: torch.zeros(lm.width, device=lm.device)}
    with torch.no_grad(), add_at_sites(lm, zero, length=length):
        patched = lm.model(input_ids=input_ids, use_cache=False).logits[:, -1]
    if not torch.equal(patched, plain):
        raise UnsupportedModel(f"{lm.name}: a patch of dose 0 changes the logits")
