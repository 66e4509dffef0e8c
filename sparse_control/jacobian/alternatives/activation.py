"""`qb_activation`: randomized QB whose probes are shaped like activations.

QB with probes Omega finds the range of `J Omega`; with Gaussian probes all directions count alike, though states lie
along few. Probes drawn with the activations' second moment put the columns where states are, and about halve the error
on them. What they gain on activations of their own kind says nothing of others: they are judged on prompts of another
kind than those they were made from.
"""

import math

import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.operator import Array, Operator
from sparse_control.jacobian.probes import Probe, random_probes
from sparse_control.jacobian.qb import Factors, check_operator, qb_of_probes
from sparse_control.tensors import as_float64


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
    rows = as_float64("activations", activations)
    if rows.ndim != 2 or rows.shape[1] != width or len(rows) < 2:
        raise ValueError(f"activations must be (m, {width}) with m >= 2, got shape {tuple(rows.shape)}")
    if not rows.any():
        raise ValueError("activations must not be all zero")
    rows = rows / rows.abs().max()  # the range of J Omega does not depend on scale
    delta = float(ledoit_wolf_shrinkage(rows.numpy(), assume_centered=True))
    _, singular, axes = torch.linalg.svd(rows, full_matrices=False)  # axes (min(m, d), d)
    variances = singular.square() / len(rows)
    floor = delta * float(variances.sum()) / width
    gains = ((1 - delta) * variances + floor).sqrt() - math.sqrt(floor)
    return math.sqrt(floor) * omega + axes.T @ (gains[:, None] * (axes @ omega))
