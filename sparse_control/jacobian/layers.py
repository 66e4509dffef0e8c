"""Matrix-free randomized QB of several layers and sketches in shared passes (source document, 6)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.operator import CorpusOperators
from sparse_control.jacobian.probes import Probe, random_probes
from sparse_control.jacobian.qb import Factors, orthonormal
from sparse_control.jacobian.sweep import pull_back, push_forward
from sparse_control.models.language_model import LanguageModel


def randomized_qb_layers(
    lm: LanguageModel,
    corpus_ids: Sequence[Sequence[int]],
    layers: Sequence[int],
    rank: int,
    oversampling: int = 32,
    power_iterations: int = 0,
    seeds: Sequence[int] = (0,),
    probes: Sequence[Probe] = ("gaussian",),
) -> dict[tuple[int, int, Probe], Factors]:
    """`randomized_qb` of the corpus operators of several layers, seeds and probe kinds; every pass makes one forward
    per prompt, whatever their number. Smaller ranks are truncations of the factors.

    Args:
        corpus_ids: n prompts of token ids.
        layers: source layers, 0..L-1.
        rank: k, 1..d-1.
        oversampling: p >= 0; r = min(k + p, d).
        power_iterations: q >= 0; 2 q + 2 passes.
        seeds: of the probe streams.
        probes: "gaussian", "rademacher" or both.

    Returns:
        (layer, seed, probe) -> factors.

    Raises:
        ValueError: an argument out of range, or products that are not finite.
    """
    width = lm.width
    rank = whole_number("rank", rank, 1, width - 1)
    oversampling = whole_number("oversampling", oversampling, 0)
    power_iterations = whole_number("power_iterations", power_iterations, 0)
    columns = min(rank + oversampling, width)
    sketches = [(seed, probe) for seed in seeds for probe in probes]
    if not sketches:
        raise ValueError("seeds and probes must each hold at least one")
    operators = CorpusOperators(lm, corpus_ids, layers)

    def bases(blocks: dict[int, Tensor]) -> dict[int, Tensor]:
        return {
            layer: torch.cat([orthonormal(part) for part in block.split(columns, dim=1)], dim=1)
            for layer, block in blocks.items()
        }

    omega = torch.cat([random_probes(width, columns, seed=seed, probe=probe) for seed, probe in sketches], dim=1)
    Q = bases(operators.mean(push_forward, dict.fromkeys(operators.layers, omega)))  # layer -> (d, sketches r)
    for _ in range(power_iterations):
        Q = bases(operators.mean(push_forward, bases(operators.mean(pull_back, Q))))
    B = operators.mean(pull_back, Q)
    dtype = lm.model.dtype
    return {
        (layer, *sketch): Factors(left.to(dtype), right.T.to(dtype), rank, oversampling)
        for layer in operators.layers
        for sketch, left, right in zip(
            sketches, Q[layer].split(columns, dim=1), B[layer].split(columns, dim=1), strict=True
        )
    }
