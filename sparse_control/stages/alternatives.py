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
from sparse_control.files import write_json_lines
from sparse_control.jacobian.actions import ActionAgreement, action_agreement
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
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import Settings
from sparse_control.stages.a_reference import rank_agreement
from sparse_control.stages.calibration import Calibration, load_calibration
from sparse_control.stages.checkpoint import Key, load_part, save_part
from sparse_control.stages.inputs import Inputs, check_references, open_inputs, source_metadata
from sparse_control.stages.ladder import Evidence, failures
from sparse_control.stages.sketches import load_reference
from sparse_control.stages.states import TOKENS_PER_BATCH

NAME = "alternatives"
FILE = "alternatives.jsonl"
MODULE = "sparse_control.stages.alternatives"
ESTIMATORS = ("svd", "qb_deflated", "qb_activation", "output_sketch")
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
    inputs = open_inputs(corpus, root, settings)
    check_references(inputs, settings.estimator.corpus_sizes[-1:], settings.alternatives.layers)
    calibration = load_calibration(inputs.paths, settings)
    key = {**inputs.key, "code": code_sha256(MODULE)}
    parts = {layer: load_part(_part(inputs.paths, layer), key) for layer in settings.alternatives.layers}
    if pending := [layer for layer, part in parts.items() if part is None]:
        windows = inputs.windows.first(settings.estimator.corpus_sizes[-1])
        corpus_states = last_token_states(inputs.lm, windows.input_ids, pending)
        for layer in tqdm(pending, desc="alternatives", unit="layer"):
            parts[layer] = _validate_layer(inputs, calibration, settings, layer, corpus_states[layer], key)

    paths = inputs.paths
    kept = [Path(root) / path for part in parts.values() for path in part["files"]]
    _remove_stale(paths, {path.parent for path in kept})
    write_json_lines(paths.validation(FILE), [row for part in parts.values() for row in part["rows"]])
    save_closure(root, MODULE)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, [*kept, paths.validation(FILE)])


