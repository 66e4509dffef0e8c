"""What makes factors the frozen ones: the folders they are in, the files a freeze lists, and what their metadata says.

The one statement of it (source document, 6.4, 9, 14, 15), for all who ask:

    stage C         `frozen_layer` of each chosen attempt, `reported_factors` with the settings that are to be frozen,
                    each one's `check()`, and `frozen_files` to hash
    stage D         `check_hashes`, then `reported_factors` with the attempts and the model that was loaded, each one's
                    `check()` before the first state
    verify          the same, of the saved files
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file
from sparse_control.records.jacobian_iss.freeze import (
    PREREGISTERED,
    FreezeManifest,
    FrozenLayer,
    FrozenSettings,
    Reporting,
)
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.records.paths import CONFIGS, FACTOR_FILES, ISS_FILES, METADATA, VALIDATION, ModelPaths

AGAIN = "run stages A to C again (run official-iss)"
OF_ATTEMPT = {  # field of the metadata -> of the attempt that was chosen
    "validation_cosine_median": "median_cosine",
    "validation_relative_error_median": "median_relative_error",
    "iss_rank_difference": "iss_rank_difference",
    "iss_seed_deviation": "iss_seed_deviation",
    "ladder_step": "step",
    "products": "direct_action",
}
OF_MODEL = (
    "identity",
    "weights_sha256",
    "tokenizer_sha256",
)  # fields of the metadata and of a model's provenance alike


@dataclass(frozen=True, kw_only=True)
class ReportedFactors:
    """The factors of one reported sketch seed of a validated layer.

    Attributes:
        layer: they are of.
        seed: of the sketch.
        folder: that has `Q.pt`, `B.pt` and `metadata.json`.
        expected: field -> value that the metadata must have.
    """

    layer: int
    seed: int
    folder: Path
    expected: Mapping[str, Any]

    def check(self) -> None:
        """Hold the metadata against what is expected of it.

        Raises:
            InputError: it is missing or malformed, or names the field and both values of the first difference.
        """
        path = self.folder / METADATA
        found = read_json(path)
        if not isinstance(found, dict):
            raise InputError(f"{path}: expected an object; {AGAIN}")
        for field, value in self.expected.items():
            if found.get(field) != value:
                raise InputError(f"{path}: {field}: {found.get(field)!r:.80}, expected {value!r:.80}; {AGAIN}")


def reported_seeds(reporting: Reporting, sketch_seeds: Sequence[int]) -> list[int]:
    """The sketch seeds an official number is of: the first, which is preregistered, or all of them (9)."""
    return list(sketch_seeds[:1] if reporting == PREREGISTERED else sketch_seeds)


def frozen_layer(attempt: ActionValidation | None, reporting: Reporting, sketch_seeds: Sequence[int]) -> FrozenLayer:
    """What is frozen of the attempt that was chosen at a layer; unresolved where none was."""
    if attempt is None:
        return FrozenLayer(status="unresolved", step=None)
    return FrozenLayer(
        status="validated",
        k=attempt.k,
        oversampling=attempt.oversampling,
        power_iterations=attempt.power_iterations,
        corpus_size=attempt.corpus_size,
        step=attempt.step,
        reporting=reporting,
        seeds=reported_seeds(reporting, sketch_seeds),
    )


def factor_folders(paths: ModelPaths, layer: int, seeds: Sequence[int]) -> list[Path]:
    """A folder for each reported sketch seed of a layer, that of the preregistered one first."""
    return [paths.factors(layer), *(paths.factors(layer, seed) for seed in seeds[1:])]


def reported_factors(
    paths: ModelPaths,
    layers: Mapping[str, FrozenLayer],
    settings: FrozenSettings,
    corpus_sha256: str,
    *,
    attempts: Iterable[ActionValidation] = (),
    measured_on: Mapping[str, Any] | None = None,
) -> list[ReportedFactors]:
    """The factors of every validated layer and reported sketch seed, with what their metadata must say.

    Args:
        paths: of the model, or of its null.
        layers: as they are frozen, or are to be.
        settings: frozen ones; those of params.yaml have the same fields.
        corpus_sha256: of the corpus they are of.
        attempts: of the ladder; the chosen ones are held against the metadata, too.
        measured_on: provenance of the model that the factors must be of; None where it is not known.
    """
    chosen = {attempt.layer: attempt for attempt in attempts if attempt.chosen}
    of_model = {} if measured_on is None else {name: measured_on.get(name) for name in OF_MODEL}
    found = []
    for number, frozen in sorted(layers.items(), key=lambda item: int(item[0])):
        if frozen.status != "validated":
            continue
        layer = int(number)
        expected = {
            "model": paths.model,
            "layer": layer,
            "rank": frozen.k,
            "oversampling": frozen.oversampling,
            "power_iterations": frozen.power_iterations,
            "calibration_corpus_size": frozen.corpus_size,
            "calibration_sequence_length": settings.corpus.sequence_length,
            "corpus_sha256": corpus_sha256,
            "estimator": "qb",
            "probe": settings.estimator.probe,
            "dtype": settings.dtype,
            "null": settings.null,
            "facts": settings.facts and settings.facts.sha256,
            "reporting": frozen.reporting,
            "validated": True,
        } | of_model
        if layer in chosen:
            expected |= {field: getattr(chosen[layer], name) for field, name in OF_ATTEMPT.items()}
        for seed, folder in zip(frozen.seeds, factor_folders(paths, layer, frozen.seeds), strict=True):
            found.append(
                ReportedFactors(layer=layer, seed=seed, folder=folder, expected=expected | {"random_seed": seed})
            )
    return found


def frozen_files(paths: ModelPaths, layers: Mapping[str, FrozenLayer], *, reference: bool) -> list[Path]:
    """Every file whose hash a freeze holds: configs, what stage B validated with, and the reported factors.

    Args:
        paths: of the model, or of its null.
        layers: as they are frozen.
        reference: whether exact Jacobians were computed, and the candidates held against them.
    """
    fields = (*VALIDATION, "comparison") if reference else VALIDATION
    folders = [
        folder
        for number, frozen in layers.items()
        if frozen.status == "validated"
        for folder in factor_folders(paths, int(number), frozen.seeds)
    ]
    return [
        *(paths.config(name) for name in CONFIGS),
        *(paths.base / ISS_FILES[field] for field in fields),
        *(folder / name for folder in folders for name in FACTOR_FILES),
    ]


def freeze_configs(freeze: FreezeManifest) -> dict[str, dict[str, Any]]:
    """What the files of `configs/` say: the parts of a freeze that a person reads (14), by name of the file."""
    settings = freeze.settings.model_dump()
    layers = {number: layer.model_dump(exclude_unset=True) for number, layer in freeze.layers.items()}
    return {
        "corpus_config": settings["corpus"] | {"sha256": freeze.corpus_sha256},
        "estimator_config": settings["estimator"],
        "validation_thresholds": settings["validation"],
        "layer_windows": {"preregistered": list(map(int, freeze.layers)), "layers": layers},
    }


def check_hashes(paths: ModelPaths, freeze: FreezeManifest) -> None:
    """Hold every file that the freeze names against its hash, and the freeze against the files it must name.

    Raises:
        InputError: a file is not named that must be, is missing, or has changed since.
    """
    for path in frozen_files(paths, freeze.layers, reference=freeze.settings.estimator.reference):
        if path.relative_to(paths.base).as_posix() not in freeze.files:
            raise InputError(f"{paths.manifest}: files: lacks {path.relative_to(paths.base).as_posix()}; {AGAIN}")
    for name, frozen in freeze.files.items():
        path = paths.base / name
        if not path.is_file():
            raise InputError(
                f"{path}: is missing but frozen in {paths.manifest.name}; run `dvc pull`, or stages B and C again"
            )
        if (found := sha256_file(path)) != frozen:
            raise InputError(
                f"{path}: changed after the freeze (SHA-256 {found}, frozen {frozen}); restore it or freeze again"
            )
