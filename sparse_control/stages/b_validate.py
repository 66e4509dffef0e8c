"""Stage B: choose every layer's estimator by one fixed rule on the calibration set (source document, 7 to 9, 12)."""

from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparse_control.files import sha256_file, write_json, write_json_lines
from sparse_control.jacobian.store import save_factors
from sparse_control.receipt import Receipt
from sparse_control.records.base import validate
from sparse_control.records.factors import reported_seeds
from sparse_control.records.jacobian_iss import TYPES
from sparse_control.records.jacobian_iss.freeze import Whitening
from sparse_control.records.paths import save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration, load_calibration
from sparse_control.stages.checkpoint import Part
from sparse_control.stages.inputs import Inputs, check_references, open_inputs, source_metadata
from sparse_control.stages.ladder import Attempt, climb, reporting, starting_size
from sparse_control.stages.layer_study import LayerStudy
from sparse_control.stages.sketches import layer_estimators

NAME = "validate"
ROWS = (
    "actions",
    "rank_convergence",
    "corpus_convergence",
    "seed_stability",
)  # files of a line an attempt, size or seed


def run(*, corpus: Path, root: Path, settings: Settings, keep_unfinished: bool = False) -> Receipt:
    """Climb the ladder on every layer that is still to do; write the attempts, the studies and the factors that passed.

    Args:
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: as `run_layer`.
    """
    inputs = open_inputs(corpus, root, settings)
    paths, layers = inputs.paths, inputs.settings.iss.layers
    parts = [_validated_layer(inputs, layer) for layer in tqdm(layers, desc="validation", unit="layer")]
    written = [path for _, files in parts for path in files]
    for name in ROWS:
        write_json_lines(paths.iss_file(name), [row for content, _ in parts for row in content[name]])
    whitening = {str(layer): content["lam_rel"] for layer, (content, _) in zip(layers, parts, strict=True)}
    write_json(paths.iss_file("whitening"), {"model": paths.model, "lam_rel": whitening})
    save_stages_closure(root)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, [*written, *map(paths.iss_file, (*ROWS, "whitening"))])


def run_layer(*, corpus: Path, root: Path, settings: Settings, layer: int) -> Receipt:
    """Climb the ladder on one layer; keep its rows for `run` and write the factors that passed.

    Raises:
        InputError: stage A's files are missing, corrupt or made with something else, the corpus is too small or another
            one than the settings ask for, or unfinished work in `root` is damaged or was begun with something else.
    """
    inputs = open_inputs(corpus, root, settings)
    if layer not in inputs.settings.iss.layers:
        raise ValueError(f"layer must be one of the window {inputs.settings.iss.layers}, got {layer}")
    _, files = _validated_layer(inputs, layer)
    return Receipt.of(root, [_part(inputs, layer).path, *files])


def _part(inputs: Inputs, layer: int) -> Part:
    identity = {}
    if inputs.settings.estimator.products == "exact_reference":
        check_references(inputs, inputs.settings.estimator.corpus_sizes, [layer])
        identity["reference"] = sha256_file(inputs.paths.reference(layer))
    return inputs.part(NAME, f"layer_{layer}", **identity)


def _validated_layer(inputs: Inputs, layer: int) -> tuple[dict[str, Any], list[Path]]:
    """Rows of every validation file and the whitening penalties of one layer, and the paths of its factors."""
    part = _part(inputs, layer)
    if kept := part.load(lambda content: _check_part(content, layer)):
        return kept
    calibration = load_calibration(inputs.paths, inputs.settings, [layer], inputs.lm.width)
    content, files = _validate_layer(inputs, calibration, layer)
    part.save(content, files)
    return content, files


def _check_part(content: dict[str, Any], layer: int) -> None:
    """
    Raises:
        ValueError: it is not what stage B says of one layer.
    """
    validate(Whitening, content["lam_rel"], "lam_rel")
    for name in ROWS:
        for row in content[name]:
            if validate(TYPES[name], row, name).layer != layer:
                raise ValueError(f"{name}: layer: is {row['layer']}, expected {layer}")


def _validate_layer(inputs: Inputs, calibration: Calibration, layer: int) -> tuple[dict[str, Any], list[Path]]:
    settings = inputs.settings
    estimators = layer_estimators(inputs.paths, settings.estimator, layer, inputs.lm, inputs.corpus_ids)
    study = LayerStudy(inputs.paths.model, estimators, calibration, settings, width=inputs.lm.width)
    start = starting_size(study.convergence, settings.validation)  # 8.2
    attempts = climb(settings.estimator, settings.validation, start, study.evaluate)  # 7.3, 9, 12.1
    written = [] if attempts[-1].failed else _save_factors(inputs, study, attempts[-1])
    _remove_stale(inputs.paths.factors(layer), written)
    content = {
        "actions": [study.attempt_row(attempt) for attempt in attempts],
        "rank_convergence": study.rank_rows,
        "seed_stability": study.seed_rows,
        "corpus_convergence": study.convergence_rows(start),
        "lam_rel": {"iss": study.lam_rel, "raw": study.lam_rel_raw},
    }
    return content, written


def _save_factors(inputs: Inputs, study: LayerStudy, attempt: Attempt) -> list[Path]:
    """The factors of every sketch seed that is reported (9), the preregistered one in the layer's own folder."""
    settings, written = inputs.settings, []
    rule = reporting(attempt.evidence.iss_seed_deviation, settings.validation)
    for index, seed in enumerate(reported_seeds(rule, settings.estimator.sketch_seeds)):
        factors = study.factors(attempt.rung, attempt.rung.rank, seed)
        folder = inputs.paths.factors(study.layer, seed if index else None)
        written += save_factors(folder, factors, _metadata(inputs, study, attempt, seed, rule))
    return written


def _remove_stale(folder: Path, written: list[Path]) -> None:
    """Remove factors of an earlier run that chose others."""
    for stale in sorted(folder.rglob("*"), reverse=True):
        if stale.is_file() and stale not in written:
            stale.unlink()
        elif stale.is_dir() and not any(stale.iterdir()):
            stale.rmdir()


def _metadata(inputs: Inputs, study: LayerStudy, attempt: Attempt, seed: int, rule: str) -> dict[str, Any]:
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
        "calibration_sequence_length": inputs.settings.corpus.sequence_length,
        "random_seed": seed,
        "validation_cosine_median": evidence.median_cosine,
        "validation_relative_error_median": evidence.median_relative_error,
        "iss_rank_difference": evidence.iss_rank_difference,
        "validated": True,
        "iss_seed_deviation": evidence.iss_seed_deviation,
        "ladder_step": rung.step,
        "reporting": rule,
        "estimator": "qb",
        "deflation": None,
        "probe": inputs.settings.estimator.probe,
        "products": study.estimators.direct_action,
        **source_metadata(inputs),
        "code_sha256": stages_code_sha256(),
    }
