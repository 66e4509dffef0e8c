"""Where the project lies on this machine, and where it keeps what it downloads."""

import os
from pathlib import Path

from sparse_control.errors import InputError


def project_folder() -> Path:
    """The folder of params.yaml: the parent of this package where that has one, else the current folder."""
    beside = Path(__file__).resolve().parent.parent
    return beside if (beside / "params.yaml").is_file() else Path.cwd()


def cache_folder() -> Path:
    """Folder of downloads and what is built of them: `$SPARSE_CONTROL_CACHE`, else `.cache` in the project folder."""
    chosen = os.environ.get("SPARSE_CONTROL_CACHE")
    if not chosen:
        return project_folder() / ".cache"
    try:
        return Path(chosen).expanduser().resolve()
    except RuntimeError as error:
        raise InputError(f"SPARSE_CONTROL_CACHE: {chosen}: {error}; give a path") from error
