"""`qb_deflated`: `a I + Q B` with randomized QB of `J - a I`.

A residual stream carries states on, so in late layers J is near a multiple of the identity plus something of low rank.
The identity has no decaying spectrum, and QB of J spends its columns on it; with `a = tr(J) / d`, the multiple nearest
to J in the Frobenius norm, what is left decays. Early layers are far from the identity and gain nothing.
"""

import math
from dataclasses import dataclass

import torch

from sparse_control.arguments import real_number, whole_number
from sparse_control.jacobian.operator import Array, DenseOperator, Operator, as_states, like
from sparse_control.jacobian.probes import Probe
from sparse_control.jacobian.qb import Factors, check_operator, randomized_qb
from sparse_control.seeds import stream


@dataclass(frozen=True, eq=False)
class DeflatedFactors:
    """`J_hat = a I + Q B` with Q B of `J - a I`; the dense sum is never formed.

    Attributes:
        shift: a.
        factors: Q (d, r) and B (r, d).
    """

    shift: float
    factors: Factors

    @property
    def rank(self) -> int:
        """Target rank k."""
        return self.factors.rank

    @property
    def oversampling(self) -> int:
        """p; r = min(k + p, d)."""
        return self.factors.oversampling

    @property
    def r(self) -> int:
        """Number of columns kept."""
        return self.factors.r

    def apply(self, h: Array) -> Array:
        """`J_hat h = a h + Q (B h)` for h (..., d), in the kind and dtype of h.

        Raises:
            ValueError: h is not a dense array of finite real numbers, or its last dimension is not d.
        """
        states = as_states(h, self.factors.B.shape[1])
        low_rank = torch.as_tensor(self.factors.reduce(h)).to("cpu", torch.float64) @ self.factors.Q.T.double()
        return like(self.shift * states + low_rank, h)

    def reduce(self, h: Array) -> Array:
        """As `apply`: with the identity in the sum, fewer than d coordinates do not hold the cosines."""
        return self.apply(h)

    def truncate(self, rank: int, oversampling: int | None = None) -> "DeflatedFactors":
        """The nested estimator of a smaller rank, with the same shift.

        Raises:
            ValueError: more columns than there are, or rank < 1.
        """
        return DeflatedFactors(self.shift, self.factors.truncate(rank, oversampling))


@dataclass(frozen=True)
class _Shifted:
    """`J - a I` by the products of J."""

    op: Operator
    shift: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.op.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.op.dtype

    def matmat(self, vectors: Array) -> Array:
        return self.op.matmat(vectors) - self.shift * vectors

    def rmatmat(self, vectors: Array) -> Array:
        return self.op.rmatmat(vectors) - self.shift * vectors


def mean_diagonal(op: Operator, *, seed: int = 0, probes: int = 128) -> float:
    """`tr(J) / d`: exact for a `DenseOperator`, else Hutchinson's estimate `mean_i g_i^T J g_i / d`.

    Rademacher probes leave the diagonal exact, so only the other entries add to the variance, which is at most
    `2 (||J||_F^2 - sum_i J_ii^2) / (probes d^2)`.

    Args:
        op: operator of shape (d, d).
        seed: of the trace's own probe stream.
        probes: number of products `J g`.

    Raises:
        ValueError: not a square operator, no probes, or products that are not finite.
    """
    width = check_operator(op)
    if isinstance(op, DenseOperator):
        return float(op.matrix.trace()) / width
    draws = stream(seed, "jacobian", "trace", "rademacher").standard_normal((whole_number("probes", probes, 1), width))
    vectors = torch.from_numpy(draws).sign().T  # (d, probes)
    share = float((vectors * op.matmat(vectors)).sum()) / (probes * width)
    if not math.isfinite(share):
        raise ValueError("the operator's products are not finite")
    return share


def deflated_factors(
    op: Operator,
    rank: int,
    oversampling: int = 32,
    power_iterations: int = 0,
    seed: int = 0,
    probe: Probe = "gaussian",
    *,
    shift: float | None = None,
) -> DeflatedFactors:
    """`a I + Q B` with randomized QB of `J - a I`; late layers, where J is near a multiple of I, need less rank.

    Args:
        op, rank, oversampling, power_iterations, seed, probe: as for `randomized_qb`.
        shift: a; None: `mean_diagonal(op, seed=seed)`.

    Raises:
        ValueError: an argument out of range, or an operator whose products are not finite.
    """
    check_operator(op)
    shift = mean_diagonal(op, seed=seed) if shift is None else real_number("shift", shift)
    return DeflatedFactors(shift, randomized_qb(_Shifted(op, shift), rank, oversampling, power_iterations, seed, probe))
