"""Where everything that is measured is kept: the one place that spells file and folder names.

    ROOT/MANIFEST.json, ROOT/README.md, ROOT/code/HASH.json
    ROOT/MODEL/jacobian_iss/...                     the output tree of the ISS source document, section 14
    ROOT/MODEL/six_axis/TASK.SELECTOR.CONDITION.jsonl
    ROOT/MODEL/nulls/NAME/jacobian_iss/...
    ROOT/replaced/MODEL/six_axis/TASK.SELECTOR.CONDITION.1.jsonl, .2.jsonl, ...

The committed root is `measurements/` in the project folder; runs of one's own are roots of the same shape. What is
rendered is in `paper/` of the project folder for the committed root, and in `ROOT/paper/` for any other one:

    PAPER/MANIFEST.json, PAPER/tables/..., PAPER/figures/...
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from sparse_control.code_hash import code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.records.listing import folders_in

MEASUREMENTS = "measurements"  # the committed root, in the project folder
MANIFEST, CODE = "MANIFEST.json", "code"  # beside the models of a root
REPLACED = "replaced"  # beside them, what was measured before and is no result; no reader looks into it
PAPER, TABLES, FIGURES = "paper", "tables", "figures"  # what is rendered
JACOBIAN_ISS, SIX_AXIS, NULLS = "jacobian_iss", "six_axis", "nulls"  # folders of a model
ISS_FILES = {  # what each file is called in the code -> its name below jacobian_iss/ (source document, 14)
    "comparison": "validation/small_model_full_comparison.json",
    "actions": "validation/per_model_action_validation.jsonl",
    "rank_convergence": "validation/rank_convergence.jsonl",
    "corpus_convergence": "validation/corpus_convergence.jsonl",
    "seed_stability": "validation/seed_stability.jsonl",
    "whitening": "validation/whitening.json",
    "alternatives": "validation/alternatives.jsonl",
    "freeze": "freeze_manifest.json",
    "fact_layers": "iss_per_fact_layer.jsonl",
    "facts": "iss_per_fact.jsonl",
    "summary": "iss_model_summary.json",
    "raw": "raw_iss_ablation.json",
}
VALIDATION = ("actions", "rank_convergence", "corpus_convergence", "seed_stability", "whitening")  # of stage B
RESULTS = ("fact_layers", "facts", "summary", "raw")  # of stage D
CONFIGS = ("corpus_config", "estimator_config", "validation_thresholds", "layer_windows")  # of stage C
METADATA = "metadata.json"  # beside the tensors of a folder
FACTOR_FILES = ("Q.pt", "B.pt", METADATA)
Null = Literal["none", "shuffled_tokens", "redrawn_weights"]  # what was taken away from model or corpus, if anything
NULL_NAMES = get_args(Null)[1:]
# modules whose code measures, with what they import: of ISS, and of six-axis records
STAGES = {  # in their order (source document, 4): name -> module
    "reference": "sparse_control.stages.a_reference",
    "validate": "sparse_control.stages.b_validate",
    "freeze": "sparse_control.stages.c_freeze",
    "official": "sparse_control.stages.d_official",
}
ALTERNATIVES = "sparse_control.stages.alternatives"
STUDY = "sparse_control.protocol.study"


def folder_name(model: str) -> str:
    """The name of a model's folder: its own, with "--" for the "/" of a hub id."""
    return model.replace("/", "--")


def check_label(model: str) -> None:
    """Refuse what no model's folder can be called: manifests, dvc.yaml, shells and other systems hold the name.

    Raises:
        InputError: letters other than ASCII, digits, `.`, `_`, `+` and `-` are in the name, it begins otherwise than
            with a letter or digit, is too long, or is that of another part of a root.
    """
    folder = folder_name(model)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", folder) or folder.endswith("."):
        raise InputError(
            f"model {model!r:.150}: records and folders are called after it, and need 1 to 100 ASCII letters, digits "
            "and ._+- , the first a letter or digit; rename it"
        )
    if folder.casefold() in {MANIFEST.casefold(), "readme.md", CODE, PAPER, MEASUREMENTS, REPLACED}:
        raise InputError(f"model {model!r}: is the name of another part of every folder of results; rename it")


def committed_root(project: Path) -> Path:
    """The measurements that the paper is of."""
    return Path(project, MEASUREMENTS)


def paper_folder(root: Path, project: Path) -> Path:
    """Where tables and figures of `root` are rendered: `paper/` of the project for its committed root, else its own."""
    committed = Path(root).resolve() == committed_root(project).resolve()
    return Path(project if committed else root, PAPER)


