"""Stage C: write down every estimator choice with the hash of every file it rests on (source document, 13.3, 14)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import sha256_file, write_json, write_text
from sparse_control.jacobian.qb import Factors
from sparse_control.jacobian.store import load_factors
from sparse_control.models.identity import model_identity
from sparse_control.receipt import Receipt
from sparse_control.records.base import read_record
from sparse_control.records.factors import check_hashes, freeze_configs, frozen_files, reported_factors
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.records.jacobian_iss.freeze import FreezeManifest, content_sha256
from sparse_control.records.paths import CONFIGS, ModelPaths, save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.resolve import NOT_OFFICIAL, paths_of, resolved
from sparse_control.stages.validated import check_validated, chosen_layer

AGAIN = "run stages A to C again (run official-iss)"


def run(*, corpus: Path, root: Path, settings: Settings) -> Receipt:
    """Write `configs/` and the freeze manifest; after this nothing about the estimator may change.

    Raises:
        InputError: stage B's files are missing, or were made with other settings or another corpus; or the corpus was
            built with other settings.
    """
    settings, windows = resolved(settings), load_corpus(corpus)
    windows.check(settings.corpus)
    paths = paths_of(root, settings)
    manifest = choices(paths, settings, windows.sha256) | {"code_sha256": stages_code_sha256(), "files": {}}
    freeze = FreezeManifest.model_validate(manifest)
    load_reported_factors(paths, freeze)
    for name, content in freeze_configs(freeze).items():
        write_text(paths.config(name), yaml.safe_dump(content, sort_keys=False))
    files = frozen_files(paths, freeze.layers, reference=settings.estimator.reference)
    manifest["files"] = {path.relative_to(paths.base).as_posix(): sha256_file(path) for path in files}
    write_json(paths.manifest, manifest | {"content_sha256": content_sha256(manifest)})
    save_stages_closure(root)
    return Receipt.of(root, [*map(paths.config, CONFIGS), paths.manifest])


def choices(paths: ModelPaths, settings: Settings, corpus_sha256: str) -> dict[str, Any]:
    """What the model, the settings and stage B's files leave to be frozen: the manifest without code and files.

    Raises:
        InputError: as `check_validated`.
    """
    check_validated(paths, settings, corpus_sha256)
    actions = read_iss_file(paths, "actions")
    layers = {str(layer): chosen_layer(actions, layer, settings) for layer in settings.iss.layers}
    penalties = read_iss_file(paths, "whitening").lam_rel
    return {
        "schema": "freeze/1",
        "model": paths.model,
        "identity": model_identity(settings.model, settings.dtype).sha256,
        "settings": settings.model_dump(),
        "corpus_sha256": corpus_sha256,
        "calibration_states_sha256": sha256_file(paths.states("calibration")),
        "layers": {layer: frozen.model_dump(exclude_unset=True) for layer, frozen in layers.items()},
        "lam_rel": {layer: penalty.model_dump() for layer, penalty in penalties.items()},
    }


def load_reported_factors(
    paths: ModelPaths, freeze: FreezeManifest, measured_on: Mapping[str, Any] | None = None
) -> dict[int, list[Factors]]:
    """The factors of every reported sketch seed by layer, none of an unresolved one.

    Args:
        measured_on: provenance of the loaded model; None where it is not loaded, and its frozen identity must do.

    Raises:
        InputError: factors of another model, layer, corpus or setting than is frozen, or of another shape.
    """
    attempts = read_iss_file(paths, "actions")
    factors: dict[int, list[Factors]] = {int(layer): [] for layer in freeze.layers}
    for reported in reported_factors(
        paths, freeze.layers, freeze.settings, freeze.corpus_sha256, attempts=attempts, measured_on=measured_on
    ):
        replace(reported, expected=reported.expected | {"identity": freeze.identity}).check()
        factors[reported.layer].append(load_factors(reported.folder)[0])
    return factors


def load_freeze(
    paths: ModelPaths, settings: Settings, corpus_sha256: str, accept_code: str | None = None
) -> FreezeManifest:
    """The freeze manifest, held against its own hash, the files it names, the settings, and what C would write now.

    Args:
        settings: resolved for the model.
        accept_code: why a manifest made by other code is good enough, in words; None: it is not.

    Raises:
        InputError: no manifest, one whose content is not what stage C wrote, a file it names missing or changed, other
            settings, another corpus, choices that are not those of stage B's files, or other code.
    """
    path = paths.manifest
    if not path.is_file():
        raise InputError(f"{path}: no freeze manifest; official ISS needs stage C first (run official-iss)")
    freeze = read_record(FreezeManifest, path)
    if freeze.content_sha256 is None:
        raise InputError(f"{path}: content_sha256: is missing; freeze again (run official-iss)")
    found = freeze.model_dump(by_alias=True, exclude_unset=True)
    wanted = settings.model_dump()
    for name in {*wanted, "facts"} - NOT_OFFICIAL:
        if found["settings"].get(name) != wanted.get(name):
            raise InputError(f"{path}: settings.{name}: was frozen with other settings than this run has; {AGAIN}")
    check_hashes(paths, freeze)
    if freeze.calibration_states_sha256 != sha256_file(paths.states("calibration")):
        raise InputError(f"{paths.states('calibration')}: changed after the freeze; {AGAIN}")
    if freeze.corpus_sha256 != corpus_sha256:
        raise InputError(f"{path}: corpus_sha256: the corpus is not that of the freeze; build it again (corpus build)")
    for name, value in choices(paths, settings, corpus_sha256).items():
        if name != "settings" and found.get(name) != value:
            raise InputError(
                f"{path}: {name}: {found.get(name)!r:.120}, but stage B's files give {value!r:.120}; {AGAIN}"
            )
    if freeze.code_sha256 != stages_code_sha256() and not accept_code:
        raise InputError(
            f"{path}: made by another version of the code; {AGAIN}, "
            "or say why the change does not matter (--accept-code REASON)"
        )
    return freeze
