"""Random probe matrices: nested, seeded, the same on every machine (source document, 6.1)."""

from typing import Literal, get_args

import torch
from torch import Tensor

from sparse_control.arguments import choice
from sparse_control.seeds import stream

Probe = Literal["gaussian", "rademacher"]


def random_probes(width: int, columns: int, *, seed: int, probe: Probe) -> Tensor:
    """Omega (width, columns), float64; fewer columns of the same seed are the first columns of more.

    Raises:
        ValueError: unknown probe, or a seed that is not a non-negative integer.
    """
    choice("probe", probe, get_args(Probe))
    draws = stream(seed, "jacobian", "sketch", probe).standard_normal((columns, width))  # column by column: nested
    omega = torch.from_numpy(draws).T
    return omega if probe == "gaussian" else omega.sign()
