"""Stage B: choose every layer's estimator by one fixed rule on the calibration set (source document, 7 to 9, 12)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sparse_control.corpus import load_corpus
from sparse_control.files import write_json, write_json_lines
from sparse_control.jacobian.actions import action_agreement
from sparse_control.jacobian.qb import Factors
from sparse_control.jacobian.store import save_factors
from sparse_control.models import load_model
from sparse_control.receipt import Receipt
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration, load_calibration
from sparse_control.stages.ladder import Attempt, Evidence, Rung, climb
from sparse_control.stages.sketches import LayerEstimators, layer_estimators, load_reference
from sparse_control.stages.tree import Tree, stages_code_sha256


def run(*, corpus: Path, root: Path, settings: Settings) -> Receipt:
    """Climb the ladder on every layer; write the attempts, the studies and the factors that passed.

    Raises:
        InputError: stage A's files are missing or corrupt, or the corpus is too small.
    """
    torch.set_num_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    settings.check_width(lm.width, lm.n_layers)
    windows = load_corpus(corpus)
    tree = Tree(root, lm.name)
    calibration = load_calibration(tree, settings)

    studies = []
    for layer in tqdm(settings.iss.layers, desc="validation", unit="layer"):
        corpus_ids = windows.first(settings.estimator.corpus_sizes[-1]).input_ids
        estimators = layer_estimators(tree, settings.estimator, layer, lm, corpus_ids)
        studies.append(LayerStudy(tree.model, estimators, calibration, settings, width=lm.width))

    written = []
    rows: dict[str, list[dict]] = {"action": [], "rank": [], "seed": []}
    for study in studies:
        attempts = climb(settings.estimator, settings.validation, study.evaluate)
        rows["action"] += [study.attempt_row(attempt) for attempt in attempts]
        rows["rank"] += study.rank_rows
        rows["seed"] += study.seed_rows
        if not attempts[-1].failed:
            written += save_factors(
                tree.factors(study.layer),
                study.chosen(attempts[-1].rung),
                _metadata(lm.provenance, windows.sha256, study, attempts[-1], settings),
            )
    convergence = [row for study in studies for row in _corpus_convergence(tree, study, settings)]
    whitening = {str(study.layer): {"iss": study.lam_rel, "raw": study.lam_rel_raw} for study in studies}
    for name, lines in (
        ("per_model_action_validation.jsonl", rows["action"]),
        ("rank_convergence.jsonl", rows["rank"]),
        ("seed_stability.jsonl", rows["seed"]),
        ("corpus_convergence.jsonl", convergence),
    ):
        write_json_lines(tree.validation(name), lines)
        written.append(tree.validation(name))
    write_json(tree.validation("whitening.json"), {"model": tree.model, "lam_rel": whitening})
    return Receipt.of(root, [*written, tree.validation("whitening.json")])


class LayerStudy:
    """Evaluates rungs on one layer and keeps the rows of the rank and seed studies."""

    def __init__(
        self, model: str, estimators: LayerEstimators, calibration: Calibration, settings: Settings, *, width: int
    ) -> None:
        self.model, self.layer, self.width = model, estimators.layer, width
        self.estimators, self.calibration = estimators, calibration
        self._settings = settings
        self.rank_rows: list[dict] = []
        self.seed_rows: list[dict] = []
        self._iss_of_rung: dict[Rung, float] = {}
        self._partner_r: dict[Rung, int] = {}
        states = calibration.states[self.layer]
        size = settings.estimator.corpus_sizes[-1]
        self.lam_rel_raw = calibration.labels.lam_rel(states)
        self.lam_rel = calibration.labels.lam_rel(estimators.actions(size, states))
        self._direct = {
            size: estimators.actions(size, calibration.activations(self.layer))
            for size in settings.estimator.corpus_sizes
        }

    def _factors(self, rung: Rung, rank: int, seed: int) -> Factors:
        return self.estimators.factors(
            rank=rank,
            oversampling=rung.oversampling,
            corpus_size=rung.corpus_size,
            power_iterations=rung.power_iterations,
            seed=seed,
        )

    def _iss(self, factors: Factors) -> float:
        reduced = factors.reduce(self.calibration.states[self.layer])
        return float(self.calibration.labels.iss(reduced, lam_rel=self.lam_rel, width=self.width).iss.mean())

    def chosen(self, rung: Rung) -> Factors:
        """The rung's factors at the preregistered seed."""
        return self._factors(rung, rung.rank, self._settings.estimator.sketch_seeds[0])

    def evaluate(self, rung: Rung) -> Evidence:
        """Agreement with direct actions and ISS at k, 2k and every sketch seed (source document, 7.3, 9)."""
        seeds = self._settings.estimator.sketch_seeds
        direct, held_out = self._direct[rung.corpus_size], self.calibration.activations(self.layer)
        factors = [self._factors(rung, rung.rank, seed) for seed in seeds]
        agreements = [action_agreement(direct, one.apply(held_out)) for one in factors]
        scores = [self._iss(one) for one in factors]
        partner = self._factors(rung, min(2 * rung.rank, self.width - 1), seeds[0])
        partner_score = self._iss(partner)

        where = {
            "model": self.model,
            "layer": self.layer,
            "k": rung.rank,
            "oversampling": rung.oversampling,
            "power_iterations": rung.power_iterations,
        }
        self.rank_rows += [
            where | {"r": one.r, "seed": seed, "iss": score} for one, seed, score in zip(factors, seeds, scores)
        ]
        metrics = {
            "ISS": scores,
            "mean_cosine": [agreement.mean_cosine for agreement in agreements],
            "mean_relative_error": [agreement.mean_relative_error for agreement in agreements],
        }
        for metric, values in metrics.items():
            mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
            self.seed_rows.append(
                where | {"metric": metric, "seeds": list(seeds), "values": values, "mean": mean, "sd": deviation}
            )
        self._iss_of_rung[rung], self._partner_r[rung] = scores[0], partner.r
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
            "iss": self._iss_of_rung[rung],
            "partner_r": self._partner_r[rung],
            "passed": passed,
            "step": rung.step,
            "reason": exact if passed else "; ".join(attempt.failed),
            "chosen": passed,
        }


