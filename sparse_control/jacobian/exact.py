"""Exact Jacobians of single prompts and their sums over a corpus (source document, 5)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.jacobian.guard import decode_steps, exact_mode, source_layers
from sparse_control.jacobian.sweep import reverse_sweep
from sparse_control.models.decode import as_prompt
from sparse_control.models.language_model import LanguageModel


def exact_jacobian(lm: LanguageModel, input_ids: Sequence[int] | Tensor, layers: Sequence[int] | None = None) -> Tensor:
    """`J[l] = d h^L_T / d h^l_T` of one prompt at its last token, all layers from one reverse sweep.

    `h^l` is what enters block l (h^0: the embedding) and `h^(l+1)` what leaves it, so that the state at
    `Site("resid", l)` is transported by `J[l + 1]`; `J^L` is the identity and not among them.

    Args:
        lm: a model in evaluation mode.
        input_ids: (T,), T >= 2.
        layers: source layers in 0..L-1; None: all of them.

    Returns:
        (number of layers, d, d) in the model's dtype; `J[i] @ v` pushes v at layers[i] to the final residual stream.

    Raises:
        ValueError: bad `input_ids` or `layers`, or a Jacobian that is not finite (names the layer).
        UnsupportedModel: as `check_exact_mode`, or hooks by which the last token alone is not what it is in the prompt.
    """
    with exact_mode(lm):
        layers, ids = source_layers(lm, layers), as_prompt(lm, input_ids, "input_ids")
        (step,) = decode_steps(lm, [ids])
        identity = torch.eye(lm.width, dtype=lm.model.dtype, device=lm.device)
        jacobians = torch.stack(reverse_sweep(step, identity, layers))
    for layer, jacobian in zip(layers, jacobians, strict=True):
        if not torch.isfinite(jacobian).all():
            raise ValueError(f"the Jacobian of layer {layer} is not finite; use a wider dtype")
    return jacobians


def jacobian_sum(
    lm: LanguageModel,
    corpus_ids: Sequence[Sequence[int]],
    layers: Sequence[int],
    *,
    start: int,
    stop: int,
    total: Tensor | None = None,
    progress: Callable[[int, Tensor], None] = lambda following, total: None,
    jacobian: Callable[[LanguageModel, Any, Sequence[int]], Tensor] = exact_jacobian,
) -> Tensor:
    """Sum of the Jacobians of the prompts start..stop-1 (source document, 5.1), of which averages are made.

    Per prompt in the model's dtype, summed in float64; prompts are averaged before any product or factorisation.

    Args:
        corpus_ids: the prompts of the whole corpus.
        layers: source layers.
        total: (number of layers, d, d) float64, added to in place: the sum of prompts before `start`; None: zero.
        progress: called after every prompt with the index of the next one and the sum so far.
        jacobian: of one prompt, (model, ids, layers) -> (number of layers, d, d).

    Returns:
        (number of layers, d, d), float64.

    Raises:
        InputError: a prompt that the model does not take, or whose Jacobian is not finite (names the prompt).
        UnsupportedModel: as `check_exact_mode`.
    """
    if total is None:
        total = torch.zeros((len(layers), lm.width, lm.width), dtype=torch.float64, device="cpu")
    for index in range(start, stop):
        try:
            jacobians = jacobian(lm, corpus_ids[index], layers)
        except UnsupportedModel:
            raise
        except ValueError as error:
            raise InputError(f"corpus prompt {index}: {error}") from error
        total += jacobians.cpu()
        progress(index + 1, total)
    return total
