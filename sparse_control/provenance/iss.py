"""What each file of `jacobian_iss/` says of its own making: stage, settings, code, versions, seeds, and its inputs."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import read_json
from sparse_control.provenance.corpus import corpora
from sparse_control.provenance.facts import Artefact, code_fact, model_facts, pairs
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.paths import CONFIGS, ISS_FILES, METADATA, RESULTS, ModelPaths

FACTOR_KEYS = ("rank", "oversampling", "power_iterations", "calibration_corpus_size", "calibration_sequence_length")
FACTOR_FACTS = ("estimator", "probe", "products", "null", "dtype", "weights_sha256", "tokenizer_revision")


def describe(paths: ModelPaths, name: str) -> Artefact | None:
    """A file below `jacobian_iss/`, or a folder of factors or references, by its path there; None where it is none.

    Raises:
        InputError: it cannot be read.
    """
    for pattern, function in KINDS:
        if match := re.fullmatch(pattern, name):
            return function(paths, match)
    return None


def _existing(found: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(path for path in found if path.exists())


def _seeds(freeze: FreezeManifest | None) -> list[str]:
    if freeze is None:
        return []
    settings = freeze.settings.model_dump()
    seeds = {"sketch": settings["estimator"]["sketch_seeds"], "bootstrap": [settings["iss"]["bootstrap_seed"]]}
    for section in ("corpus", "validation"):
        content = settings.get(section)
        if isinstance(content, Mapping) and content.get("seed") is not None:
            seeds[section] = [content["seed"]]
    return ["seeds: " + "; ".join(f"{name} {', '.join(map(str, found))}" for name, found in seeds.items())]


def _frozen_facts(paths: ModelPaths) -> tuple[str, ...]:
    freeze: FreezeManifest | None = read_iss_file(paths, "freeze")
    if freeze is None:
        return ()
    null = [] if freeze.settings.null == "none" else [f"null: {freeze.settings.null}"]
    return (f"model {freeze.model}", *null, *_seeds(freeze), code_fact(paths.root, freeze.code_sha256))


# --- stages ---------------------------------------------------------------------------------------------------------


def _of_references(paths: ModelPaths) -> tuple[Path, ...]:
    return _existing([paths.reference_metadata, paths.states("calibration")])


def _comparison(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    kind = "stage A: every candidate rank against the exact finite-corpus Jacobians"
    return Artefact(kind=kind, facts=_frozen_facts(paths), inputs=_of_references(paths))


def _validation(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    named = match[0] == ISS_FILES["alternatives"]
    kind = "named alternatives, judged by the official rule" if named else "stage B: the ladder on calibration"
    return Artefact(kind=kind, facts=_frozen_facts(paths), inputs=_of_references(paths))


def _config(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    return Artefact(kind="stage C: settings as they were frozen", facts=_frozen_facts(paths))


def _freeze(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    freeze: FreezeManifest = read_iss_file(paths, "freeze")
    listed = [paths.base / name for name in freeze.files]
    return Artefact(
        kind="stage C: every estimator choice, and the hash of every file it rests on",
        facts=(f"corpus sha256: {freeze.corpus_sha256}", *_frozen_facts(paths)),
        inputs=(*listed, *_existing([paths.states("calibration")])),
    )


def _result(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    record = read_iss_file(paths, "raw" if match[0] == ISS_FILES["raw"] else "summary")
    facts: list[str] = []
    if record is not None:
        provenance = record.provenance
        facts = [
            *model_facts(provenance.model),
            f"params sha256: {provenance.params_sha256}",
            f"corpus sha256: {provenance.corpus_sha256}",
            code_fact(paths.root, provenance.code_sha256),
            f"threads: {provenance.threads}",
            *_seeds(read_iss_file(paths, "freeze")),
        ]
        if provenance.accepted_code:
            facts.append(f"code of the freeze: {provenance.frozen_code_sha256}, accepted: {provenance.accepted_code}")
    kind = "stage D: ISS and Raw-ISS on the benchmark"
    return Artefact(kind=kind, facts=tuple(facts), inputs=_existing([paths.manifest]))


def _states(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    benchmark = match["states"] != "calibration"
    kind = "stage D: benchmark states" if benchmark else "stage A: states of the calibration prompts"
    return Artefact(kind=kind, facts=_frozen_facts(paths), inputs=_existing([paths.manifest]) if benchmark else ())


# --- tensors --------------------------------------------------------------------------------------------------------


def _tensors(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    """Tensors, of which the metadata beside them speaks."""
    kinds = {
        "full_reference": "stage A: exact finite-corpus Jacobian, float32",
        "low_rank_factors": "stage B: a factor",
    }
    return Artefact(
        kind=kinds.get(match["what"], "a factor of a named alternative, never official"),
        facts=("as its metadata.json says",),
        inputs=_existing([paths.base / match["folder"] / METADATA]),
    )


def _metadata(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object")
    return content


def _factors(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    metadata = _metadata(paths.base / match["folder"] / METADATA)
    facts = [f"model {metadata.get('model')}, layer {metadata.get('layer')}, width {metadata.get('hidden_dimension')}"]
    facts += [f"{key.replace('_', ' ')}: {metadata[key]}" for key in FACTOR_FACTS if metadata.get(key) is not None]
    facts.append(", ".join(f"{key.replace('_', ' ')} {metadata.get(key)}" for key in FACTOR_KEYS))
    facts += [f"seed: {metadata.get('random_seed')}", f"corpus sha256: {metadata.get('corpus_sha256')}"]
    if metadata.get("versions"):
        facts.append(f"versions: {pairs(metadata['versions'])}")
    if metadata.get("code_sha256") is not None:
        facts.append(code_fact(paths.root, metadata["code_sha256"]))
    layer, official = metadata.get("layer"), match["what"] == "low_rank_factors"
    inputs = [paths.reference(layer), paths.reference_metadata] if isinstance(layer, int) else []
    kind = "stage B: factors of a low-rank estimator" if official else "factors of a named alternative, never official"
    return Artefact(
        kind=kind, facts=tuple(facts), inputs=_existing(inputs) or corpora(paths.root, metadata.get("corpus_sha256"))
    )


def _reference(paths: ModelPaths, match: re.Match[str]) -> Artefact:
    path = paths.base / match["folder"] / METADATA
    metadata = _metadata(path)
    if not isinstance(metadata.get("model"), dict):
        raise InputError(f"{path}: model: is missing")
    facts = [
        f"target layer {metadata.get('target_layer')}, position {metadata.get('position')}, {metadata.get('norm')}",
        f"corpus sizes: {metadata.get('corpus_sizes')}, sequences of {metadata.get('calibration_sequence_length')}",
        *model_facts(metadata["model"]),
        f"corpus sha256: {metadata.get('corpus_sha256')}",
    ]
    if metadata.get("null") not in (None, "none"):
        facts.append(f"null: {metadata['null']}")
    if metadata.get("code_sha256") is not None:
        facts.append(code_fact(paths.root, metadata["code_sha256"]))
    kind = "stage A: exact finite-corpus Jacobians"
    return Artefact(kind=kind, facts=tuple(facts), inputs=corpora(paths.root, metadata.get("corpus_sha256")))


def _any(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


Describe = Callable[[ModelPaths, re.Match[str]], Artefact]
_TENSORS = r"(?P<folder>(?P<what>low_rank_factors|alternatives|full_reference)/.+)/[^/]+\.(pt|safetensors)"
_OTHERS = (name for name in ISS_FILES.values() if name.startswith("validation/") and name != ISS_FILES["comparison"])
KINDS: tuple[tuple[str, Describe], ...] = (
    (re.escape(ISS_FILES["comparison"]), _comparison),
    (_any(_OTHERS), _validation),
    (re.escape(ISS_FILES["freeze"]), _freeze),
    (_any(ISS_FILES[field] for field in RESULTS), _result),
    (rf"configs/({_any(CONFIGS)})\.yaml", _config),
    (_TENSORS, _tensors),
    (r"(?P<folder>(?P<what>low_rank_factors|alternatives)/.+?)(/metadata\.json)?", _factors),
    (r"(?P<folder>full_reference/[^/]+)(/metadata\.json)?", _reference),
    (r"transported_states/[^/]+/(?P<states>calibration|benchmark/\d+)\.safetensors", _states),
)
