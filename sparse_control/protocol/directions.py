"""The two direction rules: P, each evaluation pair's own contrast; F, the mean contrast of the fitting split."""

from collections.abc import Mapping, Sequence

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
