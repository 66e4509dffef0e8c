"""Builds a complete small root of made-up records, for tests alone."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from sparse_control import paper
from sparse_control.files import sha256_file, write_json, write_text
from sparse_control.records import manifest
from sparse_control.records.factors import freeze_configs, frozen_files, reported_factors
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.records.jacobian_iss.freeze import FreezeManifest, content_sha256
from sparse_control.records.paths import ModelPaths, model_folders
from sparse_control.records.six_axis import sealed
from sparse_control.records.six_axis_files import measurement_files
from tests.support.measured_iss import WIDTH, iss_files

MODEL = "toy-model"
DOSES = [-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2]
PAIRS = 4

reproduce = partial(paper.reproduce, pictures=False)


def measurement(task="ioi", selector="coverage_driver", condition="P", seed=0, *, model=MODEL, supported=True):
    """One record; with P the patch goes most of the way, with F hardly anywhere."""
    random = np.random.default_rng([seed, len(task), len(selector), condition == "P"])
    count = {"built": 12, "kept": 12 if supported else 1}
    read = {"built": PAIRS, "kept": PAIRS} if supported else count
    record = {
        "schema": "six-axis/1",
        "model": model,
        "task": task,
        "selector": selector,
        "condition": condition,
        "seed": seed,
        "supported": supported,
        "reason": None if supported else "1 of 12 fit pairs have a gap of at least 1 logits; 6 are needed",
        "gate": {"minimum_gap": 1.0, "fit": count, "evaluate": read, "reuse": read},
        "panels": {"pairs": "own", "off_target": "own"},
    }
    sections = (
        "candidates",
        "support",
        "strengths",
        "selection",
        "effects",
        "norms",
        "evaluate",
        "reversal",
        "feedback",
        "preservation",
        "reuse",
        "draws",
    )
    record |= dict.fromkeys(sections)
    if supported:
        source, target = unpatched(task, seed)
        record |= _sections(random, source, target, 0.8 if condition == "P" else 0.05)
        if selector.startswith("random_"):
            record["draws"] = _draws(record, random)
    record["provenance"] = {
        "model": {"name": model, "weights_sha256": "a" * 64},
        "params_sha256": "b" * 64,
        "code_sha256": "c" * 64,
        "seed": seed,
        "threads": 2,
    }
    return sealed(record)


def _draws(record, random):
    """The record itself, and two draws that move the readouts by less and the wrong way."""
    evaluated = record["evaluate"]
    own = {"patched": evaluated["patched"][DOSES.index(1)], "reversed": record["reversal"]["reversed"]}
    others = [
        {
            "patched": [s + share * (t - s) for s, t in zip(evaluated["source"], evaluated["target"])],
            "reversed": [t - share * (t - s) for s, t in zip(evaluated["source"], evaluated["target"])],
        }
        for share in (0.4 + 0.1 * random.random(), -0.2)
    ]
    sites = {"support": record["support"], "strengths": record["strengths"]}
    return [sites | readouts for readouts in (own, *others)]


def unpatched(task, seed):
    """Margins without a patch, the same for every selector and direction rule."""
    random = np.random.default_rng([seed, len(task)])
    return -3 + random.normal(size=PAIRS), 3 + random.normal(size=PAIRS)


def _sections(random, source, target, reach):
    start, gain = float(np.mean(source)), 0.2
    noise = lambda: 0.1 * random.normal(size=PAIRS)  # noqa: E731
    ends = [
        {
            "target": goal,
            "initial_margin": start,
            "terminal_margin": goal + 0.2,
            "terminal_dose": gain * (goal - start),
            "readouts": 2,
            "stop_reason": "hit",
            "clipped": False,
            "trajectory": [[0.0, start], [gain * (goal - start), goal + 0.2]],
        }
        for goal in (-1.0, 0.0, 1.5, 3.0)
    ]
    patched = [(source + reach * dose * (target - source)).tolist() for dose in DOSES]
    return {
        "candidates": {"components": ["head", "mlp"], "positions": [-1], "sites": 300, "without_contrast": 2},
        "support": ["L03.head.1@-1", "L05.mlp@-1"],
        "strengths": [1.0, 0.5],
        "selection": {"path": [0.5, 0.8], "stop_reason": "k", "predicted_additivity": 0.9, "measured_additivity": 0.8},
        "effects": {"kind": "first_order", "check_sites": 4, "check_pearson": 0.97},
        "norms": {"direction": [1.5, 2.5], "activation": [10.0, 20.0]},
        "evaluate": {
            "pairs": [f"pair-{i}" for i in range(PAIRS)],
            "source": source.tolist(),
            "target": target.tolist(),
            "doses": DOSES,
            "patched": patched,
            "wrong_way": [float(np.mean((np.array(row) - source) * (target - source) < 0)) for row in patched],
        },
        "reversal": {"reversed": (target - reach * (target - source) + noise()).tolist()},
        "feedback": {"gain": gain, "tolerance": 0.3, "endpoints": ends},
        "preservation": {"prompts": [f"prompt-{i}" for i in range(6)], "kl": (1e-3 * random.random(6)).tolist()},
        "reuse": {
            "pairs": [f"new-{i}" for i in range(PAIRS)],
            "source": source.tolist(),
            "target": target.tolist(),
            "refit": (source + 0.9 * (target - source)).tolist(),
            "frozen": (source + 0.1 * (target - source) + noise()).tolist(),
            "refit_strengths": [1.1, 0.4],
        },
    }


def write_lines(path: Path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_files(folder: Path, files):
    """A list of rows as JSON lines, anything else as JSON."""
    for name, content in files.items():
        if isinstance(content, list):
            write_lines(folder / name, content)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(content))


def bless(root: Path):
    """Record every measurement of `root` in its manifest as it is."""
    manifest.write_manifest(root, manifest.measured_files(root))


def write_iss(paths: ModelPaths, files):
    """`jacobian_iss/` of a model: the files, those that the freeze names beside them, and their hashes in it."""
    write_files(paths.base, files)
    freeze = read_iss_file(paths, "freeze")
    for name, content in freeze_configs(freeze).items():
        write_text(paths.config(name), yaml.safe_dump(content))
    attempts = read_iss_file(paths, "actions")
    provenance = files["iss_model_summary.json"]["provenance"]["model"]
    arguments = (freeze.layers, freeze.settings, freeze.corpus_sha256)
    for factors in reported_factors(paths, *arguments, attempts=attempts, measured_on=provenance):
        write_json(factors.folder / "metadata.json", dict(factors.expected) | {"hidden_dimension": WIDTH})
    refreeze(paths)


def refreeze(paths: ModelPaths):
    """Renew every hash in the freeze manifest, and its own; absent factors have a made-up one."""
    content = json.loads(paths.manifest.read_text())
    freeze = FreezeManifest.model_validate(content | {"content_sha256": None})
    names = frozen_files(paths, freeze.layers, reference=freeze.settings.estimator.reference)
    content["files"] = {
        path.relative_to(paths.base).as_posix(): sha256_file(path) if path.is_file() else "d" * 64 for path in names
    }
    write_json(paths.manifest, content | {"content_sha256": content_sha256(content)})


def rehash(root: Path):
    """Renew every hash of `root` that can be renewed without measuring: those of records, freezes and the manifest."""
    for model in model_folders(root):
        paths = ModelPaths(root, model)
        for path in measurement_files(paths):
            write_lines(path, [sealed(json.loads(line)) for line in path.read_text().splitlines()])
        for study in (paths, *paths.nulls):
            refreeze(study)
    bless(root)


NULLS = {
    "shuffled_tokens": {"layers": {2: "validated", 5: "unresolved"}},
    "redrawn_weights": {"layers": {2: "validated", 5: "validated"}},
}
MEDIUM = "medium-model"


def write_six_axis(root: Path, model=MODEL):
    """Two tasks, selectors and conditions by three seeds, a control, and a task that is not supported."""
    studies = [
        (task, selector, condition)
        for task in ("ioi", "sentiment")
        for selector in ("coverage_driver", "driver_omp")
        for condition in ("P", "F")
    ] + [("ioi", "random_support", condition) for condition in ("P", "F")]
    for task, selector, condition in [*studies, ("refusal", "coverage_driver", "P")]:
        rows = [
            measurement(task, selector, condition, seed, model=model, supported=task != "refusal") for seed in range(3)
        ]
        write_lines(ModelPaths(root, model).six_axis(task, selector, condition), rows)


def build_root(root: Path, *, model=MODEL, tables=True, whole=False) -> Path:
    """Six axes and ISS of three layers, of one model.

    With `whole` also both nulls of the model, and ISS of a medium model.
    """
    write_six_axis(root, model)
    write_iss(ModelPaths(root, model), iss_files(model))
    if whole:
        for name, content in NULLS.items():
            write_iss(ModelPaths(root, model, name), iss_files(model, null=name, **content))
        write_iss(ModelPaths(root, MEDIUM), iss_files(MEDIUM, rank=128))
    bless(root)
    if tables:
        reproduce(root)
    return root