def model_folders(root: Path) -> list[str]:
    """Names of the folders of `root` that hold a model's measurements, in order of the name.

    Raises:
        InputError: a folder in `root`, or one of a model's, is a symbolic link.
    """
    parts = {JACOBIAN_ISS, SIX_AXIS, NULLS}
    models = (path for path in folders_in(root) if path.name != REPLACED)
    return [path.name for path in models if parts & {inner.name for inner in folders_in(path)}]


def replaced_folder(root: Path) -> Path:
    """Where measurements go that others took the place of."""
    return Path(root, REPLACED)


def replaced_file(root: Path, path: Path, number: int) -> Path:
    """The `number`-th that was taken out of a file below `root`, from 1 on: `replaced/MODEL/six_axis/NAME.1.jsonl`."""
    return replaced_folder(root) / Path(path).relative_to(root).with_suffix(f".{number}{Path(path).suffix}")


@dataclass(frozen=True)
class ModelPaths:
    """Paths of one model below a root.

    Attributes:
        root: the folder measured into.
        model: as records call it.
        null: what was taken away from model or corpus, where the paths are those of a null; else `none`.
    """

    root: Path
    model: str
    null: Null = "none"

    @property
    def folder(self) -> Path:
        """The folder that has `jacobian_iss/`: that of the model, or of one of its nulls."""
        own = Path(self.root) / folder_name(self.model)
        return own if self.null == "none" else own / NULLS / self.null

    @property
    def base(self) -> Path:
        return self.folder / JACOBIAN_ISS

    @property
    def nulls(self) -> tuple["ModelPaths", ...]:
        """The nulls of this model that were measured, the known ones first.

        Raises:
            InputError: a folder among them is a symbolic link.
        """
        found = [path.name for path in folders_in(self.folder / NULLS) if (path / JACOBIAN_ISS).is_dir()]
        known = [name for name in NULL_NAMES if name in found]
        names = known + [name for name in found if name not in NULL_NAMES]
        return tuple(ModelPaths(self.root, self.model, name) for name in names)

    @property
    def six_axis_folder(self) -> Path:
        return self.folder / SIX_AXIS

    def iss_file(self, name: str) -> Path:
        """A file of `jacobian_iss/` by its name in `ISS_FILES`."""
        return self.base / ISS_FILES[name]

    def six_axis(self, task: str, selector: str, condition: str) -> Path:
        """Records of one (task, selector, condition), a line a seed."""
        return self.six_axis_folder / f"{task}.{selector}.{condition}.jsonl"

    @property
    def configs(self) -> Path:
        return self.base / "configs"

    def config(self, name: str) -> Path:
        return self.configs / f"{name}.yaml"

    @property
    def references(self) -> Path:
        """Folder of the exact Jacobians, a file a layer."""
        return self.base / "full_reference" / self.model

    def reference(self, layer: int) -> Path:
        return self.references / f"{layer}.safetensors"

    @property
    def reference_metadata(self) -> Path:
        return self.references / METADATA

    @property
    def all_factors(self) -> Path:
        """Folder of the factors of all layers, a folder a layer."""
        return self.base / "low_rank_factors" / self.model

    def factors(self, layer: int, seed: int | None = None) -> Path:
        """Folder of a layer's factors; `seed` for those of the further sketch seeds, where their mean is reported."""
        folder = self.all_factors / str(layer)
        return folder if seed is None else folder / f"seed_{seed}"

    def alternative(self, estimator: str, layer: int) -> Path:
        return self.base / "alternatives" / estimator / self.model / str(layer)

    def validation(self, name: str) -> Path:
        return self.base / "validation" / name

    def states(self, name: str) -> Path:
        return self.base / "transported_states" / self.model / f"{name}.safetensors"

    @property
    def manifest(self) -> Path:
        return self.iss_file("freeze")

    def result(self, name: str) -> Path:
        return self.base / name

    def unfinished(self, stage: str) -> Path:
        """Folder of a stage's checkpoints and parts; removed once the stage is through."""
        return self.base / "checkpoints" / self.model / stage

    def finish(self, stage: str) -> None:
        """Remove a stage's unfinished work, and the folders it leaves empty."""
        folder = self.unfinished(stage)
        shutil.rmtree(folder, ignore_errors=True)
        for parent in (folder.parent, folder.parent.parent):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def stages_code_sha256() -> str:
    """One hash over the code of all four stages and what they import."""
    return code_sha256(*STAGES.values())


def save_stages_closure(root: Path) -> Path:
    """Leave the hashes of every file behind `stages_code_sha256` in the root."""
    return save_closure(root, *STAGES.values())