def _corpus_convergence(tree: Tree, study: LayerStudy, settings: Settings) -> list[dict]:
    """n against 2n on the exact references (source document, 8.2); nothing where there are none."""
    if not settings.estimator.reference:
        return []
    sizes = sorted({*settings.estimator.snapshots, *settings.estimator.corpus_sizes})
    matrices = load_reference(tree.reference(study.layer), sizes)
    held_out, states = study.calibration.activations(study.layer), study.calibration.states[study.layer]

    def score(matrix: Tensor) -> float:
        table = study.calibration.labels.iss(states @ matrix.T, lam_rel=study.lam_rel, width=study.width)
        return float(table.iss.mean())

    rows = []
    for size in sizes:
        if 2 * size in matrices:
            smaller, larger = matrices[size], matrices[2 * size]
            agreement = action_agreement(held_out @ larger.T, held_out @ smaller.T)
            rows.append(
                {
                    "model": study.model,
                    "layer": study.layer,
                    "n": size,
                    "cosine_to_2n": agreement.median_cosine,
                    "iss_difference": abs(score(smaller) - score(larger)),
                }
            )
    return rows


def _metadata(provenance: dict, corpus_sha256: str, study: LayerStudy, attempt: Attempt, settings: Settings) -> dict:
    """The keys of the source document, section 15, then what else a reader must know."""
    rung, evidence = attempt.rung, attempt.evidence
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
        "random_seed": settings.estimator.sketch_seeds[0],
        "validation_cosine_median": evidence.median_cosine,
        "validation_relative_error_median": evidence.median_relative_error,
        "iss_rank_difference": evidence.iss_rank_difference,
        "validated": True,
        "iss_seed_deviation": evidence.iss_seed_deviation,
        "ladder_step": rung.step,
        "estimator": "qb",
        "probe": settings.estimator.probe,
        "products": study.estimators.direct_action,
        "position": "final",
        "target_layer": "last block, before the final norm",
        "dtype": provenance["dtype"],
        "bos": provenance["bos"],
        "weights_sha256": provenance["weights_sha256"],
        "corpus_sha256": corpus_sha256,
        "versions": provenance["versions"],
        "code_sha256": stages_code_sha256(),
    }
