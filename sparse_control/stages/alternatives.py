"""Named alternatives beside the official estimator, judged by the same rule and kept apart (source document, 12.2).

They read what stage A left and write `validation/alternatives.jsonl` and `alternatives/`; nothing official is touched.
Activation-shaped probes come from corpus prompts and every judgement from calibration prompts, so no estimator is
judged on prompts like those it was made from.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from sparse_control.code_hash import code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.files import sha256_file, sha256_json, write_json_lines
from sparse_control.jacobian.alternatives import (
    DeflatedFactors,
    Estimate,
    OutputSketch,
    activation_factors,
    deflated_factors,
    output_sketch,
    svd_factors,
)
from sparse_control.jacobian.operator import DenseOperator
from sparse_control.jacobian.store import save_factors
from sparse_control.models import LanguageModel
from sparse_control.models.stream import residual_stream
from sparse_control.receipt import Receipt
from sparse_control.records.base import validate
from sparse_control.records.jacobian_iss.validation import AlternativeAttempt
from sparse_control.records.paths import ALTERNATIVES, ModelPaths
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration, load_calibration
from sparse_control.stages.checkpoint import Part
from sparse_control.stages.comparison import Reference, rank_agreement
from sparse_control.stages.inputs import Inputs, check_references, open_inputs, source_metadata
from sparse_control.stages.ladder import Evidence, failures
from sparse_control.stages.layer_study import undefined_as_null
from sparse_control.stages.sketches import load_reference
from sparse_control.stages.states import TOKENS_PER_BATCH

NAME = "alternatives"
ESTIMATORS = ("svd", "qb_deflated", "qb_activation", "output_sketch")
ACTION_ERRORS = ("E_vec", "C_vec", "E_vec_centred", "C_vec_centred")
NO_ACTION = "a sketch of the output has no action in the full width"
PROBE_SOURCES = {
    "svd": None,
    "qb_deflated": "isotropic",
    "qb_activation": "residual states at the last token of the corpus windows",
    "output_sketch": "isotropic",
}


def run(*, corpus: Path, root: Path, settings: Settings, keep_unfinished: bool = False) -> Receipt:
    """Judge every alternative at every rank; write the rows, and the factors of the smallest rank that passed.

    Args:
        corpus: a built corpus folder.
        root: results root with stage A's references and calibration states.
        settings: one preset.
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: settings without references, references that are missing or of another model or corpus, ranks or
            layers that do not fit the model, or unfinished work in `root` that was begun with something else.
    """
    if not settings.estimator.reference:
        raise InputError(
            "params.yaml: estimator.reference: alternatives are judged against exact references, got false; "
            "set it to true and run stage A (run official-iss)"
        )
    inputs = open_inputs(corpus, root, settings, ("iss", "estimator", "alternatives"))
    settings, paths, file = inputs.settings, inputs.paths, inputs.paths.iss_file("alternatives")
    layers = settings.alternatives.layers
    check_references(inputs, settings.estimator.corpus_sizes[-1:], layers)
    kept = {layer: _part(inputs, layer).load(lambda content: _check_part(content, layer)) for layer in layers}
    if pending := [layer for layer, part in kept.items() if part is None]:
        calibration = load_calibration(paths, settings, layers, inputs.lm.width)
        corpus_states = last_token_states(inputs.lm, inputs.corpus_ids, pending)
        for layer in tqdm(pending, desc="alternatives", unit="layer"):
            rows, files = _judge_layer(inputs, calibration, layer, corpus_states[layer])
            _part(inputs, layer).save({"rows": rows}, files)
            kept[layer] = {"rows": rows}, files

    factors = [path for _, files in kept.values() for path in files]
    _remove_stale(paths, {path.parent for path in factors})
    write_json_lines(file, [row for content, _ in kept.values() for row in content["rows"]])
    save_closure(root, ALTERNATIVES)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, [*factors, file])


def last_token_states(lm: LanguageModel, input_ids: np.ndarray, layers: list[int]) -> dict[int, Tensor]:
    """States h^l at the last token of windows of equal length: (n, T) -> {layer: (n, d)}, float64."""
    size = max(1, TOKENS_PER_BATCH // input_ids.shape[1])
    batches = torch.as_tensor(input_ids, device=lm.device).split(size)
    streams = torch.cat([residual_stream(lm, batch)[:, layers].double().cpu() for batch in batches])
    return {layer: streams[:, index] for index, layer in enumerate(layers)}


def _part(inputs: Inputs, layer: int) -> Part:
    identity = {
        "code": code_sha256(ALTERNATIVES),
        "reference": sha256_file(inputs.paths.reference(layer)),
        "alternatives": sha256_json(inputs.settings.alternatives.model_dump()),
    }
    return inputs.part(NAME, f"layer_{layer}", **identity)


def _check_part(content: dict[str, Any], layer: int) -> None:
    """
    Raises:
        ValueError: it is not what is said of the alternatives of one layer.
    """
    for row in content["rows"]:
        if validate(AlternativeAttempt, row, "rows").layer != layer:
            raise ValueError(f"layer: is {row['layer']}, expected {layer}")


def _remove_stale(paths: ModelPaths, kept: set[Path]) -> None:
    """Remove factors that an earlier run chose and this one did not."""
    for estimator in ESTIMATORS:
        for folder in paths.alternative(estimator, 0).parent.glob("*"):
            if folder.is_dir() and folder not in kept:
                shutil.rmtree(folder)


# --- one layer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One alternative with everything but its rank settled.

    Attributes:
        estimator: its name.
        probe, power_iterations: None where it has none.
        oversampling: p.
        seeds: sketch seeds, the preregistered one first; (None,) where nothing is drawn.
        build: seed -> the estimate at its largest rank, which holds every smaller one.
    """

    estimator: str
    probe: str | None
    power_iterations: int | None
    oversampling: int
    seeds: tuple[int | None, ...]
    build: Callable[[Any], Estimate]


