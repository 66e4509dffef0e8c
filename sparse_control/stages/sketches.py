"""Estimators of one layer at every corpus size, power and seed, each made once at its largest rank."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparse_control.jacobian.operator import DenseOperator, Operator, corpus_operator, nested_actions
from sparse_control.jacobian.qb import Factors, randomized_qb
from sparse_control.models.language_model import LanguageModel
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import EstimatorSettings
from sparse_control.stages.states import load_tensors


class LayerEstimators:
    """Operators and nested QB factors of one layer.

    Args:
        layer: source layer.
        settings: ranks, oversampling and probe.
        reference: corpus size -> exact J (d, d); or None, then products come from `lm` and `corpus_ids`.
        lm, corpus_ids: the model and its corpus, for matrix-free products.
    """

    def __init__(
        self,
        *,
        layer: int,
        settings: EstimatorSettings,
        reference: dict[int, Tensor] | None = None,
        lm: LanguageModel | None = None,
        corpus_ids: np.ndarray | None = None,
    ) -> None:
        self.layer, self._settings = layer, settings
        self._reference, self._lm, self._corpus_ids = reference, lm, corpus_ids
        self._factors: dict[tuple[int, int, int], Factors] = {}

    @property
    def direct_action(self) -> str:
        """Where direct actions come from: `exact_reference` or `jvp`."""
        return "jvp" if self._reference is None else "exact_reference"

    def operator(self, corpus_size: int) -> Operator:
        """The corpus average over the first `corpus_size` prompts."""
        if self._reference is not None:
            return DenseOperator(self._reference[corpus_size])
        return corpus_operator(self._lm, self._corpus_ids[:corpus_size], self.layer)

    def actions(self, activations: Tensor) -> dict[int, Tensor]:
        """Direct actions `u_i = J h_i` at every corpus size: (M, d) -> {n: (M, d)}."""
        activations, sizes = activations.double(), self._settings.corpus_sizes
        if self._reference is not None:
            return {size: activations @ self._reference[size].T for size in sizes}
        return nested_actions(self._lm, self._corpus_ids, self.layer, activations, sizes)

    def factors(self, *, rank: int, oversampling: int, corpus_size: int, power_iterations: int, seed: int) -> Factors:
        """QB of rank k and oversampling p; every call after the first of its kind is a truncation."""
        key = corpus_size, power_iterations, seed
        if key not in self._factors:
            operator = self.operator(corpus_size)
            self._factors[key] = randomized_qb(
                operator,
                rank=min(2 * max(self._settings.ranks), operator.shape[1] - 1),
                oversampling=max(self._settings.oversampling),
                power_iterations=power_iterations,
                seed=seed,
                probe=self._settings.probe,
            )
        return self._factors[key].truncate(rank, oversampling)


def load_reference(path: Path, sizes: Sequence[int]) -> dict[int, Tensor]:
    """Corpus size -> exact finite-corpus Jacobian (d, d), float64, as stage A saved them."""
    tensors = load_tensors(path)
    return {size: tensors[f"n{size}"].to(torch.float64) for size in sizes}


def layer_estimators(
    paths: ModelPaths, settings: EstimatorSettings, layer: int, lm: LanguageModel | None, corpus_ids: np.ndarray | None
) -> LayerEstimators:
    """The estimators of a layer: over the exact reference, or matrix-free, as the settings say."""
    reference = (
        load_reference(paths.reference(layer), settings.corpus_sizes)
        if settings.products == "exact_reference"
        else None
    )
    return LayerEstimators(layer=layer, settings=settings, reference=reference, lm=lm, corpus_ids=corpus_ids)