def last_token_states(lm: LanguageModel, input_ids: np.ndarray, layers: list[int]) -> dict[int, Tensor]:
    """States h^l at the last token of windows of equal length: (n, T) -> {layer: (n, d)}, float64."""
    size = max(1, TOKENS_PER_BATCH // input_ids.shape[1])
    batches = torch.as_tensor(input_ids, device=lm.device).split(size)
    streams = torch.cat([residual_stream(lm, batch)[:, layers].double().cpu() for batch in batches])
    return {layer: streams[:, index] for index, layer in enumerate(layers)}


def _part(paths: ModelPaths, layer: int) -> Path:
    return paths.unfinished(NAME) / f"layer_{layer}.json"


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


def _validate_layer(
    inputs: Inputs, calibration: Calibration, settings: Settings, layer: int, corpus_states: Tensor, key: Key
) -> dict[str, Any]:
    """Rows of one layer and its kept factors' paths relative to the root; both are saved as a part."""
    size = settings.estimator.corpus_sizes[-1]
    matrix = load_reference(inputs.paths.reference(layer), [size])[size]
    judge = LayerJudge(inputs.paths.model, layer, matrix, calibration, settings)
    rows, files = [], []
    best: dict[str, tuple[dict, Estimate]] = {}
    for candidate in _candidates(matrix, corpus_states, settings):
        largest = {seed: candidate.build(seed) for seed in candidate.seeds}
        for row in judge.rows(candidate, largest):
            rows.append(row)
            kept = best.get(candidate.estimator)
            if row["passed"] and (kept is None or row["k"] < kept[0]["k"]):
                best[candidate.estimator] = row, largest[candidate.seeds[0]].truncate(row["k"], candidate.oversampling)
    for row, estimate in best.values():
        row["chosen"] = True
        files += _save(inputs, settings, row, estimate, matrix.shape[0])
    part = {"rows": rows, "files": [path.relative_to(inputs.paths.root).as_posix() for path in files]}
    save_part(_part(inputs.paths, layer), key, part)
    return part


class LayerJudge:
    """Judges estimates of one layer against its exact reference."""

    def __init__(self, model: str, layer: int, matrix: Tensor, calibration: Calibration, settings: Settings) -> None:
        self._model, self._layer, self._matrix, self._settings = model, layer, matrix, settings
        self._width = matrix.shape[0]
        self._labels, self._states = calibration.labels, calibration.states[layer]
        self._held_out = calibration.activations(layer)
        self._centred = self._held_out - self._held_out.mean(dim=0)
        transported = self._states @ matrix.T
        self._lam_rel = self._labels.lam_rel(transported)
        self._exact = self._iss(transported)

    def _iss(self, z: Tensor) -> pd.DataFrame:
        return self._labels.iss(z, lam_rel=self._lam_rel, width=self._width)

    def rows(self, candidate: Candidate, largest: dict[Any, Estimate]) -> Iterator[dict]:
        """One line of alternatives.jsonl for every rank, ranks ascending."""
        tables: dict[tuple[Any, int], pd.DataFrame] = {}

        def table(seed: Any, estimate: Estimate) -> pd.DataFrame:
            at = seed, estimate.r
            if at not in tables:
                tables[at] = self._iss(estimate.reduce(self._states))
            return tables[at]

        first = candidate.seeds[0]
        for rank in self._settings.alternatives.ranks:
            nested = {seed: one.truncate(rank, candidate.oversampling) for seed, one in largest.items()}
            partner = largest[first].truncate(min(2 * rank, largest[first].rank), candidate.oversampling)
            scores = [float(table(seed, one).iss.mean()) for seed, one in nested.items()]
            difference = abs(float(table(first, partner).iss.mean()) - scores[0])
            deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
            yield self._row(candidate, nested[first], table(first, nested[first]), difference, deviation)

    def _row(
        self, candidate: Candidate, estimate: Estimate, table: pd.DataFrame, difference: float, deviation: float
    ) -> dict:
        has_action = not isinstance(estimate, OutputSketch)
        raw = self._agreement(estimate, self._held_out) if has_action else None
        centred = self._agreement(estimate, self._centred) if has_action else None
        failed = failures(
            Evidence(
                median_cosine=raw.median_cosine if raw else math.nan,
                median_relative_error=raw.median_relative_error if raw else math.nan,
                iss_rank_difference=difference,
                iss_seed_deviation=deviation,
            ),
            self._settings.validation,
        )
        if not has_action:
            failed = [NO_ACTION, *failed[2:]]  # in the place of two comparisons with NaN
        exact = "r = d: exact up to rounding" if estimate.r == self._width else None
        score = float(table.iss.mean())
        return {
            "model": self._model,
            "layer": self._layer,
            "estimator": candidate.estimator,
            "probe": candidate.probe,
            "power_iterations": candidate.power_iterations,
            "oversampling": candidate.oversampling,
            "seed": candidate.seeds[0],
            "k": estimate.rank,
            "r": estimate.r,
            "corpus_size": self._settings.estimator.corpus_sizes[-1],
            "E_F": self._frobenius_error(estimate) if has_action else None,
            "E_vec": raw.mean_relative_error if raw else None,
            "C_vec": raw.mean_cosine if raw else None,
            "E_vec_centred": centred.mean_relative_error if centred else None,
            "C_vec_centred": centred.mean_cosine if centred else None,
            "median_cosine": raw.median_cosine if raw else None,
            "median_relative_error": raw.median_relative_error if raw else None,
            "E_ISS": _finite(abs(float(self._exact.iss.mean()) - score)),
            "rho_fact": rank_agreement(self._exact.iss.to_numpy(), table.iss.to_numpy()),
            "iss": _finite(score),
            "iss_rank_difference": _finite(difference),
            "iss_seed_deviation": _finite(deviation),
            "passed": not failed,
            "reason": "; ".join(failed) if failed else exact,
            "chosen": False,
        }

    def _agreement(self, estimate: Estimate, activations: Tensor) -> ActionAgreement:
        return action_agreement(activations @ self._matrix.T, estimate.apply(activations))

    def _frobenius_error(self, estimate: Estimate) -> float:
        """`E_F = ||J - J_hat||_F / ||J||_F`, J_hat by its action on the unit vectors."""
        columns = estimate.apply(torch.eye(self._width, dtype=torch.float64)).T
        return float(torch.linalg.norm(self._matrix - columns) / torch.linalg.norm(self._matrix))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _save(inputs: Inputs, settings: Settings, row: dict, estimate: Estimate, width: int) -> list[Path]:
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
        "calibration_sequence_length": settings.corpus.sequence_length,
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
        **source_metadata(inputs, settings),
        "code_sha256": code_sha256(MODULE),
    }
    factors = estimate.factors if deflated else estimate
    return save_factors(inputs.paths.alternative(row["estimator"], row["layer"]), factors, metadata)
