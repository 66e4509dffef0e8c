"""Where the project lies on this machine, and where it keeps what it downloads."""

import os
import stat
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


def prefect_home() -> Path:
    """Prefect's folder: `$PREFECT_HOME`, else `.prefect` in the project; where that is read-only, in the user's cache.

    Raises:
        InputError: there is no home folder either.
    """
    if chosen := os.environ.get("PREFECT_HOME"):
        return Path(chosen).expanduser().absolute()
    project = project_folder()
    if os.access(project, os.W_OK):
        return project / ".prefect"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise InputError(f"PREFECT_HOME: {project} is read-only, and {error}; set PREFECT_HOME to a folder") from error
    return cache / "sparse-control" / "prefect"


def own_folder(name: str, path: Path) -> Path:
    """A folder of this user that nobody else can write to, made where it is not there.

    Args:
        name: of the setting that chooses it, for the message.
        path: of the folder.

    Returns:
        the path.

    Raises:
        InputError: it cannot be made or written to, or others could have put files into it.
    """
    mend = f"remove it, or set {name} to another folder"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
    except OSError as error:
        raise InputError(f"{name} {path}: cannot be made ({error.strerror}); {mend}") from error
    if hasattr(os, "geteuid") and state.st_uid != os.geteuid():
        raise InputError(f"{name} {path}: belongs to another user; {mend}")
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.name == "posix":
        raise InputError(f"{name} {path}: others may write into it; make it yours alone (chmod 700 {path})")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{name} {path}: cannot be written to; {mend}")
    return path
