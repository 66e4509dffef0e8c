"""Named alternatives to the official estimator (source document, 12.2). None of them is ever chosen silently.

Each has its own name, folder and validation. All answer to `Estimate`, so that one judge serves them and `Factors`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.errors import InputError
from sparse_control.jacobian.operator import Array, DenseOperator, Operator, like
from sparse_control.jacobian.probes import Probe, random_probes
from sparse_control.jacobian.qb import Factors, check_operator, qb_of_probes, randomized_qb
from sparse_control.jacobian.store import load_factors
from sparse_control.seeds import stream


class Estimate(Protocol):
    """What every estimator of a Jacobian offers.

    `rank` is the target rank k, `r` the number of stored rows, `reduce(h)` the coordinates whose cosines are those of
    the transported state, `apply(h)` the transported state itself, `truncate` the nested estimator of a smaller rank.
    """

    @property
    def rank(self) -> int: ...

    @property
    def r(self) -> int: ...

    def reduce(self, h: Array) -> Array: ...

    def apply(self, h: Array) -> Array: ...

    def truncate(self, rank: int, oversampling: int | None = None) -> "Estimate": ...


def svd_factors(matrix: Tensor, rank: int, oversampling: int = 0) -> Factors:
    """The best rank-(k+p) approximation (Eckart-Young) as factors; `truncate` gives the smaller ones.

    Args:
        matrix: exact J (d, d).

    Raises:
        ValueError: rank outside 1..d, or oversampling below 0.
    """
    width = matrix.shape[0]
    rank = whole_number("rank", rank, 1, width)
    columns = min(rank + whole_number("oversampling", oversampling, 0), width)
    left, singular, right = torch.linalg.svd(matrix.double())
    return Factors(left[:, :columns], singular[:columns, None] * right[:columns], rank, oversampling)


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
            ValueError: the last dimension of h is not d.
        """
        h = h if isinstance(h, Tensor) else np.asarray(h)
        low_rank = torch.as_tensor(self.factors.reduce(h)).double() @ self.factors.Q.T.double()
        return like(self.shift * torch.as_tensor(h).double() + low_rank, h)

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
    shift = mean_diagonal(op, seed=seed) if shift is None else float(shift)
    if not math.isfinite(shift):
        raise ValueError(f"shift must be finite, got {shift}")
    return DeflatedFactors(shift, randomized_qb(_Shifted(op, shift), rank, oversampling, power_iterations, seed, probe))


def shaped_probes(activations: Array, omega: Tensor) -> Tensor:
    """`((1 - delta) Sigma_h + delta mu I)^{1/2} Omega`: probes distributed like activations.

    `Sigma_h` is the second moment of the activations about zero, since their common mean is part of every state that
    is transported; `mu = tr(Sigma_h) / d`, and delta is the Ledoit-Wolf shrinkage. Column i of the result depends on
    column i of Omega alone, so shaped probes are nested wherever Omega is.

    Args:
        activations: (m, d), m >= 2.
        omega: (d, r).

    Raises:
        ValueError: bad shapes, non-finite activations, or activations that are all zero.
    """
    width = omega.shape[0]
    rows = torch.as_tensor(activations).detach().to("cpu", torch.float64)
    if rows.ndim != 2 or rows.shape[1] != width or len(rows) < 2:
        raise ValueError(f"activations must be (m, {width}) with m >= 2, got shape {tuple(rows.shape)}")
    if not torch.isfinite(rows).all() or not rows.any():
        raise ValueError("activations must be finite and not all zero")
    rows = rows / rows.abs().max()  # the range of J Omega does not depend on scale
    delta = float(ledoit_wolf_shrinkage(rows.numpy(), assume_centered=True))
    _, singular, axes = torch.linalg.svd(rows, full_matrices=False)  # axes (min(m, d), d)
    variances = singular.square() / len(rows)
    floor = delta * float(variances.sum()) / width
    gains = ((1 - delta) * variances + floor).sqrt() - math.sqrt(floor)
    return math.sqrt(floor) * omega + axes.T @ (gains[:, None] * (axes @ omega))


def activation_factors(
    op: Operator,
    activations: Array,
    rank: int,
    oversampling: int = 32,
    power_iterations: int = 0,
    seed: int = 0,
    probe: Probe = "gaussian",
) -> Factors:
    """Randomized QB with probes shaped by activations at the operator's layer (`shaped_probes`).

    On prompts like those behind `activations` it looks far better than it is; judge it on prompts of another kind.

    Args:
        activations: (m, d), m >= 2, of corpus prompts.
        op, rank, oversampling, power_iterations, seed, probe: as for `randomized_qb`.

    Raises:
        ValueError: an argument out of range, bad activations, or an operator whose products are not finite.
    """
    width = check_operator(op)
    rank = whole_number("rank", rank, 1, width - 1)
    oversampling = whole_number("oversampling", oversampling, 0)
    omega = random_probes(width, min(rank + oversampling, width), seed=seed, probe=probe)
    return qb_of_probes(op, shaped_probes(activations, omega), rank, oversampling, power_iterations)


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
            ValueError: the last dimension of h is not d.
        """
        h = h if isinstance(h, Tensor) else np.asarray(h)
        if h.ndim == 0 or h.shape[-1] != self.RJ.shape[1]:
            raise ValueError(f"h must have last dimension {self.RJ.shape[1]}, got shape {tuple(h.shape)}")
        return like(torch.as_tensor(h).double() @ self.RJ.T.double(), h)

    def apply(self, h: Array) -> Array:
        """
        Raises:
            ValueError: always; a sketch of the output has no output in the full width.
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


def load_alternative(folder: Path) -> tuple[Factors | DeflatedFactors, dict[str, Any]]:
    """Read the factors of a named alternative and their metadata, the shift of a deflated one included.

    Raises:
        InputError: as `load_factors`, or metadata without the estimator's name or shift.
    """
    factors, metadata = load_factors(folder)
    path, estimator, shift = Path(folder) / "metadata.json", metadata.get("estimator"), metadata.get("shift")
    if estimator not in ("svd", "qb_deflated", "qb_activation"):
        raise InputError(f"{path}: estimator: expected a named alternative, got {estimator!r}")
    if estimator != "qb_deflated":
        return factors, metadata
    if isinstance(shift, bool) or not isinstance(shift, (int, float)) or not math.isfinite(shift):
        raise InputError(f"{path}: shift: expected a finite number, got {shift!r}")
    return DeflatedFactors(float(shift), factors), metadata
