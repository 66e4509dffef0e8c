"""Where everything that is measured is kept: the one place that spells file and folder names.

    ROOT/MANIFEST.json, ROOT/code/HASH.json
    ROOT/MODEL/jacobian_iss/...                     the output tree of the ISS source document, section 14
    ROOT/MODEL/six_axis/TASK.SELECTOR.CONDITION.jsonl
    ROOT/MODEL/nulls/NAME/jacobian_iss/...

The committed root is `measurements/` in the project folder; runs of one's own are roots of the same shape.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from sparse_control.code_hash import code_sha256, save_closure

MEASUREMENTS = "measurements"  # the committed root, in the project folder
JACOBIAN_ISS, SIX_AXIS, NULLS = "jacobian_iss", "six_axis", "nulls"  # folders of a model
STAGES = tuple(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official"))


def folder_name(model: str) -> str:
    """The name of a model's folder: its own, with "--" for the "/" of a hub id."""
    return model.replace("/", "--")


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
    null: str = "none"

    @property
    def folder(self) -> Path:
        """The folder that has `jacobian_iss/`: that of the model, or of one of its nulls."""
        own = Path(self.root) / folder_name(self.model)
        return own if self.null == "none" else own / NULLS / self.null

    @property
    def base(self) -> Path:
        return self.folder / JACOBIAN_ISS

    def six_axis(self, task: str, selector: str, condition: str) -> Path:
        """Records of one (task, selector, condition), a line a seed."""
        return self.folder / SIX_AXIS / f"{task}.{selector}.{condition}.jsonl"

    def config(self, name: str) -> Path:
        return self.base / "configs" / f"{name}.yaml"

    def reference(self, layer: int) -> Path:
        return self.base / "full_reference" / self.model / f"{layer}.safetensors"

    @property
    def reference_metadata(self) -> Path:
        return self.base / "full_reference" / self.model / "metadata.json"

    def factors(self, layer: int, seed: int | None = None) -> Path:
        """Folder of a layer's factors; `seed` for those of the further sketch seeds, where their mean is reported."""
        folder = self.base / "low_rank_factors" / self.model / str(layer)
        return folder if seed is None else folder / f"seed_{seed}"

    def alternative(self, estimator: str, layer: int) -> Path:
        return self.base / "alternatives" / estimator / self.model / str(layer)

    def validation(self, name: str) -> Path:
        return self.base / "validation" / name

    def states(self, name: str) -> Path:
        return self.base / "transported_states" / self.model / f"{name}.safetensors"

    @property
    def manifest(self) -> Path:
        return self.base / "freeze_manifest.json"

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
    return code_sha256(*STAGES)


def save_stages_closure(root: Path) -> Path:
    """Leave the hashes of every file behind `stages_code_sha256` in the root."""
    return save_closure(root, *STAGES)
