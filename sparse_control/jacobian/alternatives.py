"""Named alternatives to the official estimator. None of them is ever chosen silently."""

import torch
from torch import Tensor

from sparse_control.jacobian.qb import Factors


def svd_factors(matrix: Tensor, rank: int, oversampling: int = 0) -> Factors:
    """The best rank-(k+p) approximation (Eckart-Young) as factors; `truncate` gives the smaller ones.

    Args:
        matrix: exact J (d, d).

    Raises:
        ValueError: rank outside 1..d.
    """
    width = matrix.shape[0]
    if not 1 <= rank <= width:
        raise ValueError(f"rank must be in 1..{width}, got {rank}")
    columns = min(rank + oversampling, width)
    left, singular, right = torch.linalg.svd(matrix.double())
    return Factors(left[:, :columns], singular[:columns, None] * right[:columns], rank, oversampling)
