"""The direction rules, one row each, and their control, random directions of the same norms; without torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from sparse_control.models.sites import Site
    from sparse_control.protocol.prompts import Prompts

Contrasts = Mapping["Site", "Tensor"]  # site -> (N, site width), a_s(x_tar) - a_s(x_src) per pair


def contrasts(source: "Prompts", target: "Prompts") -> dict["Site", "Tensor"]:
    """`a_s(x_tar) - a_s(x_src)` per pair, (N, site width) for every site both sides were read at."""
    return {site: target.activations[site] - value for site, value in source.activations.items()}


def mean_contrast(contrasts: Contrasts, sites: Sequence["Site"]) -> tuple["Tensor", ...]:
    """The mean over pairs in float64, (site width,) per site; the sign is fixed by target - source."""
    return tuple(contrasts[site].double().mean(dim=0) for site in sites)


@dataclass(frozen=True)
class DirectionRule:
    """A row of the table.

    Attributes:
        description: what is added at a site, for people.
        directions: from the contrasts of the fitting split and a support, one direction per site for every pair; None:
            each evaluation pair has its own contrast.
    """

    description: str
    directions: Callable[[Contrasts, Sequence["Site"]], tuple["Tensor", ...]] | None


CONDITIONS = {
    "P": DirectionRule("each evaluation pair's own contrast, target activation less source activation", None),
    "F": DirectionRule("the mean contrast of the fitting split, the same for every pair", mean_contrast),
}  # names as settings and records have them


def random_of_equal_norm(vectors: "Tensor", generator: np.random.Generator) -> "Tensor":
    """Directions drawn uniformly, each with the norm of the vector it replaces.

    Args:
        vectors: (..., width).
        generator: draws them, in float64.

    Returns:
        the same shape, type and device.
    """
    exact = vectors.double().cpu()
    drawn = exact.new_tensor(generator.standard_normal(tuple(vectors.shape)))
    return (drawn / drawn.norm(dim=-1, keepdim=True) * exact.norm(dim=-1, keepdim=True)).to(vectors)
