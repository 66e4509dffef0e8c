"""The estimator calibration set (source document, 13.2): its states, its ISS and its held-out activations."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor

from sparse_control.iss.benchmark import Query, load_queries
from sparse_control.iss.score import internal_state_stability, residual_states
from sparse_control.iss.shrinkage import shrinkage_lam_rel
from sparse_control.records.paths import ModelPaths
from sparse_control.seeds import stream
from sparse_control.settings import Settings
from sparse_control.stages.states import load_tensors


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
        self, z: np.ndarray | Tensor, *, lam_rel: float, width: int, covariance_rows: np.ndarray | None = None
    ) -> pd.DataFrame:
        """Per-fact ISS of states (N, D) in any coordinates of a model of this width."""
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

    def lam_rel(self, z: np.ndarray | Tensor) -> float:
        """Ledoit-Wolf penalty of states (N, d) in full coordinates."""
        return shrinkage_lam_rel(np.asarray(z), self.relations, self.families)


def calibration_queries(settings: Settings) -> tuple[Query, ...]:
    """The calibration prompts of these settings; reads the calibration files alone."""
    return load_queries(
        "calibration",
        relations=settings.iss.calibration_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=min(4, settings.iss.families),
        templates=settings.iss.templates,
    )


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


def load_calibration(paths: ModelPaths, settings: Settings) -> Calibration:
    """Read what stage A saved.

    Raises:
        InputError: the file is missing or corrupt.
    """
    labels = Labels.of(calibration_queries(settings))
    tensors = load_tensors(paths.states("calibration"))
    rows = stream(settings.validation.seed, "official-iss", "calibration", "activations").permutation(len(labels.facts))
    return Calibration(
        labels=labels,
        states={int(layer): rows.double() for layer, rows in tensors.items()},
        held_out=np.sort(rows[: settings.validation.activations]),
    )
