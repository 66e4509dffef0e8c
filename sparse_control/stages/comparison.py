"""Every candidate estimator of a layer against its exact reference, and the noise floor (source document, 5.3, 5.4)."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor

from sparse_control.jacobian.actions import ActionAgreement, action_agreement, frobenius_error
from sparse_control.jacobian.alternatives import svd_factors
from sparse_control.records.base import validate
from sparse_control.records.jacobian_iss.validation import ComparisonRow, NoiseFloor
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import EstimatorSettings, Settings
from sparse_control.stages.calibration import Calibration
from sparse_control.stages.sketches import LayerEstimators
from sparse_control.stages.states import load_tensors

UNDEFINED = "ISS is undefined for every calibration fact at this layer"
Apply = Callable[[Tensor], Tensor]  # an estimate's action, (M, d) -> (M, d)


def compare_layer(paths: ModelPaths, layer: int, calibration: Calibration, settings: Settings) -> dict[str, Any]:
    """`rows`, one per candidate with the statistics of 5.4 at the preregistered seed, and `noise_floor`."""
    size, seed = settings.estimator.corpus_sizes[-1], settings.estimator.sketch_seeds[0]
    tensors = {name: tensor.double() for name, tensor in load_tensors(paths.reference(layer)).items()}
    reference = Reference(layer, tensors[f"n{size}"], calibration)
    estimators = {
        probe: LayerEstimators(
            layer=layer,
            settings=settings.estimator.model_copy(update={"probe": probe}),
            reference={size: reference.matrix},
        )
        for probe in ("gaussian", "rademacher")
    }
    best = svd_factors(reference.matrix, max(settings.estimator.ranks), max(settings.estimator.oversampling))
    rows = []
    for probe, oversampling, power_iterations, rank in candidates(settings.estimator, layer in settings.iss.layers):
        factors = estimators[probe].factors(
            rank=rank, oversampling=oversampling, corpus_size=size, power_iterations=power_iterations, seed=seed
        )
        floor, estimated = best.truncate(rank, oversampling), reference.iss(factors.reduce(reference.states))
        rows.append(
            {
                "layer": layer,
                "estimator": "qb",
                "probe": probe,
                "oversampling": oversampling,
                "power_iterations": power_iterations,
                "seed": seed,
                "k": rank,
                "r": factors.r,
                "E_F": frobenius_error(reference.matrix, factors.Q, factors.B),
                **reference.action_errors(factors.apply),
                **iss_error(reference.exact.mean(), estimated.mean()),
                "rho_fact": rank_agreement(reference.exact.to_numpy(), estimated.to_numpy()),
                "svd_floor_E_F": frobenius_error(reference.matrix, floor.Q, floor.B),
                "svd_floor_E_vec": reference.agreement(floor.apply).mean_relative_error,
            }
        )
    return {"rows": rows, "noise_floor": reference.noise_floor(tensors["half0"], tensors["half1"])}


def check_comparison(content: dict[str, Any], layer: int) -> None:
    """Refuse what is no comparison of one layer.

    Raises:
        ValueError: names the field.
    """
    rows: list[ComparisonRow | NoiseFloor] = [validate(ComparisonRow, row, "rows") for row in content["rows"]]
    rows.append(validate(NoiseFloor, content["noise_floor"], "noise_floor"))
    if wrong := [row.layer for row in rows if row.layer != layer]:
        raise ValueError(f"layer: is {wrong[0]}, expected {layer}")


def candidates(settings: EstimatorSettings, in_window: bool) -> Iterator[tuple[str, int, int, int]]:
    """(probe, oversampling, power iterations, rank): everything in the window, plain estimators elsewhere."""
    powers = settings.power_iterations if in_window else settings.power_iterations[:1]
    for oversampling in settings.oversampling:
        for power in powers:
            yield from ((settings.probe, oversampling, power, rank) for rank in settings.ranks)
    other = "rademacher" if settings.probe == "gaussian" else "gaussian"
    for oversampling in settings.oversampling:
        yield from ((other, oversampling, settings.power_iterations[0], rank) for rank in settings.ranks)


class Reference:
    """The exact finite-corpus Jacobian of a layer, and what an estimate of it is held against on the calibration set.

    Attributes:
        layer: source layer.
        matrix: J (d, d), float64.
        states: calibration states (N, d).
        lam_rel: of the states it transports; None where they have no covariance.
        exact: ISS of every calibration fact with J itself.
    """

    def __init__(self, layer: int, matrix: Tensor, calibration: Calibration) -> None:
        self.layer, self.matrix, self.states = layer, matrix, calibration.states[layer]
        self._labels, self._held_out = calibration.labels, calibration.activations(layer)
        self._centred = self._held_out - self._held_out.mean(dim=0)
        transported = self.states @ matrix.T
        self.lam_rel = self._labels.lam_rel(transported)
        self.exact = self.iss(transported)

    def iss(self, z: Tensor) -> pd.Series:
        """ISS of every calibration fact from states z (N, D) in any coordinates, NaN where undefined."""
        return self._labels.iss(z, lam_rel=self.lam_rel, width=self.matrix.shape[0]).iss

    def agreement(self, apply: Apply, *, centred: bool = False, of: Tensor | None = None) -> ActionAgreement:
        """Actions of an estimate against those of J, or of another matrix, on the held-out activations."""
        rows, matrix = self._centred if centred else self._held_out, self.matrix if of is None else of
        return action_agreement(rows @ matrix.T, apply(rows))

    def action_errors(self, apply: Apply, *, of: Tensor | None = None) -> dict[str, float]:
        """E_vec and C_vec of an estimate, and the same on activations without their common mean."""
        raw, centred = (self.agreement(apply, centred=centred, of=of) for centred in (False, True))
        return {
            "E_vec": raw.mean_relative_error,
            "C_vec": raw.mean_cosine,
            "E_vec_centred": centred.mean_relative_error,
            "C_vec_centred": centred.mean_cosine,
        }

    def noise_floor(self, first: Tensor, second: Tensor) -> dict[str, Any]:
        """Two disjoint halves of the corpus against each other: no claim is made below these errors."""
        scores = [self.iss(self.states @ half.T).mean() for half in (first, second)]
        return {
            "layer": self.layer,
            "E_F": float(torch.linalg.norm(first - second) / torch.linalg.norm(first)),
            **self.action_errors(lambda rows: rows @ second.T, of=first),
            **iss_error(*scores),
        }


def iss_error(exact: float, estimated: float) -> dict[str, Any]:
    """`E_ISS = |ISS_full - ISS_k|`; null and a reason where no fact has an ISS."""
    error = abs(float(exact) - float(estimated))
    return {"E_ISS": error} if math.isfinite(error) else {"E_ISS": None, "reason": UNDEFINED}


def rank_agreement(exact: np.ndarray, estimated: np.ndarray) -> float | None:
    """`rho_fact`: Spearman over the facts both sides define; None where either side is constant."""
    both = np.isfinite(exact) & np.isfinite(estimated)
    if both.sum() < 2 or np.ptp(exact[both]) == 0 or np.ptp(estimated[both]) == 0:
        return None
    return float(spearmanr(exact[both], estimated[both]).statistic)
