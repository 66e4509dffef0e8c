"""Every number that stage B judges one layer by (source document, 7 to 9)."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from sparse_control.iss.registry import TRANSPORTED_STATE_METRICS
from sparse_control.jacobian.actions import action_agreement
from sparse_control.jacobian.qb import Factors
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration
from sparse_control.stages.ladder import Attempt, Convergence, Evidence, Rung
from sparse_control.stages.sketches import LayerEstimators


class LayerStudy:
    """Evaluates corpus sizes and rungs on one layer and keeps the rows of the rank and seed studies.

    Attributes:
        model: as records call it.
        layer, width: source layer, d.
        estimators: of the layer.
        lam_rel, lam_rel_raw: whitening penalties of transported and of raw calibration states; None where undefined.
        convergence: n against 2n, by corpus size.
        rank_rows, seed_rows: lines of rank_convergence.jsonl and seed_stability.jsonl.
    """

    def __init__(
        self, model: str, estimators: LayerEstimators, calibration: Calibration, settings: Settings, *, width: int
    ) -> None:
        self.model, self.layer, self.width = model, estimators.layer, width
        self.estimators, self.calibration = estimators, calibration
        self._settings = settings
        self.rank_rows: list[dict[str, Any]] = []
        self.seed_rows: list[dict[str, Any]] = []
        self._scores: dict[Rung, float] = {}
        self._partner_r: dict[Rung, int] = {}
        self._states = calibration.states[self.layer]
        transported = estimators.actions(self._states)  # {n: (N, d)}
        self.lam_rel_raw = calibration.labels.lam_rel(self._states)
        self.lam_rel = calibration.labels.lam_rel(transported[settings.estimator.corpus_sizes[-1]])
        self._direct = {size: rows[calibration.held_out] for size, rows in transported.items()}
        self.convergence = self._converging(transported)

    def _converging(self, transported: dict[int, Tensor]) -> list[Convergence]:
        """n against 2n of nested corpora (8.2)."""
        scores = {size: self._metrics(rows)["ISS"] for size, rows in transported.items()}
        rows = []
        for size in self._settings.estimator.corpus_sizes:
            if 2 * size not in transported:
                rows.append(Convergence(size, None, None, None))
                continue
            agreement = action_agreement(self._direct[2 * size], self._direct[size])
            rows.append(
                Convergence(
                    n=size,
                    cosine_to_2n=agreement.median_cosine,
                    relative_error_to_2n=agreement.median_relative_error,
                    iss_difference=abs(scores[2 * size] - scores[size]),
                )
            )
        return rows

    def convergence_rows(self, start: int) -> list[dict[str, Any]]:
        """Lines of corpus_convergence.jsonl."""
        thresholds = self._settings.validation
        return [
            {
                "model": self.model,
                "layer": self.layer,
                **undefined_as_null(asdict(size)),
                "converged": size.holds(thresholds),
                "chosen": size.n == start,
            }
            for size in self.convergence
        ]

    def _metrics(self, z: Tensor) -> dict[str, float]:
        """Every registered metric of transported states (9), NaN where undefined."""
        labels = self.calibration.labels
        if self.lam_rel is None:
            return dict.fromkeys(TRANSPORTED_STATE_METRICS, math.nan)
        return {
            name: metric(z.numpy(), labels.facts, labels.relations, labels.families, self.lam_rel, self.width)
            for name, metric in TRANSPORTED_STATE_METRICS.items()
        }

    def factors(self, rung: Rung, rank: int, seed: int) -> Factors:
        """QB of one sketch seed at a rung, with a rank of its own."""
        return self.estimators.factors(
            rank=rank,
            oversampling=rung.oversampling,
            corpus_size=rung.corpus_size,
            power_iterations=rung.power_iterations,
            seed=seed,
        )

    def evaluate(self, rung: Rung) -> Evidence:
        """Agreement with direct actions and ISS at k, 2k and every sketch seed (7.3, 9)."""
        seeds = self._settings.estimator.sketch_seeds
        direct, held_out = self._direct[rung.corpus_size], self.calibration.activations(self.layer)
        factors = [self.factors(rung, rung.rank, seed) for seed in seeds]
        agreements = [action_agreement(direct, one.apply(held_out)) for one in factors]
        per_seed = [self._metrics(one.reduce(self._states)) for one in factors]
        scores = [values["ISS"] for values in per_seed]
        partner = self.factors(rung, min(2 * rung.rank, self.width - 1), seeds[0])
        partner_score = self._metrics(partner.reduce(self._states))["ISS"]

        self._keep_rank_rows(rung, factors, scores)
        metrics = {name: [values[name] for values in per_seed] for name in TRANSPORTED_STATE_METRICS}
        metrics["mean_cosine"] = [agreement.mean_cosine for agreement in agreements]
        metrics["mean_relative_error"] = [agreement.mean_relative_error for agreement in agreements]
        self._keep_seed_rows(rung, metrics)
        self._scores[rung], self._partner_r[rung] = scores[0], partner.r
        return Evidence(
            median_cosine=agreements[0].median_cosine,
            median_relative_error=agreements[0].median_relative_error,
            iss_rank_difference=abs(partner_score - scores[0]),
            iss_seed_deviation=float(np.std(scores, ddof=1)),
        )

    def _setting(self, rung: Rung) -> dict[str, Any]:
        return {
            "model": self.model,
            "layer": self.layer,
            "k": rung.rank,
            "oversampling": rung.oversampling,
            "power_iterations": rung.power_iterations,
            "corpus_size": rung.corpus_size,
        }

    def _keep_rank_rows(self, rung: Rung, factors: list[Factors], scores: list[float]) -> None:
        seeds = self._settings.estimator.sketch_seeds
        self.rank_rows += [
            undefined_as_null(self._setting(rung) | {"r": one.r, "seed": seed, "iss": score})
            for one, seed, score in zip(factors, seeds, scores, strict=True)
        ]

    def _keep_seed_rows(self, rung: Rung, metrics: Mapping[str, list[float]]) -> None:
        """One row a metric; none of a metric that is undefined."""
        seeds = self._settings.estimator.sketch_seeds
        for metric, values in metrics.items():
            if np.isfinite(values).all():
                mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
                row = {"metric": metric, "seeds": list(seeds), "values": values, "mean": mean, "sd": deviation}
                self.seed_rows.append(self._setting(rung) | row)

    def attempt_row(self, attempt: Attempt) -> dict[str, Any]:
        """One line of per_model_action_validation.jsonl."""
        rung, evidence, passed = attempt.rung, attempt.evidence, not attempt.failed
        r = min(rung.rank + rung.oversampling, self.width)
        exact = "r = d: exact up to rounding" if r == self.width else None
        row = {
            "model": self.model,
            "layer": self.layer,
            "k": rung.rank,
            "k_over_d": rung.rank / self.width,
            "r": r,
            "oversampling": rung.oversampling,
            "power_iterations": rung.power_iterations,
            "corpus_size": rung.corpus_size,
            "direct_action": self.estimators.direct_action,
            "median_cosine": evidence.median_cosine,
            "median_relative_error": evidence.median_relative_error,
            "iss_rank_difference": evidence.iss_rank_difference,
            "iss_seed_deviation": evidence.iss_seed_deviation,
            "iss": self._scores[rung],
            "partner_r": self._partner_r[rung],
            "passed": passed,
            "step": rung.step,
            "reason": exact if passed else "; ".join(attempt.failed),
            "chosen": passed,
        }
        return undefined_as_null(row)


def undefined_as_null(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for every number that is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
