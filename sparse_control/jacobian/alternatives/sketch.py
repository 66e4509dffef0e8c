"""`output_sketch`: a random image `R J h` of the transported state, the optional fallback of 12.2.

Random projections keep inner products whatever J is, so J need not be of low rank. ISS reads cosines alone and takes
the sketch as it is; errors of vectors cannot be measured on it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.operator import Array, Operator, as_states, like
from sparse_control.jacobian.qb import check_operator
from sparse_control.seeds import stream


@dataclass(frozen=True, eq=False)
class OutputSketch:
    """`R J` with a random R (k, d): coordinates of the transported state, and no way back to it (12.2).

    `R = sqrt(d/k) * (k orthonormal rows)`, so squared lengths and inner products are kept in expectation, and cosines
    up to a spread of about `1/sqrt(k)`; at k = d they are exact. J need not be of low rank.

    Attributes:
        RJ: (k, d).
    """

    RJ: Tensor

    @property
    def rank(self) -> int:
        """Number of rows k."""
        return self.RJ.shape[0]

    @property
    def oversampling(self) -> int:
        """Always 0: a sketch has no columns beyond its rank."""
        return 0

    @property
    def r(self) -> int:
        """Number of rows k."""
        return self.RJ.shape[0]

    def reduce(self, h: Array) -> Array:
        """`R J h` (..., k) for h (..., d), in the kind and dtype of h.

        Raises:
            ValueError: h is not a dense array of finite real numbers, or its last dimension is not d.
        """
        return like(as_states(h, self.RJ.shape[1]) @ self.RJ.T.double(), h)

    def apply(self, h: Array) -> Array:
        """Nothing: a sketch of the output has no output in the full width.

        Raises:
            ValueError: always.
        """
        raise ValueError("an output sketch has no output in the full width; use reduce")

    def truncate(self, rank: int, oversampling: int | None = None) -> "OutputSketch":
        """The nested sketch of fewer rows, scaled anew.

        Raises:
            ValueError: rank outside 1..k, or oversampling other than 0.
        """
        whole_number("oversampling", 0 if oversampling is None else oversampling, 0, 0)
        rank = whole_number("rank", rank, 1, self.rank)
        return OutputSketch(self.RJ[:rank] * math.sqrt(self.rank / rank))


def output_sketch(op: Operator, rank: int, seed: int = 0) -> OutputSketch:
    """Geometry-preserving sketch `R J` by one block of adjoint products (12.2).

    Args:
        op: operator of shape (d, d).
        rank: k, 1..d.
        seed: of R; the rows of a smaller k are, up to their scale, the first of a larger one.

    Raises:
        ValueError: an argument out of range, or an operator whose products are not finite.
    """
    width = check_operator(op)
    rank = whole_number("rank", rank, 1, width)
    draws = stream(seed, "jacobian", "output sketch", "gaussian").standard_normal((rank, width))
    rows = math.sqrt(width / rank) * torch.linalg.qr(torch.from_numpy(draws).T).Q  # (d, k): R^T
    sketched = op.rmatmat(rows).T
    if not torch.isfinite(sketched).all():
        raise ValueError("the operator's products are not finite")
    return OutputSketch(sketched.to(op.dtype))
