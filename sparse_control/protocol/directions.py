"""The two direction rules: P, each evaluation pair's own contrast; F, the mean contrast of the fitting split.

And their control: random directions of the same norms.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from sparse_control.models.sites import Site
from sparse_control.protocol.prompts import Prompts


def contrasts(source: Prompts, target: Prompts) -> dict[Site, Tensor]:
    """Rule P: `a_s(x_tar) - a_s(x_src)` per pair, (N, site width) for every site both sides were read at."""
    return {site: target.activations[site] - value for site, value in source.activations.items()}


def mean_contrast(contrasts: Mapping[Site, Tensor], sites: Sequence[Site]) -> tuple[Tensor, ...]:
    """Rule F: the mean over pairs in float64, (site width,) per site; the sign is fixed by target - source."""
    return tuple(contrasts[site].to(torch.float64).mean(dim=0) for site in sites)


def random_of_equal_norm(vectors: Tensor, generator: np.random.Generator) -> Tensor:
    """Directions drawn uniformly, each with the norm of the vector in whose place it stands.

    Args:
        vectors: (..., width).
        generator: draws them, in float64.

    Returns:
        the same shape, type and device.
    """
    drawn = torch.from_numpy(generator.standard_normal(tuple(vectors.shape)))
    norms = vectors.double().norm(dim=-1, keepdim=True).cpu()
    return (drawn / drawn.norm(dim=-1, keepdim=True) * norms).to(vectors)
