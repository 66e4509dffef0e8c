"""The direction rules, one row each, and their control, random directions of the same norms; without torch."""

from collections.abc import Mapping, Sequence
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


def mean_contrast(
    contrasts: Contrasts, sites: Sequence["Site"], signs: Sequence[int] | None = None
) -> tuple["Tensor", ...]:
    """The mean over pairs in float64, (site width,) per site, of the contrasts as they are or times signs (N,).

    The sign of a contrast is fixed by target - source.
    """
    means = []
    for site in sites:
        values = contrasts[site].double()
        means.append((values if signs is None else values * values.new_tensor(list(signs))[:, None]).mean(dim=0))
    return tuple(means)


@dataclass(frozen=True)
class DirectionRule:
    """A row of the table.

    Attributes:
        description: what is added at a site, for people.
        mean: whether all pairs have the mean contrast of the fitting split; else each evaluation pair has its own.
        oriented: whether the mean is of contrasts times their pair's orientation sign, and a pair has the mean times
            its own: one bit of the pair, where its own contrast is all its activations.
    """

    description: str
    mean: bool = False
    oriented: bool = False


CONDITIONS = {
    "P": DirectionRule("each evaluation pair's own contrast, target activation less source activation"),
    "F": DirectionRule("the mean contrast of the fitting split, the same for every pair", mean=True),
    "O": DirectionRule(
        "the mean contrast of pairs turned the same way, turned back for each pair; F where none is turned",
        mean=True,
        oriented=True,
    ),
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