def _candidates(matrix: Tensor, corpus_states: Tensor, settings: Settings) -> Iterator[Candidate]:
    width, op = matrix.shape[0], DenseOperator(matrix)
    rank = min(2 * max(settings.alternatives.ranks), width - 1)  # the comparison partner of the largest
    oversampling, probe = settings.estimator.oversampling[0], settings.estimator.probe
    seeds = tuple(settings.estimator.sketch_seeds)

    yield Candidate("svd", None, None, oversampling, (None,), lambda _: svd_factors(matrix, rank, oversampling))
    for power in settings.alternatives.power_iterations:
        yield Candidate(
            "qb_deflated", probe, power, oversampling, seeds,
            lambda seed, power=power: deflated_factors(op, rank, oversampling, power, seed, probe),
        )  # fmt: skip
    yield Candidate(
        "qb_activation", probe, 0, oversampling, seeds,
        lambda seed: activation_factors(op, corpus_states, rank, oversampling, 0, seed, probe),
    )  # fmt: skip
    largest = min(2 * max(settings.alternatives.ranks), width)
    yield Candidate("output_sketch", "gaussian", None, 0, seeds, lambda seed: output_sketch(op, largest, seed))


def _judge_layer(
    inputs: Inputs, calibration: Calibration, layer: int, corpus_states: Tensor
) -> tuple[list[dict[str, Any]], list[Path]]:
    """Rows of one layer, and the paths of the factors that are kept."""
    settings, size = inputs.settings, inputs.settings.estimator.corpus_sizes[-1]
    reference = Reference(layer, load_reference(inputs.paths.reference(layer), [size])[size], calibration)
    judge = LayerJudge(inputs.paths.model, reference, settings)
    rows, files = [], []
    best: dict[str, tuple[dict, Estimate]] = {}
    for candidate in _candidates(reference.matrix, corpus_states, settings):
        largest = {seed: candidate.build(seed) for seed in candidate.seeds}
        for row in judge.rows(candidate, largest):
            rows.append(row)
            kept = best.get(candidate.estimator)
            if row["passed"] and (kept is None or row["k"] < kept[0]["k"]):
                best[candidate.estimator] = row, largest[candidate.seeds[0]].truncate(row["k"], candidate.oversampling)
    for row, estimate in best.values():
        row["chosen"] = True
        files += _save(inputs, row, estimate, inputs.lm.width)
    return rows, files


