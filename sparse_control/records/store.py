"""measurements/store.dvc: the estimators of the committed models, by whether DVC's store or git has them.

Factors and their alternatives are in the store, and so are the exact Jacobians and the transported benchmark states of
the layers that alternatives were measured at; every other tensor is measured again where it is wanted. Metadata beside
a tensor is in git, listed here because DVC takes no folder that git knows files of.
"""

from collections.abc import Iterator
from pathlib import Path

import yaml

from sparse_control.files import read_text
from sparse_control.records.manifest import Manifest, read_manifest

NAME = "store.dvc"
TENSORS = ("full_reference", "low_rank_factors", "alternatives", "transported_states")  # folders of jacobian_iss/
BY_LAYER = ("full_reference", "transported_states")  # of these the layers with alternatives alone
FREEZE = "jacobian_iss/freeze_manifest.json"


def kept(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Paths of estimators relative to the root, in order, and whether the store has them.

    Tensors are kept of models with a freeze: those whose official ISS is reported.
    """
    alternatives = {path for path in manifest.binaries if "/jacobian_iss/alternatives/" in path}
    layers = {(path.split("/")[0], Path(path).parent.name) for path in alternatives}
    for path in sorted({*manifest.measurements, *manifest.binaries}):
        model, part, folder = path.split("/")[:3]
        if part != "jacobian_iss" or folder not in TENSORS:
            continue
        if path in manifest.measurements:
            yield path, False
        elif f"{model}/{FREEZE}" not in manifest.measurements:
            continue
        elif folder not in BY_LAYER or (model, Path(path).stem) in layers:
            yield path, True


def store_text(root: Path) -> str:
    """The content of store.dvc for what was measured into `root`; `dvc commit` adds hashes to entries that lack them.

    Raises:
        InputError: no manifest that can be read.
    """
    path = Path(root, NAME)
    old = yaml.safe_load(read_text(path))["outs"] if path.exists() else []
    known = {entry["path"]: entry for entry in old}
    entries = [
        known.get(name, {"path": name} if stored else {"path": name, "cache": False})
        for name, stored in kept(read_manifest(root) or Manifest())
    ]
    return yaml.safe_dump({"outs": entries}, sort_keys=False, width=200)
