"""Stage B: choose every layer's estimator by one fixed rule on the calibration set (source document, 7 to 9, 12)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm

from sparse_control.files import write_json, write_json_lines
from sparse_control.iss.registry import TRANSPORTED_STATE_METRICS
from sparse_control.jacobian.actions import action_agreement
from sparse_control.jacobian.qb import Factors
from sparse_control.jacobian.store import save_factors
from sparse_control.receipt import Receipt
from sparse_control.records.paths import save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration, load_calibration
from sparse_control.stages.checkpoint import load_part, save_part
from sparse_control.stages.inputs import Inputs, check_references, open_inputs, source_metadata
from sparse_control.stages.ladder import (
    PREREGISTERED,
    Attempt,
    Convergence,
    Evidence,
    Rung,
    climb,
    reporting,
    starting_size,
)
from sparse_control.stages.sketches import LayerEstimators, layer_estimators

NAME = "validate"
FILES = (
    "per_model_action_validation.jsonl",
    "rank_convergence.jsonl",
    "corpus_convergence.jsonl",
    "seed_stability.jsonl",
)


def run_layer(*, corpus: Path, root: Path, settings: Settings, layer: int) -> Receipt:
    """Climb the ladder on one layer; keep its rows for `run` and write the factors that passed.

    Raises:
        InputError: stage A's files are missing or corrupt, the corpus is too small, or unfinished work in `root`
            was begun with something else.
    """
    if layer not in settings.iss.layers:
        raise ValueError(f"layer must be one of the window {settings.iss.layers}, got {layer}")
    inputs = open_inputs(corpus, root, settings)
    part = _part(inputs, layer)
    if (content := load_part(part, inputs.key)) is None:
        content = _validate_layer(inputs, load_calibration(inputs.paths, settings), settings, layer)
        save_part(part, inputs.key, content)
    return Receipt.of(root, [part, *(Path(root) / path for path in content["files"])])


def run(*, corpus: Path, root: Path, settings: Settings, keep_unfinished: bool = False) -> Receipt:
    """Climb the ladder on every layer that is still to do; write the attempts, the studies and the factors that passed.

    Args:
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: as `run_layer`.
    """
    inputs = open_inputs(corpus, root, settings)
    calibration = load_calibration(inputs.paths, settings)
    parts = []
    for layer in tqdm(settings.iss.layers, desc="validation", unit="layer"):
        content = load_part(_part(inputs, layer), inputs.key)
        if content is None:
            content = _validate_layer(inputs, calibration, settings, layer)
            save_part(_part(inputs, layer), inputs.key, content)
        parts.append(content)

    paths = inputs.paths
    written = [Path(root) / path for part in parts for path in part["files"]]
    for name in FILES:
        write_json_lines(paths.validation(name), [row for part in parts for row in part[name]])
        written.append(paths.validation(name))
    whitening = {str(layer): part["lam_rel"] for layer, part in zip(settings.iss.layers, parts, strict=True)}
    write_json(paths.validation("whitening.json"), {"model": paths.model, "lam_rel": whitening})
    save_stages_closure(root)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, [*written, paths.validation("whitening.json")])


def _part(inputs: Inputs, layer: int) -> Path:
    return inputs.paths.unfinished(NAME) / f"layer_{layer}.json"


def _validate_layer(inputs: Inputs, calibration: Calibration, settings: Settings, layer: int) -> dict[str, Any]:
    """Rows of every validation file, the whitening penalties, and the factors' paths relative to the root."""
    paths, sizes = inputs.paths, settings.estimator.corpus_sizes
    if settings.estimator.reference:
        check_references(inputs, sizes, [layer])
    corpus_ids = inputs.windows.first(sizes[-1]).input_ids
    estimators = layer_estimators(paths, settings.estimator, layer, inputs.lm, corpus_ids)
    study = LayerStudy(paths.model, estimators, calibration, settings, width=inputs.lm.width)
    start = starting_size(study.convergence, settings.validation)
    attempts = climb(settings.estimator, settings.validation, start, study.evaluate)
    written = []
    if not attempts[-1].failed:
        rung = attempts[-1].rung
        rule, seeds = (
            reporting(attempts[-1].evidence.iss_seed_deviation, settings.validation),
            settings.estimator.sketch_seeds,
        )
        for seed in seeds[:1] if rule == PREREGISTERED else seeds:
            preregistered = seed == seeds[0]
            written += save_factors(
                paths.factors(layer, None if preregistered else seed),
                study.factors(rung, rung.rank, seed),
                _metadata(inputs, study, attempts[-1], settings, seed),
            )
    for stale in sorted(paths.factors(layer).rglob("*"), reverse=True):  # of an earlier run that chose others
        if stale.is_file() and stale not in written:
            stale.unlink()
        elif stale.is_dir() and not any(stale.iterdir()):
            stale.rmdir()
    return {
        "per_model_action_validation.jsonl": [study.attempt_row(attempt) for attempt in attempts],
        "rank_convergence.jsonl": study.rank_rows,
        "seed_stability.jsonl": study.seed_rows,
        "corpus_convergence.jsonl": study.convergence_rows(start),
        "lam_rel": {"iss": study.lam_rel, "raw": study.lam_rel_raw},
        "files": [path.relative_to(paths.root).as_posix() for path in written],
    }


