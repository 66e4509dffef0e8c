"""dvc.yaml of a preset: every stage with exactly the code it imports, and outputs that DVC never deletes or reruns.

What stage B passes, and so which factors there are, is only known once it has been measured; it is read off the root.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparse_control.code_hash import PACKAGES, code_closure
from sparse_control.figures.curves import FOLDER
from sparse_control.files import read_text
from sparse_control.project import project_folder
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import Settings

HEADER = """\
# The whole paper as a graph, written by `python -m sparse_control.stages pipeline --preset {preset}`.
# Heavy stages are frozen and their outputs persist: `dvc repro` renders the tables and never deletes or reruns a
# measurement. DVC only verifies a frozen stage, forced or not; to measure one again: make remeasure STAGE=NAME
"""
REGISTRY = "sparse_control/models/sources.json"
CORPUS_HEADER = """\
# Written by `python -m sparse_control.stages pipeline-corpus`. The text is not committed and in no store: dvc.lock
# beside this file holds its hash, and the stage rebuilds it bit for bit (`dvc repro corpus/dvc.yaml`, needs the default
# model and, once, a network). A file of its own, so that a plain `dvc repro` neither misses the text nor builds it.
"""
IN_STORE = (".pt", ".safetensors")  # held by the DVC store, not by git
CORPUS = ("corpus/windows.jsonl", "corpus/corpus.json")
CALIBRATION = ("sparse_control/data/calibration_facts.csv", "sparse_control/data/calibration_prompts.yaml")
BENCHMARK = ("sparse_control/data/benchmark_facts.csv", "sparse_control/data/benchmark_prompts.yaml")
VALIDATION = (
    "per_model_action_validation.jsonl",
    "rank_convergence.jsonl",
    "corpus_convergence.jsonl",
    "seed_stability.jsonl",
    "whitening.json",
)
CONFIGS = ("corpus_config", "estimator_config", "validation_thresholds", "layer_windows")
RESULTS = ("iss_per_fact_layer.jsonl", "iss_per_fact.jsonl", "raw_iss_ablation.json")
SUMMARY = "iss_model_summary.json"
ISS_PARAMS = ("model", "dtype", "corpus", "iss", "estimator", "validation")
CODE = {
    "corpus": ("sparse_control.corpus",),
    "reference": ("sparse_control.stages.a_reference",),
    "validate": ("sparse_control.stages.b_validate",),
    "freeze": ("sparse_control.stages.c_freeze",),
    "official_iss": ("sparse_control.stages.d_official",),
    "alternatives": ("sparse_control.stages.alternatives",),
    "study": tuple(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official")),
    "experiment_b": ("flows.experiments", "sparse_control.stages.a_reference", "sparse_control.stages.b_validate"),
    "six_axis": ("flows.six_axis", "sparse_control.protocol.study"),
    "tables": ("sparse_control.tables.render",),
    "curves": ("sparse_control.figures.curves",),
}


@dataclass(frozen=True)
class Stage:
    """One stage of dvc.yaml."""

    name: str
    description: str
    command: str
    deps: Sequence[str]
    outs: Sequence[str]
    params: Sequence[str] = ()
    metrics: Sequence[str] = field(default=())
    frozen: bool = True


def code_deps(*modules: str) -> list[str]:
    """The import closure of modules as the fewest paths, a folder for all Python files below it; and the registry."""
    root = project_folder()
    closure = set(code_closure(*modules))

    def covered(folder: Path) -> list[str]:
        inside = {path for path in folder.rglob("*.py") if "__pycache__" not in path.parts}
        if not inside & closure:
            return []
        if inside <= closure:
            return [folder.relative_to(root).as_posix()]
        own = [path.relative_to(root).as_posix() for path in sorted(folder.glob("*.py")) if path in closure]
        below = sorted(path for path in folder.iterdir() if path.is_dir())
        return [*own, *(name for child in below for name in covered(child))]

    listed = [name for package in sorted(PACKAGES) for name in covered(root / package)]
    reads_registry = root / "sparse_control/models/fetch.py" in closure and "sparse_control/models" not in listed
    return [*listed, *([REGISTRY] if reads_registry else [])]


def stages(settings: Settings, root: Path) -> list[Stage]:
    """Every stage of dvc.yaml.

    Args:
        settings: of the preset that is measured.
        root: the project folder, for what has been measured there.
    """
    root = Path(root)
    tree = ModelPaths(Path(), settings.model)
    preset = f"presets.{settings.preset}"
    run = f"python -m sparse_control.stages {{}} --preset {settings.preset}"
    windows = settings.estimator.reference_layers == "window"
    kept = settings.iss.layers if windows else settings.alternatives.layers

    # references of every layer, and states of every layer, are more than a store in git should hold
    exact = settings.estimator.reference
    references = [*map(str, map(tree.reference, kept)), str(tree.reference_metadata)] if exact else []
    states = [str(tree.states("calibration"))] if windows else []
    comparison = [str(tree.validation("small_model_full_comparison.json"))] if exact else []
    validation = [str(tree.validation(name)) for name in VALIDATION]
    factors = _factors(root, "jacobian_iss/low_rank_factors")
    configs = [str(tree.config(name)) for name in CONFIGS]
    manifest, summary = str(tree.manifest), str(tree.result(SUMMARY))
    results = [str(tree.result(name)) for name in RESULTS]
    every = [
        Stage(
            "reference", "Stage A: exact references over the corpus, and every candidate rank against them",
            run.format("reference"), [*CORPUS, *code_deps(*CODE["reference"]), *CALIBRATION],
            [*references, *states, *comparison], [*ISS_PARAMS[:-1], preset],
        ),
        Stage(
            "validate", "Stage B: factors by the acceptance rule",
            run.format("validate"), [*CORPUS, *references, *states, *code_deps(*CODE["validate"]), *CALIBRATION],
            [*factors, *validation], [*ISS_PARAMS, preset],
        ),
        Stage(
            "freeze", "Stage C: every choice, frozen with its hash",
            run.format("freeze"), [*CORPUS, *states, *factors, *validation, *comparison, *code_deps(*CODE["freeze"])],
            [*configs, manifest], [*ISS_PARAMS, preset],
        ),
        Stage(
            "official_iss", "Stage D: official ISS and Raw-ISS on the benchmark",
            run.format("official"),
            [*CORPUS, *states, *factors, manifest, *code_deps(*CODE["official_iss"]), *CALIBRATION, *BENCHMARK],
            results, [*ISS_PARAMS, preset], [summary],
        ),
    ]  # fmt: skip
    if alternative := _present(root, [str(tree.validation("alternatives.jsonl"))]):
        every.append(
            Stage(
                "alternatives",
                "Named alternatives to the official estimator, validated apart",
                run.format("alternatives"),
                [*CORPUS, *references, *states, *code_deps(*CODE["alternatives"]), *CALIBRATION],
                [*_factors(root, "jacobian_iss/alternatives"), *alternative],
                [*ISS_PARAMS, "alternatives", preset],
            )  # fmt: skip
        )
    for null in ("shuffled_tokens", "redrawn_weights"):
        if outs := _records(root, f"nulls/{null}"):
            every.append(
                Stage(
                    f"null_{null}",
                    f"Stages A to D on a null: {null.replace('_', ' ')}",
                    f"{run.format('study')} --null {null}",
                    [*CORPUS, *code_deps(*CODE["study"]), *CALIBRATION, *BENCHMARK],
                    outs,
                    [*ISS_PARAMS, "nulls", preset],
                )  # fmt: skip
            )
    if outs := _records(root, "experiment_b"):
        every.append(
            Stage(
                "experiment_b",
                "Experiment B: does the small model's rank carry over to a medium model?",
                "python -m sparse_control run experiment-b --root .",
                [*code_deps(*CODE["experiment_b"]), *CALIBRATION],
                outs,
                [*ISS_PARAMS[1:], "presets.medium"],
            )  # fmt: skip
        )
    every.append(
        Stage(
            "six_axis",
            "Six-axis protocol: panels to records",
            f"python -m sparse_control run six-axis --preset {settings.preset} --root .",
            [*code_deps(*CODE["six_axis"]), *_data("panels")],
            ["measurements"],
            ["model", "dtype", "protocol", preset],
        )  # fmt: skip
    )
    read = [path for stage in every for path in [*stage.outs, *stage.metrics] if not path.endswith(IN_STORE)]
    every.append(
        Stage(
            "tables",
            "Every table, from the measurements alone",
            "python -m sparse_control reproduce",
            [*read, "paper/templates", "paper/published.yaml", *code_deps(*CODE["tables"])],
            ["paper/tables"],
            frozen=False,
        )  # fmt: skip
    )
    every.append(
        Stage(
            "curves",
            "The curves that `dvc plots show` draws, from the measurements alone",
            "python -m sparse_control.stages curves",
            [*read, *code_deps(*CODE["curves"])],
            ["paper/curves"],
            frozen=False,
        )  # fmt: skip
    )
    return every


def _present(root: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (root / name).is_file()]


def _factors(root: Path, folder: str) -> list[str]:
    """Q, B and metadata of every factor folder; the metadata is in git, so it is there without the store."""
    found = sorted((root / folder).rglob("metadata.json"), key=lambda path: _natural(path.relative_to(root)))
    folders = [path.parent.relative_to(root) for path in found]
    return [(folder / name).as_posix() for folder in folders for name in ("Q.pt", "B.pt", "metadata.json")]


def _natural(path: Path) -> list[tuple[int, str]]:
    """Layer 6 comes before layer 15."""
    return [(int(part), part) if part.isdigit() else (-1, part) for part in path.parts]


def _records(root: Path, name: str) -> list[str]:
    """What git holds of a root below the root: all that is no tensor and no unfinished work."""
    base = root / name / "jacobian_iss"
    found = (path for path in base.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml"))
    kept = (path for path in found if "checkpoints" not in path.parts and not path.name.startswith("."))
    return sorted(path.relative_to(root).as_posix() for path in kept)


def _data(folder: str) -> list[str]:
    place = project_folder() / "sparse_control" / "data" / folder
    return [f"sparse_control/data/{folder}"] if place.is_dir() else []


def pipeline_text(settings: Settings, root: Path) -> str:
    """The content of dvc.yaml."""
    blocks = "\n".join(_stage_text(stage) for stage in stages(settings, root))
    plots = "".join(f"{plot}\n" for plot in _plots(settings, Path(root)))
    return f"{HEADER.format(preset=settings.preset)}stages:\n{blocks}" + (f"\nplots:\n{plots}" if plots else "")


def corpus_text() -> str:
    """The content of corpus/dvc.yaml."""
    stage = Stage(
        "corpus", "Seeded token windows of the article archive",
        "python -m sparse_control.stages corpus --preset smoke",
        [*code_deps(*CODE["corpus"]), BENCHMARK[0]], CORPUS, ("model", "corpus"), frozen=False,
    )  # fmt: skip
    text = _stage_text(stage).replace("    cmd:", "    wdir: ..\n    cmd:")
    return f"{CORPUS_HEADER}stages:\n{text}"


def _plots(settings: Settings, root: Path) -> Iterator[str]:
    """One plot of ranks, and one of doses for every task that has been measured; a curve is a column of its file."""
    titles = {"rank": "Relative error of a rank-k sketch against the exact Jacobian, and of the best of that rank"}
    titles |= {f"dose_{task}": f"{task}: share of the gap covered, by dose" for task in settings.protocol.tasks}
    for name, title in titles.items():
        path = root / FOLDER / f"{name}.csv"
        if path.is_file():
            axis, *curves = read_text(path).partition("\n")[0].split(",")
            yield (
                f'  - {name}:\n      title: "{title}"\n      x: {axis}\n'
                f"      y: {{{(FOLDER / path.name).as_posix()}: [{', '.join(curves)}]}}\n"
                f"      x_label: {axis}\n      y_label: value\n      template: linear"
            )


def _stage_text(stage: Stage) -> str:
    lines = [f"  {stage.name}:", f'    desc: "{stage.description}"', f"    cmd: {stage.command}"]
    lines += ["    frozen: true"] if stage.frozen else []
    lines += ["    deps:", *(f"      - {path}" for path in stage.deps)]
    lines += [f"    params: [{', '.join(stage.params)}]"] if stage.params else []
    for kind in ("outs", "metrics"):
        paths = getattr(stage, kind)
        lines += [f"    {kind}:", *(f"      - {path}: {_options(path)}" for path in paths)] if paths else []
    return "\n".join(lines) + "\n"


def _options(path: str) -> str:
    return "{persist: true}" if path.endswith(IN_STORE) else "{cache: false, persist: true}"
