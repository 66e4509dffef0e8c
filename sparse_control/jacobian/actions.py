"""How well an estimator acts on held-out activations (source document, 5.4, 7.1)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

EPSILON = 1e-12


@dataclass(frozen=True)
class ActionAgreement:
    """Estimated against direct actions over M activations.

    Attributes:
        mean_cosine: C_vec.
        mean_relative_error: E_vec.
        median_cosine, median_relative_error: what the acceptance rule reads.
    """

    mean_cosine: float
    mean_relative_error: float
    median_cosine: float
    median_relative_error: float


def action_agreement(direct: np.ndarray, estimated: np.ndarray) -> ActionAgreement:
    """Compare `u_i = J h_i` with `J_hat h_i`.

    Args:
        direct, estimated: (M, d).

    Raises:
        ValueError: shapes differ, or nothing to compare.
    """
    direct, estimated = np.asarray(direct, dtype=np.float64), np.asarray(estimated, dtype=np.float64)
    if direct.shape != estimated.shape or direct.ndim != 2 or not len(direct):
        raise ValueError(f"direct and estimated must both be (M, d), got {direct.shape} and {estimated.shape}")
    norms = np.linalg.norm(direct, axis=1)
    errors = np.linalg.norm(direct - estimated, axis=1) / (norms + EPSILON)
    cosines = (direct * estimated).sum(1) / (norms * np.linalg.norm(estimated, axis=1) + EPSILON)
    return ActionAgreement(
        float(cosines.mean()), float(errors.mean()), float(np.median(cosines)), float(np.median(errors))
    )


def frobenius_error(matrix: Tensor, Q: Tensor, B: Tensor) -> float:
    """`E_F = ||J - Q B||_F / ||J||_F`, in float64."""
    matrix = matrix.double()
    return float(torch.linalg.norm(matrix - Q.double() @ B.double()) / torch.linalg.norm(matrix))
