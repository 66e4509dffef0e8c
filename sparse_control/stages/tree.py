"""Where the stages read and write: the output tree of the source document, section 14."""

from dataclasses import dataclass
from pathlib import Path

from sparse_control.code_hash import code_sha256


@dataclass(frozen=True)
class Tree:
    """Paths of one model below `<root>/jacobian_iss`."""

    root: Path
    model: str

    @property
    def base(self) -> Path:
        return Path(self.root) / "jacobian_iss"

    def config(self, name: str) -> Path:
        return self.base / "configs" / f"{name}.yaml"

    def reference(self, layer: int) -> Path:
        return self.base / "full_reference" / self.model / f"{layer}.safetensors"

    @property
    def reference_metadata(self) -> Path:
        return self.base / "full_reference" / self.model / "metadata.json"

    def factors(self, layer: int) -> Path:
        return self.base / "low_rank_factors" / self.model / str(layer)

    def validation(self, name: str) -> Path:
        return self.base / "validation" / name

    def states(self, name: str) -> Path:
        return self.base / "transported_states" / self.model / f"{name}.safetensors"

    @property
    def manifest(self) -> Path:
        return self.base / "freeze_manifest.json"

    def result(self, name: str) -> Path:
        return self.base / name


def stages_code_sha256() -> str:
    """One hash over the code of all four stages and what they import."""
    return code_sha256(*(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official")))
