"""Exact Jacobians of single prompts and their exact finite-corpus averages (source document, 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.errors import InputError
from sparse_control.jacobian.guard import check_exact_mode
from sparse_control.jacobian.sweep import reverse_sweep
from sparse_control.models.decode import DecodeStep
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
        UnsupportedModel: training mode, inference mode, offloaded or quantised parameters.
    """
    check_exact_mode(lm)
    if isinstance(layers, int):
        raise ValueError(f"layers must be a sequence of source layers, got {layers!r}; use [{layers}]")
    layers = range(lm.n_layers) if layers is None else layers
    layers = [whole_number(f"layers[{index}]", layer, 0, lm.n_layers - 1) for index, layer in enumerate(layers)]
    if not layers:
        raise ValueError("layers must name at least one source layer, got none")
    identity = torch.eye(lm.width, dtype=lm.model.dtype, device=lm.device)
    jacobians = torch.stack(reverse_sweep(DecodeStep(lm, input_ids), identity, layers))
    for layer, jacobian in zip(layers, jacobians):
        if not torch.isfinite(jacobian).all():
            raise ValueError(f"the Jacobian of layer {layer} is not finite; use a wider dtype")
    return jacobians


@dataclass(frozen=True)
class CorpusJacobian:
    """Exact finite-corpus Jacobians, float64.

    Attributes:
        layers: source layers.
        means: corpus size n -> (number of layers, d, d), the average over the first n prompts.
        halves: the averages over the even and over the odd prompts of the largest corpus, for the noise floor.
    """

    layers: tuple[int, ...]
    means: dict[int, Tensor]
    halves: tuple[Tensor, Tensor]


def corpus_jacobian(
    lm: LanguageModel,
    corpus_ids: Sequence[Sequence[int]],
    layers: Sequence[int],
    sizes: Sequence[int],
    progress: Callable[[], None] = lambda: None,
) -> CorpusJacobian:
    """Average the exact per-prompt Jacobians over nested corpora in one pass (source document, 5.1, 8.2).

    Per prompt in the model's dtype, summed in float64; prompts are averaged before any product or factorisation.

    Args:
        corpus_ids: at least max(sizes) prompts.
        layers: source layers.
        sizes: corpus sizes n at which the running average is kept, ascending, the first at least 2.
        progress: called after every prompt.

    Raises:
        ValueError: too few prompts or bad sizes.
        InputError: a Jacobian that is not finite (names the prompt and the layer).
    """
    if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 2:
        raise ValueError(f"sizes must be ascending and at least 2, got {list(sizes)}")
    if len(corpus_ids) < sizes[-1]:
        raise ValueError(f"corpus_ids holds {len(corpus_ids)} prompts, {sizes[-1]} are asked for")
    shape = (len(layers), lm.width, lm.width)
    sums = [torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)]
    means = {}
    for index in range(sizes[-1]):
        try:
            sums[index % 2] += exact_jacobian(lm, corpus_ids[index], layers).cpu()
        except ValueError as error:
            raise InputError(f"corpus prompt {index}: {error}") from error
        if index + 1 in sizes:
            means[index + 1] = (sums[0] + sums[1]) / (index + 1)
        progress()
    odd = sizes[-1] // 2
    return CorpusJacobian(tuple(layers), means, (sums[0] / (sizes[-1] - odd), sums[1] / odd))
