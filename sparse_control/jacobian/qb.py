"""Randomized QB factorisation of a Jacobian (source document, 6)."""

from dataclasses import dataclass

import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.operator import Array, Operator, as_states, like
from sparse_control.jacobian.probes import Probe, random_probes

MOST_POWER_ITERATIONS = 100  # each takes two passes over the corpus; a range settles within a few


@dataclass(frozen=True, eq=False)
class Factors:
    """`J_hat = Q B`, the dense product never formed.

    Attributes:
        Q: (d, r), orthonormal columns.
        B: (r, d).
        rank: target rank k.
        oversampling: p; r = min(k + p, d).
    """

    Q: Tensor
    B: Tensor
    rank: int
    oversampling: int

    @property
    def r(self) -> int:
        """Number of columns kept."""
        return self.Q.shape[1]

    def reduce(self, h: Array) -> Array:
        """`y = B h` (..., r) for h (..., d): coordinates whose cosines are those of `J_hat h` (6.4).

        Raises:
            ValueError: h is not a dense array of finite real numbers, or its last dimension is not d.
        """
        return like(as_states(h, self.B.shape[1]) @ self.B.T.double(), h)

    def apply(self, h: Array) -> Array:
        """`J_hat h = Q (B h)` for h (..., d), in the kind and dtype of h.

        Raises:
            ValueError: h is not a dense array of finite real numbers, or its last dimension is not d.
        """
        reduced = torch.as_tensor(self.reduce(h))
        return like(reduced.to("cpu", torch.float64) @ self.Q.T.double(), h)

    def truncate(self, rank: int, oversampling: int | None = None) -> "Factors":
        """The nested estimator of a smaller rank: the first `rank + oversampling` columns.

        Raises:
            ValueError: more columns than there are, or rank < 1.
        """
        width = self.Q.shape[0]
        rank = whole_number("rank", rank, 1, width)
        oversampling = whole_number("oversampling", self.oversampling if oversampling is None else oversampling, 0)
        columns = min(rank + oversampling, width)
        if columns > self.r:
            raise ValueError(f"rank + oversampling must be at most r = {self.r}, got {rank} + {oversampling}")
        return Factors(self.Q[:, :columns], self.B[:columns], rank, oversampling)


def randomized_qb(
    op: Operator,
    rank: int,
    oversampling: int = 32,
    power_iterations: int = 0,
    seed: int = 0,
    probe: Probe = "gaussian",
) -> Factors:
    """Factorise an operator as `Q B` with `Q = qr(J Omega)` and `B = Q^T J`; every column is kept.

    With power iterations the range is refined by `J^T` and `J` in turn, orthonormalised each time.
    QR is column-progressive, so one call at the largest rank holds every smaller one (`truncate`).
    `r = rank + oversampling` is capped at d, where QB is exact up to rounding.

    Args:
        op: operator of shape (d, d); products are asked for in float64.
        rank: k, 1..d-1.
        oversampling: p >= 0.
        power_iterations: q, 0..100.
        seed: of the probe stream.
        probe: "gaussian" or "rademacher".

    Raises:
        ValueError: an argument out of range, or an operator whose products are not finite.
    """
    width = check_operator(op)
    rank = whole_number("rank", rank, 1, width - 1)
    oversampling = whole_number("oversampling", oversampling, 0)
    omega = random_probes(width, min(rank + oversampling, width), seed=seed, probe=probe)
    return qb_of_probes(op, omega, rank, oversampling, power_iterations)


def check_operator(op: Operator) -> int:
    """The width d of an operator that can be factorised.

    Raises:
        ValueError: not an operator of this package, or not square.
    """
    if not all(hasattr(op, name) for name in ("matmat", "rmatmat", "dtype")) or isinstance(op, LinearOperator):
        raise ValueError(
            f"op must be an operator of this package, got {type(op).__name__}; wrap a matrix in DenseOperator"
        )
    if op.shape[0] != op.shape[1]:
        raise ValueError(f"op must be square, got shape {tuple(op.shape)}")
    return op.shape[1]


def qb_of_probes(op: Operator, omega: Tensor, rank: int, oversampling: int, power_iterations: int) -> Factors:
    """`randomized_qb` for given probes Omega (d, r), r = min(rank + oversampling, d).

    Raises:
        ValueError: power_iterations out of range, or an operator whose products are not finite.
    """
    power_iterations = whole_number("power_iterations", power_iterations, 0, MOST_POWER_ITERATIONS)
    Q = orthonormal(op.matmat(omega))
    for _ in range(power_iterations):
        Q = orthonormal(op.matmat(orthonormal(op.rmatmat(Q))))
    B = op.rmatmat(Q).T
    return Factors(Q.to(op.dtype), B.to(op.dtype), rank, oversampling)


def orthonormal(block: Tensor) -> Tensor:
    """Orthonormal columns (d, r) of the range of a block (d, r), column after column.

    Raises:
        ValueError: the block is not finite.
    """
    if not torch.isfinite(block).all():
        raise ValueError("the operator's products are not finite")
    return torch.linalg.qr(block).Q
