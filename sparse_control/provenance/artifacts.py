"""What each file of a root says of its own making: a stage, settings, code, versions, seeds, and its inputs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import read_json
from sparse_control.project import project_folder
from sparse_control.provenance.sources import sources_of
from sparse_control.records.code import changed_files, read_closure
from sparse_control.records.jacobian_iss import FILES, read_iss_file
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.manifest import SUB_ROOTS, measured_files
from sparse_control.records.six_axis import read_measurements

CORPUS = "corpus/corpus.json"
MODEL_KEYS = ("source", "revision", "weights_sha256", "tokenizer_sha256", "dtype", "device", "bos")
FACTOR_KEYS = ("rank", "oversampling", "power_iterations", "calibration_corpus_size", "calibration_sequence_length")


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """What a file is, what is known of how it was made, and the files it was made of (relative to the root)."""

    kind: str
    facts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


def describe(root: Path, name: str) -> Artefact:
    """One file of a root, or a folder of factors, by its path relative to the root.

    Raises:
        InputError: no kind of file that this project writes, or one that cannot be read.
    """
    place = next((f"{sub}/" for sub in SUB_ROOTS if name.startswith(f"{sub}/")), "")
    inside = name.removeprefix(place)
    for pattern, function in KINDS:
        if match := re.fullmatch(pattern, inside):
            return function(root, place, match)
    raise InputError(f"{Path(root, name)}: is nothing that this project measures or renders")


# --- what is known of models, code and settings ---------------------------------------------------------------------


def model_facts(model: Mapping[str, Any]) -> list[str]:
    """Model, hashes, versions."""
    facts = [f"model {model.get('name')}"]
    facts += [f"{name.replace('_', ' ')}: {model[name]}" for name in MODEL_KEYS if model.get(name) is not None]
    if redrawn := model.get("redrawn_weights"):
        facts.append(f"weights redrawn: {_pairs(redrawn)}")
    if versions := model.get("versions"):
        facts.append(f"versions: {_pairs(versions)}")
    return facts


def _pairs(content: Any) -> str:
    if not isinstance(content, Mapping):
        return str(content)
    return ", ".join(f"{key} {value}" for key, value in content.items())


def code_fact(root: Path, sha256: str) -> str:
    """The code of a measurement, and whether it is what stands here."""
    closure = read_closure(root, sha256) if re.fullmatch("[0-9a-f]{64}", sha256) else None
    if closure is None:
        return f"code sha256: {sha256} (which files it was is not recorded)"
    try:
        same = code_sha256(*closure.modules) == sha256
    except ValueError:
        same = False
    if same:
        return f"code sha256: {sha256}, as it stands here"
    words = [f"{what}: {', '.join(names)}" for what, names in changed_files(closure).items() if names]
    return f"code sha256: {sha256}; {'; '.join(words)}"


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


def _corpus_path(root: Path) -> str:
    """The corpus stands below the root, or in the project folder."""
    return CORPUS if Path(root, CORPUS).is_file() else Path(project_folder(), CORPUS).as_posix()


def _existing(root: Path, place: str, names: list[str]) -> tuple[str, ...]:
    return tuple(place + name for name in names if Path(root, place + name).exists())


def _below(root: Path, place: str, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    base = Path(root, place)
    return sorted(path.relative_to(base).as_posix() for path in (base / folder).rglob("*") if path.suffix in suffixes)


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(root: Path, place: str, match: re.Match[str]) -> Artefact:
    return Artefact(
        kind="rendered on the CPU by `reproduce` from saved measurements",
        inputs=tuple(sources_of(match["table"], measured_files(root))),
    )


# --- internal state stability ---------------------------------------------------------------------------------------


def _freeze(root: Path, place: str) -> FreezeManifest | None:
    return read_iss_file(Path(root, place), "freeze")


def _frozen_facts(root: Path, place: str) -> list[str]:
    freeze = _freeze(root, place)
    if freeze is None:
        return []
    null = [] if freeze.settings.null == "none" else [f"null: {freeze.settings.null}"]
    return [f"model {freeze.model}", *null, *_seeds(freeze), code_fact(Path(root, place), freeze.code_sha256)]


def _comparison(root: Path, place: str, match: re.Match[str]) -> Artefact:
    inputs = _below(root, place, "jacobian_iss/full_reference", (".json",))
    inputs += _below(root, place, "jacobian_iss/transported_states", (".safetensors",))
    return Artefact(
        kind="stage A: every candidate rank against the exact finite-corpus Jacobians",
        facts=tuple(_frozen_facts(root, place)),
        inputs=_existing(root, place, [name for name in inputs if not name.endswith("benchmark.safetensors")]),
    )


def _validation(root: Path, place: str, match: re.Match[str]) -> Artefact:
    found = _comparison(root, place, match)
    alternatives = "alternatives" in match[0]
    what = "named alternatives, judged by the official rule" if alternatives else "stage B: the ladder on calibration"
    return Artefact(kind=what, facts=found.facts, inputs=found.inputs)


def _freeze_manifest(root: Path, place: str, match: re.Match[str]) -> Artefact:
    freeze = _freeze(root, place)
    listed = [f"jacobian_iss/{name}" for name in freeze.files]
    calibration = _below(root, place, "jacobian_iss/transported_states", (".safetensors",))
    calibration = [name for name in calibration if name.endswith("calibration.safetensors")]
    return Artefact(
        kind="stage C: every estimator choice, and the hash of every file it rests on",
        facts=(f"corpus sha256: {freeze.corpus_sha256}", *_frozen_facts(root, place)),
        inputs=tuple(place + name for name in [*listed, *calibration]),
    )


def _result(root: Path, place: str, match: re.Match[str]) -> Artefact:
    base = Path(root, place)
    record = read_iss_file(base, "raw" if match["file"] == "raw_iss_ablation.json" else "summary")
    facts: list[str] = []
    if record is not None:
        provenance = record.provenance
        facts = [
            *model_facts(provenance.model),
            f"params sha256: {provenance.params_sha256}",
            f"corpus sha256: {provenance.corpus_sha256}",
            code_fact(base, provenance.code_sha256),
            f"threads: {provenance.threads}",
            *_seeds(_freeze(root, place)),
        ]
        if provenance.accepted_code:
            facts.append(f"code of the freeze: {provenance.frozen_code_sha256}, accepted: {provenance.accepted_code}")
    return Artefact(
        kind="stage D: ISS and Raw-ISS on the benchmark",
        facts=tuple(facts),
        inputs=_existing(root, place, ["jacobian_iss/freeze_manifest.json"]),
    )


def _config(root: Path, place: str, match: re.Match[str]) -> Artefact:
    return Artefact(kind="stage C: settings as they were frozen", facts=tuple(_frozen_facts(root, place)))


def _binary(root: Path, place: str, match: re.Match[str]) -> Artefact:
    """Tensors, of which the metadata beside them speaks."""
    kind = {"full_reference": "stage A: exact finite-corpus Jacobian, float32", "low_rank_factors": "stage B: a factor"}
    return Artefact(
        kind=kind.get(match["what"], "a factor of a named alternative, never official"),
        facts=("as its metadata.json says",),
        inputs=_existing(root, place, [f"{match['folder']}/metadata.json"]),
    )


def _factors(root: Path, place: str, match: re.Match[str]) -> Artefact:
    metadata = read_json(Path(root, place + match["folder"], "metadata.json"))
    official = match["folder"].startswith("jacobian_iss/low_rank_factors/")
    if not isinstance(metadata, dict):
        raise InputError(f"{Path(root, place + match['folder'], 'metadata.json')}: expected an object")
    facts = [f"model {metadata.get('model')}, layer {metadata.get('layer')}, width {metadata.get('hidden_dimension')}"]
    facts += [
        f"{name.replace('_', ' ')}: {metadata[name]}"
        for name in ("estimator", "probe", "products", "null", "dtype", "weights_sha256", "tokenizer_revision")
        if metadata.get(name) is not None
    ]
    facts.append(", ".join(f"{name.replace('_', ' ')} {metadata.get(name)}" for name in FACTOR_KEYS))
    facts += [f"seed: {metadata.get('random_seed')}", f"corpus sha256: {metadata.get('corpus_sha256')}"]
    if metadata.get("versions"):
        facts.append(f"versions: {_pairs(metadata['versions'])}")
    if isinstance(metadata.get("code_sha256"), str):
        facts.append(code_fact(Path(root, place), metadata["code_sha256"]))
    layer, parts = metadata.get("layer"), Path(match["folder"]).parts
    model = parts[2] if official else parts[3] if len(parts) > 3 else ""
    references = [f"jacobian_iss/full_reference/{model}/{name}" for name in (f"{layer}.safetensors", "metadata.json")]
    inputs = _existing(root, place, references) if model and isinstance(layer, int) else ()
    kind = "stage B: factors of a low-rank estimator" if official else "factors of a named alternative, never official"
    return Artefact(kind=kind, facts=tuple(facts), inputs=inputs or (_corpus_path(root),))


def _reference(root: Path, place: str, match: re.Match[str]) -> Artefact:
    path = Path(root, place + match["folder"], "metadata.json")
    metadata = read_json(path)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("model"), dict):
        raise InputError(f"{path}: model: is missing")
    facts = [
        f"target layer {metadata.get('target_layer')}, position {metadata.get('position')}, {metadata.get('norm')}",
        f"corpus sizes: {metadata.get('corpus_sizes')}, sequences of {metadata.get('calibration_sequence_length')}",
        *model_facts(metadata["model"]),
        f"corpus sha256: {metadata.get('corpus_sha256')}",
    ]
    if metadata.get("null") not in (None, "none"):
        facts.append(f"null: {metadata['null']}")
    if isinstance(metadata.get("code_sha256"), str):
        facts.append(code_fact(Path(root, place), metadata["code_sha256"]))
    return Artefact(kind="stage A: exact finite-corpus Jacobians", facts=tuple(facts), inputs=(_corpus_path(root),))


def _states(root: Path, place: str, match: re.Match[str]) -> Artefact:
    which = match["states"]
    stage = "stage A: states of the calibration prompts" if which == "calibration" else "stage D: benchmark states"
    freeze = ["jacobian_iss/freeze_manifest.json"] if which == "benchmark" else []
    return Artefact(kind=stage, facts=tuple(_frozen_facts(root, place)), inputs=_existing(root, place, freeze))


# --- six-axis protocol, corpus, the rest ----------------------------------------------------------------------------


def _measurement(root: Path, place: str, match: re.Match[str]) -> Artefact:
    records = read_measurements(root, Path(root, match[0]))
    facts: list[str] = []
    for provenance in [record.provenance for record in records][:1]:
        facts += [
            *model_facts(provenance.model),
            f"params sha256: {provenance.params_sha256}",
            code_fact(root, provenance.code_sha256),
            f"threads: {provenance.threads}",
        ]
    facts.append(f"seeds: {', '.join(str(record.seed) for record in records)}")
    return Artefact(kind="six-axis records, one a seed", facts=tuple(facts))


def _corpus(root: Path, place: str, match: re.Match[str]) -> Artefact:
    return corpus_artefact(Path(root, match[0]))


def corpus_artefact(path: Path) -> Artefact:
    """corpus.json, wherever it stands.

    Raises:
        InputError: it cannot be read, or is none.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "windows_sha256" not in content:
        raise InputError(f"{path}: windows_sha256: is missing")
    ids = content.get("ids")
    return Artefact(
        kind="the Jacobian corpus, built bit for bit from a pinned package",
        facts=(
            f"source: {_pairs(content.get('source'))}",
            f"parser: {content.get('parser')}; tokenizer sha256: {content.get('tokenizer_sha256')}",
            f"settings: {_pairs(content.get('settings'))}",
            f"windows sha256: {content['windows_sha256']} ({len(ids) if isinstance(ids, list) else 'unknown'} windows)",
        ),
    )


