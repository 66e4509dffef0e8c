"""The estimator calibration set as stage A measured it (source document, 13.2): states, ISS, held-out activations."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.iss.benchmark import Query
from sparse_control.iss.score import internal_state_stability, residual_states
from sparse_control.iss.shrinkage import shrinkage_lam_rel
from sparse_control.records.paths import ModelPaths
from sparse_control.seeds import stream
from sparse_control.settings import Settings
from sparse_control.stages.queries import calibration_queries
from sparse_control.stages.states import load_tensors

NO_PENALTY = "the calibration states have no covariance to whiten with"


@dataclass(frozen=True)
class Labels:
    """Row labels of a set of queries."""

    facts: list[str]
    relations: list[str]
    families: list[str]

    @classmethod
    def of(cls, queries: tuple[Query, ...]) -> "Labels":
        return cls([q.fact for q in queries], [q.relation for q in queries], [q.family for q in queries])

    def iss(
        self, z: np.ndarray | Tensor, *, lam_rel: float | None, width: int, covariance_rows: np.ndarray | None = None
    ) -> pd.DataFrame:
        """Per-fact ISS of states (N, D) in any coordinates of a model of this width; undefined without a penalty."""
        if lam_rel is None:
            nothing = np.zeros((len(self.facts), 1))
            return self.iss(nothing, lam_rel=1.0, width=width).assign(reason=NO_PENALTY)
        return internal_state_stability(
            np.asarray(z),
            self.facts,
            self.relations,
            self.families,
            lam_rel=lam_rel,
            model_width=width,
            covariance_rows=covariance_rows,
        )

    def residuals(self, z: np.ndarray | Tensor) -> np.ndarray:
        """(N, D) states without their relation and family means (10.1)."""
        return residual_states(np.asarray(z), self.relations, self.families)

    def lam_rel(self, z: np.ndarray | Tensor) -> float | None:
        """Ledoit-Wolf penalty of states (N, d) in full coordinates; None where they have no covariance to whiten with.

        So it is where relation and family explain every state, as at layer 0 where prompts end alike.
        """
        try:
            return shrinkage_lam_rel(np.asarray(z), self.relations, self.families) or None
        except ValueError:  # a shrinkage of 1
            return None


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration states and which of them serve as held-out activations.

    Attributes:
        labels: of the N rows.
        states: source layer -> (N, d).
        held_out: (M,) row indices, the same at every layer.
    """

    labels: Labels
    states: dict[int, Tensor]
    held_out: np.ndarray

    def activations(self, layer: int) -> Tensor:
        """Held-out activation vectors (M, d) of a layer (source document, 7.2)."""
        return self.states[layer][self.held_out]


def load_calibration(paths: ModelPaths, settings: Settings, layers: Iterable[int], width: int) -> Calibration:
    """Read what stage A saved.

    Args:
        layers: that are needed.
        width: of the model.

    Raises:
        InputError: the file is missing or corrupt, or its states are not those of these prompts and layers.
    """
    labels = Labels.of(calibration_queries(settings))
    path, shape = paths.states("calibration"), (len(labels.facts), width)
    tensors = load_tensors(path)
    for layer in layers:
        found = tensors.get(str(layer))
        if found is None or tuple(found.shape) != shape or not torch.isfinite(found).all():
            state = "there are none" if found is None else f"they are {tuple(found.shape)}, or not finite"
            raise InputError(
                f"{path}: states of layer {layer}: {state}, expected finite ones of shape {shape}; "
                "run stage A again (run official-iss)"
            )
    rows = stream(settings.validation.seed, "official-iss", "calibration", "activations").permutation(shape[0])
    return Calibration(
        labels=labels,
        states={layer: tensors[str(layer)].double() for layer in layers},
        held_out=np.sort(rows[: settings.validation.activations]),
    )
