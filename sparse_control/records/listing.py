"""Files below a folder, in order; nothing that a link leads out of it is ever among them."""

import os
from pathlib import Path

from sparse_control.errors import InputError

UNFINISHED = "checkpoints"  # folder of a run's unfinished work, never a result


def files_below(folder: Path, *suffixes: str) -> list[Path]:
    """The files below `folder` with one of these suffixes; none where there is no such folder.

    Hidden files and folders are left out, and so is unfinished work.

    Raises:
        InputError: a folder below `folder` is a symbolic link, or a file is one that leads out of it.
    """
    found: list[Path] = []
    for path, folders, files in os.walk(folder):
        for name in folders:
            check_below(folder, Path(path, name))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != UNFINISHED)
        found += [Path(path, name) for name in sorted(files) if name.endswith(suffixes) and not name.startswith(".")]
    for file in found:
        if file.is_symlink():
            check_below(folder, file)
    return sorted(file for file in found if file.is_file())


def folders_in(folder: Path) -> list[Path]:
    """The folders directly in `folder`, without hidden ones; none where there is no such folder.

    Raises:
        InputError: one of them is a symbolic link.
    """
    if not Path(folder).is_dir():
        return []
    found = sorted(path for path in Path(folder).iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found:
        check_below(folder, path)
    return found


def check_below(folder: Path, path: Path) -> None:
    """Refuse a path below `folder` that links lead somewhere else; it need not exist.

    Args:
        folder: where everything must be; may itself be reached through a link.
        path: `folder` and something behind it.

    Raises:
        InputError: a folder on the way is a symbolic link, or the path ends outside of `folder`.
    """
    relative = Path(path).relative_to(folder)
    for parent in (path, *list(Path(path).parents)[: len(relative.parts) - 1]):
        if parent.is_symlink() and parent.is_dir():
            raise InputError(f"{parent}: is a symbolic link to a folder; put the folder itself there")
    if not Path(path).resolve().is_relative_to(Path(folder).resolve()):
        raise InputError(f"{path}: leads out of {folder}; put the file itself there")