def _closure(root: Path, place: str, match: re.Match[str]) -> Artefact:
    base = Path(root, place)
    closure = read_closure(base, match["sha256"])
    facts = () if closure is None else (f"modules: {', '.join(closure.modules)}", code_fact(base, match["sha256"]))
    return Artefact(kind="hashes of the files of the code that measured", facts=facts)


Describe = Callable[[Path, str, re.Match[str]], Artefact]
_RESULTS = "|".join(re.escape(FILES[field][0]) for field in ("fact_layers", "facts", "summary", "raw"))
KINDS: tuple[tuple[str, Describe], ...] = (
    (r"paper/tables/(?P<table>.+)\.(csv|tex|html)", _table),
    (r"jacobian_iss/validation/small_model_full_comparison\.json", _comparison),
    (r"jacobian_iss/validation/[^/]+\.jsonl?", _validation),
    (r"jacobian_iss/freeze_manifest\.json", _freeze_manifest),
    (rf"jacobian_iss/(?P<file>{_RESULTS})", _result),
    (r"jacobian_iss/configs/[^/]+\.yaml", _config),
    (
        r"(?P<folder>jacobian_iss/(?P<what>low_rank_factors|alternatives|full_reference)/.+)/[^/]+\.(pt|safetensors)",
        _binary,
    ),
    (r"(?P<folder>jacobian_iss/(low_rank_factors|alternatives)/.+?)(/metadata\.json)?", _factors),
    (r"(?P<folder>jacobian_iss/full_reference/[^/]+)(/metadata\.json)?", _reference),
    (r"jacobian_iss/transported_states/[^/]+/(?P<states>[^/]+)\.safetensors", _states),
    (r"measurements/[^/]+/[^/]+\.jsonl", _measurement),
    (r"corpus/corpus\.json", _corpus),
    (r"code/(?P<sha256>[0-9a-f]{64})\.json", _closure),
)