class LayerJudge:
    """Judges estimates of one layer against its exact reference, by the rule of the official estimator."""

    def __init__(self, model: str, reference: Reference, settings: Settings) -> None:
        self._model, self._reference, self._settings = model, reference, settings

    def rows(self, candidate: Candidate, largest: dict[Any, Estimate]) -> Iterator[dict[str, Any]]:
        """One line of alternatives.jsonl for every rank, ranks ascending."""
        scores_of: dict[tuple[Any, int], pd.Series] = {}

        def scores(seed: Any, estimate: Estimate) -> pd.Series:
            at = seed, estimate.r
            if at not in scores_of:
                scores_of[at] = self._reference.iss(estimate.reduce(self._reference.states))
            return scores_of[at]

        first = candidate.seeds[0]
        for rank in self._settings.alternatives.ranks:
            nested = {seed: one.truncate(rank, candidate.oversampling) for seed, one in largest.items()}
            partner = largest[first].truncate(min(2 * rank, largest[first].rank), candidate.oversampling)
            means = [float(scores(seed, one).mean()) for seed, one in nested.items()]
            difference = abs(float(scores(first, partner).mean()) - means[0])
            deviation = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
            yield self._row(candidate, nested[first], scores(first, nested[first]), difference, deviation)

    def _row(
        self, candidate: Candidate, estimate: Estimate, scores: pd.Series, difference: float, deviation: float
    ) -> dict[str, Any]:
        reference, has_action = self._reference, not isinstance(estimate, OutputSketch)
        agreement = reference.agreement(estimate.apply) if has_action else None
        evidence = Evidence(
            median_cosine=agreement.median_cosine if agreement else math.nan,
            median_relative_error=agreement.median_relative_error if agreement else math.nan,
            iss_rank_difference=difference,
            iss_seed_deviation=deviation,
        )
        failed = failures(evidence, self._settings.validation)
        if not has_action:
            failed = [NO_ACTION, *failed[2:]]  # instead of two comparisons with NaN
        exact = "r = d: exact up to rounding" if estimate.r == reference.matrix.shape[0] else None
        row = {
            "model": self._model,
            "layer": reference.layer,
            "estimator": candidate.estimator,
            "probe": candidate.probe,
            "power_iterations": candidate.power_iterations,
            "oversampling": candidate.oversampling,
            "seed": candidate.seeds[0],
            "k": estimate.rank,
            "r": estimate.r,
            "corpus_size": self._settings.estimator.corpus_sizes[-1],
            "E_F": self._frobenius_error(estimate) if has_action else None,
            **(reference.action_errors(estimate.apply) if has_action else dict.fromkeys(ACTION_ERRORS)),
            "median_cosine": evidence.median_cosine,
            "median_relative_error": evidence.median_relative_error,
            "E_ISS": abs(float(reference.exact.mean()) - float(scores.mean())),
            "rho_fact": rank_agreement(reference.exact.to_numpy(), scores.to_numpy()),
            "iss": float(scores.mean()),
            "iss_rank_difference": difference,
            "iss_seed_deviation": deviation,
            "passed": not failed,
            "reason": "; ".join(failed) if failed else exact,
            "chosen": False,
        }
        return undefined_as_null(row)

    def _frobenius_error(self, estimate: Estimate) -> float:
        """`E_F = ||J - J_hat||_F / ||J||_F`, J_hat by its action on the unit vectors."""
        matrix = self._reference.matrix
        columns = estimate.apply(torch.eye(matrix.shape[0], dtype=torch.float64)).T
        return float(torch.linalg.norm(matrix - columns) / torch.linalg.norm(matrix))


def _save(inputs: Inputs, row: dict[str, Any], estimate: Estimate, width: int) -> list[Path]:
    """The keys of the source document, section 15, then what else a reader must know."""
    provenance = inputs.lm.provenance
    deflated = isinstance(estimate, DeflatedFactors)
    metadata = {
        "model": row["model"],
        "model_revision": provenance["revision"],
        "tokenizer_revision": provenance["tokenizer_sha256"],
        "layer": row["layer"],
        "hidden_dimension": width,
        "rank": row["k"],
        "oversampling": row["oversampling"],
        "power_iterations": row["power_iterations"],
        "calibration_corpus_size": row["corpus_size"],
        "calibration_sequence_length": inputs.settings.corpus.sequence_length,
        "random_seed": row["seed"],
        "validation_cosine_median": row["median_cosine"],
        "validation_relative_error_median": row["median_relative_error"],
        "iss_rank_difference": row["iss_rank_difference"],
        "validated": True,
        "iss_seed_deviation": row["iss_seed_deviation"],
        "official": False,
        "estimator": row["estimator"],
        "deflation": "J_hat = a I + Q B, a the shift" if deflated else None,
        "shift": estimate.shift if deflated else None,
        "probe": row["probe"],
        "probe_source": PROBE_SOURCES[row["estimator"]],
        "products": "exact_reference",
        **source_metadata(inputs),
        "code_sha256": code_sha256(ALTERNATIVES),
    }
    factors = estimate.factors if deflated else estimate
    return save_factors(inputs.paths.alternative(row["estimator"], row["layer"]), factors, metadata)
