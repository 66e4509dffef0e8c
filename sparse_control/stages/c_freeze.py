"""Stage C: write down every estimator choice with the hash of every file it rests on (source document, 13.3, 14)."""

from pathlib import Path
from typing import Any

import yaml

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines, sha256_file, write_json, write_text
from sparse_control.models.identity import model_identity, model_label
from sparse_control.receipt import Receipt
from sparse_control.records.paths import ModelPaths, save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.ladder import PREREGISTERED

SCHEMA = "freeze/1"
FACTOR_FILES = ("Q.pt", "B.pt", "metadata.json")
SHAPE = {
    "model": str,
    "identity": str,
    "settings": dict,
    "corpus_sha256": str,
    "calibration_states_sha256": str,
    "layers": dict,
    "lam_rel": dict,
    "code_sha256": str,
    "files": dict,
}
VALIDATION_FILES = (
    "per_model_action_validation.jsonl",
    "rank_convergence.jsonl",
    "corpus_convergence.jsonl",
    "seed_stability.jsonl",
    "whitening.json",
)


def run(*, corpus: Path, root: Path, settings: Settings) -> Receipt:
    """Write `configs/` and the freeze manifest; after this nothing about the estimator may change.

    Raises:
        InputError: stage B's files are missing.
    """
    windows = load_corpus(corpus)
    paths = ModelPaths(root, model_label(settings.model), settings.null)
    whitening = read_json(paths.validation("whitening.json"))
    layers: dict[str, dict[str, Any]] = {
        str(layer): {"status": "unresolved", "step": None} for layer in settings.iss.layers
    }
    for row in read_json_lines(paths.validation("per_model_action_validation.jsonl")):
        if row["chosen"]:
            kept = ("k", "oversampling", "power_iterations", "corpus_size", "step")
            reporting = read_json(paths.factors(row["layer"]) / "metadata.json")["reporting"]
            seeds = settings.estimator.sketch_seeds
            layers[str(row["layer"])] = {
                "status": "validated",
                **{key: row[key] for key in kept},
                "reporting": reporting,
                "seeds": seeds[:1] if reporting == PREREGISTERED else seeds,
            }

    configs = {
        "corpus_config": settings.corpus.model_dump() | {"sha256": windows.sha256},
        "estimator_config": settings.estimator.model_dump(),
        "validation_thresholds": settings.validation.model_dump(),
        "layer_windows": {"preregistered": settings.iss.layers, "layers": layers},
    }
    for name, content in configs.items():
        write_text(paths.config(name), yaml.safe_dump(content, sort_keys=False))

    files = [paths.config(name) for name in configs]
    files += [paths.validation(name) for name in VALIDATION_FILES]
    if settings.estimator.reference:
        files.append(paths.validation("small_model_full_comparison.json"))
    for layer, chosen in layers.items():
        if chosen["status"] == "validated":
            files += [folder / name for folder in factor_folders(paths, int(layer), chosen) for name in FACTOR_FILES]
    manifest = {
        "schema": SCHEMA,
        "model": paths.model,
        "identity": model_identity(settings.model, settings.dtype).sha256,
        "settings": settings.model_dump(),
        "corpus_sha256": windows.sha256,
        "calibration_states_sha256": sha256_file(paths.states("calibration")),
        "layers": layers,
        "lam_rel": whitening["lam_rel"],
        "code_sha256": stages_code_sha256(),
        "files": {path.relative_to(paths.base).as_posix(): sha256_file(path) for path in files},
    }
    write_json(paths.manifest, manifest)
    save_stages_closure(root)
    return Receipt.of(root, [*(paths.config(name) for name in configs), paths.manifest])


def factor_folders(paths: ModelPaths, layer: int, frozen: dict[str, Any]) -> list[Path]:
    """The factors of a validated layer, one folder per reported sketch seed, the preregistered one first."""
    return [paths.factors(layer), *(paths.factors(layer, seed) for seed in frozen["seeds"][1:])]


def load_manifest(paths: ModelPaths, accept_code: str | None = None) -> dict[str, Any]:
    """The freeze manifest, after checking every file it lists and the code it was made by.

    Args:
        accept_code: why a manifest made by other code is good enough, in words; None: it is not.

    Raises:
        InputError: no manifest, a listed file missing or changed, or other code.
    """
    if not paths.manifest.is_file():
        raise InputError(f"{paths.manifest}: no freeze manifest; official ISS needs stage C first (run official-iss)")
    manifest = read_json(paths.manifest)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(f"{paths.manifest}: schema: expected {SCHEMA!r}; run stage C again (run official-iss)")
    _check_shape(paths.manifest, manifest)
    for name, recorded in manifest["files"].items():
        path = paths.base / name
        if not path.is_file():
            raise InputError(
                f"{path}: is missing but frozen in {paths.manifest.name}; run `dvc pull` or stages B and C again"
            )
        found = sha256_file(path)
        if found != recorded:
            raise InputError(
                f"{path}: changed after the freeze (SHA-256 {found}, frozen {recorded}); restore it or freeze again"
            )
    if manifest["code_sha256"] != stages_code_sha256() and not accept_code:
        raise InputError(
            f"{paths.manifest}: made by another version of the code; run stages A to C again (run official-iss), "
            "or say why the change does not matter (--accept-code REASON)"
        )
    return manifest


def _check_shape(path: Path, manifest: dict[str, Any]) -> None:
    """
    Raises:
        InputError: a key that stage D reads is missing or of another kind, or a path leaves the output tree.
    """

    def expect(good: bool, field: str, what: str) -> None:
        if not good:
            raise InputError(f"{path}: {field[:80]}: expected {what}; run stage C again (run official-iss)")

    for field, kind in SHAPE.items():
        expect(isinstance(manifest.get(field), kind), field, f"a {kind.__name__}")
    for name, recorded in manifest["files"].items():
        inside = (
            name.isprintable()
            and len(name) <= 255
            and not name.startswith("/")
            and ".." not in name.replace("\\", "/").split("/")
        )
        expect(inside and isinstance(recorded, str), "files", "hashes by paths below the output tree")
    iss = manifest["settings"].get("iss")
    window = iss.get("layers") if isinstance(iss, dict) else None
    expect(
        isinstance(window, list) and set(map(str, window)) == set(manifest["layers"]), "layers", "those of the settings"
    )
    for layer, entry in manifest["layers"].items():
        expect(
            isinstance(entry, dict) and entry.get("status") in ("validated", "unresolved"),
            f"layers.{layer}",
            "a status",
        )
        if entry["status"] == "validated":
            seeds = entry.get("seeds")
            good = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
            expect(bool(good), f"layers.{layer}.seeds", "the reported sketch seeds")
        penalties = manifest["lam_rel"].get(layer)
        for kind in ("iss", "raw"):
            value = penalties.get(kind) if isinstance(penalties, dict) else None
            expect(type(value) in (int, float) and value >= 0, f"lam_rel.{layer}.{kind}", "a penalty")
