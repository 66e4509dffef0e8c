"""ISS and Raw-ISS of the benchmark at one layer, from its frozen factors and penalties (source document, 10, 11)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from sparse_control.jacobian.qb import Factors
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.stages.calibration import Calibration, Labels

OFFICIAL, RAW = "ISS", "Raw-ISS"


@dataclass(frozen=True, eq=False)
class LayerScore:
    """What was measured at one layer.

    Attributes:
        layer: source layer.
        tables: per fact: official ISS where the layer is validated, and Raw-ISS.
        row: of `per_layer` in the summary.
        sweep: rows of the summary, one per penalty.
        transported: (N, r) states in the reduced coordinates of each reported sketch seed; none where unresolved.
    """

    layer: int
    tables: list[pd.DataFrame]
    row: dict[str, Any]
    sweep: list[dict[str, Any]]
    transported: list[Tensor]


def score_layer(
    layer: int,
    states: Tensor,
    factors: Sequence[Factors],
    labels: Labels,
    calibration: Calibration,
    freeze: FreezeManifest,
    sweep: Sequence[float],
) -> LayerScore:
    """Carry the states to the final residual stream and score them, and the raw states beside them.

    Args:
        states: (N, d) float64, `h^l` at the end of every benchmark prompt.
        factors: of every reported sketch seed; none of an unresolved layer, which has Raw-ISS alone (12.1).
        labels: of the N prompts.
        calibration: for the check with Sigma from other rows.
        freeze: what was frozen.
        sweep: penalties at which both are reported beside the frozen ones.
    """
    frozen, penalty = freeze.layers[str(layer)], freeze.lam_rel[str(layer)]
    scorer = _Scorer(labels, calibration, layer, states.shape[1])
    transported = [one.reduce(states) for one in factors]  # y = B h, whose cosines are those of Q y (6.4)
    tables = []
    if transported:
        per_seed = scorer.per_seed(transported, penalty.iss)
        official = _mean_table(per_seed)
        if len(per_seed) > 1:
            official = official.assign(seeds=_seed_scores(per_seed, frozen.seeds))
        tables.append(official.assign(layer=layer, metric=OFFICIAL))
    tables.append(scorer.table([states], penalty.raw).assign(layer=layer, metric=RAW))
    row = {
        "layer": layer,
        "status": frozen.status,
        "reporting": frozen.reporting,
        "iss": mean_or_none(tables[0].iss) if transported else None,
        "raw_iss": mean_or_none(tables[-1].iss),
        "raw_iss_matched_lam": mean_or_none(scorer.table([states], penalty.iss).iss),
        "iss_calibration_sigma": scorer.with_calibration_sigma(factors, transported, penalty.iss),
        "raw_iss_calibration_sigma": scorer.with_calibration_sigma([None], [states], penalty.raw),
        "lam_rel_iss": penalty.iss,
        "lam_rel_raw": penalty.raw,
    }
    rows = [
        {
            "layer": layer,
            "lam_rel": value,
            "iss": mean_or_none(scorer.table(transported, value).iss) if transported else None,
            "raw_iss": mean_or_none(scorer.table([states], value).iss),
        }
        for value in sweep
    ]
    return LayerScore(layer, tables, row, rows, transported)


@dataclass(frozen=True)
class _Scorer:
    """ISS of the benchmark rows at one layer, in any coordinates."""

    labels: Labels
    calibration: Calibration
    layer: int
    width: int

    def per_seed(self, coordinates: Sequence[Tensor], lam_rel: float | None) -> list[pd.DataFrame]:
        return [self.labels.iss(z, lam_rel=lam_rel, width=self.width) for z in coordinates]

    def table(self, coordinates: Sequence[Tensor], lam_rel: float | None) -> pd.DataFrame:
        """Per-fact table; with more than one sketch seed the mean of their numbers (9)."""
        return _mean_table(self.per_seed(coordinates, lam_rel))

    def with_calibration_sigma(
        self, factors: Sequence[Factors | None], coordinates: Sequence[Tensor], lam_rel: float | None
    ) -> float | None:
        """The mean where Sigma comes from the calibration rows instead of the evaluated ones; a check of robustness."""
        rows = self.calibration.states[self.layer]
        tables = []
        for one, z in zip(factors, coordinates, strict=True):
            residuals = self.calibration.labels.residuals(rows if one is None else one.reduce(rows))
            tables.append(self.labels.iss(z, lam_rel=lam_rel, width=self.width, covariance_rows=residuals))
        return mean_or_none(_mean_table(tables).iss) if tables else None


def _mean_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    first, *others = tables
    if not others:
        return first
    numbers = ["s_plus", "s_minus", "iss"]  # a fact that is undefined is so for every seed
    return first.assign(**{name: np.mean([table[name] for table in tables], axis=0) for name in numbers})


def _seed_scores(tables: Sequence[pd.DataFrame], seeds: Sequence[int]) -> pd.Series:
    """Per fact, the numbers of every sketch seed behind the means; None where the fact is undefined."""
    columns = [table[["s_plus", "s_minus", "iss"]].to_dict(orient="records") for table in tables]
    scores = [
        [{"seed": seed, **row} for seed, row in zip(seeds, rows, strict=True)] for rows in zip(*columns, strict=True)
    ]
    undefined = tables[0].reason.notna()
    return pd.Series([None if gone else rows for gone, rows in zip(undefined, scores, strict=True)], dtype=object)


def mean_or_none(values: Iterable[float]) -> float | None:
    """Mean over the facts that are defined; None where none is."""
    values = np.asarray(values, dtype=np.float64)
    return float(np.nanmean(values)) if np.isfinite(values).any() else None
