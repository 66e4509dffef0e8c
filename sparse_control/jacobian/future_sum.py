"""Exact Jacobians in the position convention of published Jacobian lenses, `future_sum`; never the official one.

With V the positions skip_first..T-2 of a prompt of T tokens,

    J^l = (1/|V|) sum_{t in V} d/dh_t^l sum_{t' in V} h^L_{t'}

The official convention (`exact_jacobian`) is the last position alone, `d h^L_T / d h^l_T`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.guard import exact_mode, has_forward_hooks, source_layers
from sparse_control.models.decode import as_prompt, using_attention
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import first_input_as_leaf, full_stream

SKIP_FIRST = 16  # early positions hold attention sinks; published lenses leave out as many
CHUNK = 64  # cotangents pulled back together


def future_sum_jacobian(
    lm: LanguageModel,
    input_ids: Sequence[int] | Tensor,
    layers: Sequence[int] | None = None,
    *,
    skip_first: int = SKIP_FIRST,
    chunk: int = CHUNK,
) -> Tensor:
    """`(1/|V|) sum_{t in V} d/dh_t^l sum_{t' in V} h^L_{t'}` of one prompt, V = skip_first..T-2.

    Layers count as in `exact_jacobian`: h^l enters block l. All of them come from one sweep; its cost is that of d
    vector-Jacobian products over the whole prompt.

    Args:
        lm: a model in evaluation mode.
        input_ids: (T,), T >= skip_first + 2.
        layers: source layers in 0..L-1; None: all of them.
        skip_first: first position that counts, as source and as target.
        chunk: cotangents pulled back together; trades memory for speed and changes no value.

    Returns:
        (number of layers, d, d) in the model's dtype; `J[i] @ v` pushes v at layers[i] to the final residual stream.

    Raises:
        ValueError: bad arguments, a prompt without positions in V, or a Jacobian that is not finite (names the layer).
        UnsupportedModel: as `check_exact_mode`.
    """
    with exact_mode(lm):
        layers = source_layers(lm, layers)
        skip_first, chunk = whole_number("skip_first", skip_first, 0), whole_number("chunk", chunk, 1)
        ids = as_prompt(lm, input_ids, "input_ids")
        if len(ids) < skip_first + 2:
            raise ValueError(f"input_ids must hold at least skip_first + 2 = {skip_first + 2} tokens, got {len(ids)}")
        jacobians = _summed(lm, ids, layers, skip_first, chunk)
    for layer, jacobian in zip(layers, jacobians, strict=True):
        if not torch.isfinite(jacobian).all():
            raise ValueError(f"the Jacobian of layer {layer} is not finite; use a wider dtype")
    return jacobians


def _summed(lm: LanguageModel, ids: Tensor, layers: Sequence[int], skip_first: int, chunk: int) -> Tensor:
    """(number of layers, d, d), by chunks of cotangents that are 1 at one coordinate of every position in V."""
    read = ids if has_forward_hooks(lm) else ids[:-1]  # nothing of the model's own at V depends on the last token
    # attention as plain matrix products, which batched cotangents need
    with torch.enable_grad(), using_attention(lm, "eager"), first_input_as_leaf(lm):
        stream = full_stream(lm, read[None])
    end = len(ids) - 1
    final, sources = stream[-1], [stream[layer] for layer in layers]
    jacobians = final.new_empty(len(layers), lm.width, lm.width)
    for start in range(0, lm.width, chunk):
        rows = torch.arange(start, min(start + chunk, lm.width), device=final.device)
        cotangents = final.new_zeros(len(rows), *final.shape)  # (c, 1, T-1 or T, d)
        cotangents[torch.arange(len(rows), device=final.device), :, skip_first:end, rows] = 1.0
        pulled = torch.autograd.grad(final, sources, cotangents, retain_graph=True, is_grads_batched=True)
        for index, gradient in enumerate(pulled):
            jacobians[index, start : start + len(rows)] = gradient[:, 0, skip_first:end].mean(1)
    return jacobians