class LayerStudy:
    """Evaluates corpus sizes and rungs on one layer and keeps the rows of the rank and seed studies."""

    def __init__(
        self, model: str, estimators: LayerEstimators, calibration: Calibration, settings: Settings, *, width: int
    ) -> None:
        self.model, self.layer, self.width = model, estimators.layer, width
        self.estimators, self.calibration = estimators, calibration
        self._settings = settings
        self.rank_rows: list[dict] = []
        self.seed_rows: list[dict] = []
        self._scores: dict[Rung, list[float]] = {}
        self._partner_r: dict[Rung, int] = {}
        self._states = calibration.states[self.layer]
        transported = estimators.actions(self._states)  # {n: (N, d)}
        self.lam_rel_raw = calibration.labels.lam_rel(self._states)
        self.lam_rel = calibration.labels.lam_rel(transported[settings.estimator.corpus_sizes[-1]])
        self._direct = {size: rows[calibration.held_out] for size, rows in transported.items()}
        self.convergence = self._converging(transported)

    def _converging(self, transported: dict[int, Tensor]) -> list[Convergence]:
        """n against 2n of nested corpora (source document, 8.2)."""
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

    def convergence_rows(self, start: int) -> list[dict]:
        """Lines of corpus_convergence.jsonl."""
        thresholds = self._settings.validation
        return [
            {
                "model": self.model,
                "layer": self.layer,
                **asdict(size),
                "converged": size.holds(thresholds),
                "chosen": size.n == start,
            }
            for size in self.convergence
        ]

    def _metrics(self, z: Tensor) -> dict[str, float]:
        labels = self.calibration.labels
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
        """Agreement with direct actions and ISS at k, 2k and every sketch seed (source document, 7.3, 9)."""
        seeds = self._settings.estimator.sketch_seeds
        direct, held_out = self._direct[rung.corpus_size], self.calibration.activations(self.layer)
        factors = [self.factors(rung, rung.rank, seed) for seed in seeds]
        agreements = [action_agreement(direct, one.apply(held_out)) for one in factors]
        per_seed = [self._metrics(one.reduce(self._states)) for one in factors]
        scores = [values["ISS"] for values in per_seed]
        partner = self.factors(rung, min(2 * rung.rank, self.width - 1), seeds[0])
        partner_score = self._metrics(partner.reduce(self._states))["ISS"]

        where = {
            "model": self.model,
            "layer": self.layer,
            "k": rung.rank,
            "oversampling": rung.oversampling,
            "power_iterations": rung.power_iterations,
            "corpus_size": rung.corpus_size,
        }
        self.rank_rows += [
            where | {"r": one.r, "seed": seed, "iss": score}
            for one, seed, score in zip(factors, seeds, scores, strict=True)
        ]
        metrics = {name: [values[name] for values in per_seed] for name in TRANSPORTED_STATE_METRICS}
        metrics |= {
            "mean_cosine": [agreement.mean_cosine for agreement in agreements],
            "mean_relative_error": [agreement.mean_relative_error for agreement in agreements],
        }
        for metric, values in metrics.items():
            mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
            self.seed_rows.append(
                where | {"metric": metric, "seeds": list(seeds), "values": values, "mean": mean, "sd": deviation}
            )
        self._scores[rung], self._partner_r[rung] = scores, partner.r
        return Evidence(
            median_cosine=agreements[0].median_cosine,
            median_relative_error=agreements[0].median_relative_error,
            iss_rank_difference=abs(partner_score - scores[0]),
            iss_seed_deviation=float(np.std(scores, ddof=1)),
        )

    def attempt_row(self, attempt: Attempt) -> dict:
        """One line of per_model_action_validation.jsonl."""
        rung, evidence, passed = attempt.rung, attempt.evidence, not attempt.failed
        r = min(rung.rank + rung.oversampling, self.width)
        exact = "r = d: exact up to rounding" if r == self.width else None
        return {
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
            "iss": self._scores[rung][0],
            "partner_r": self._partner_r[rung],
            "passed": passed,
            "step": rung.step,
            "reason": exact if passed else "; ".join(attempt.failed),
            "chosen": passed,
        }


def _metadata(inputs: Inputs, study: LayerStudy, attempt: Attempt, settings: Settings, seed: int) -> dict:
    """The keys of the source document, section 15, then what else a reader must know."""
    rung, evidence, provenance = attempt.rung, attempt.evidence, inputs.lm.provenance
    return {
        "model": study.model,
        "model_revision": provenance["revision"],
        "tokenizer_revision": provenance["tokenizer_sha256"],
        "layer": study.layer,
        "hidden_dimension": study.width,
        "rank": rung.rank,
        "oversampling": rung.oversampling,
        "power_iterations": rung.power_iterations,
        "calibration_corpus_size": rung.corpus_size,
        "calibration_sequence_length": settings.corpus.sequence_length,
        "random_seed": seed,
        "validation_cosine_median": evidence.median_cosine,
        "validation_relative_error_median": evidence.median_relative_error,
        "iss_rank_difference": evidence.iss_rank_difference,
        "validated": True,
        "iss_seed_deviation": evidence.iss_seed_deviation,
        "ladder_step": rung.step,
        "reporting": reporting(evidence.iss_seed_deviation, settings.validation),
        "estimator": "qb",
        "deflation": None,
        "probe": settings.estimator.probe,
        "products": study.estimators.direct_action,
        **source_metadata(inputs, settings),
        "code_sha256": stages_code_sha256(),
    }
