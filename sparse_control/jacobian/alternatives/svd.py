"""`svd`: the best rank-r approximation of an exact Jacobian, the floor that no estimator of its rank is below.

By Eckart and Young the first r singular triplets leave the least error of all matrices of rank r, in the Frobenius and
in the operator norm. It needs the matrix itself, so it is a yardstick and no estimator for models without a reference.
"""

import torch
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.qb import Factors


def svd_factors(matrix: Tensor, rank: int, oversampling: int = 0) -> Factors:
    """The best rank-(k+p) approximation `U_r (S_r V_r^T)` as factors; `truncate` gives the smaller ones.

    Args:
        matrix: exact J (d, d).
        rank: k, 1..d.
        oversampling: p >= 0; r = min(k + p, d).

    Raises:
        ValueError: rank or oversampling out of range.
    """
    width = matrix.shape[0]
    rank = whole_number("rank", rank, 1, width)
    columns = min(rank + whole_number("oversampling", oversampling, 0), width)
    left, singular, right = torch.linalg.svd(matrix.double())
    return Factors(left[:, :columns], singular[:columns, None] * right[:columns], rank, oversampling)
