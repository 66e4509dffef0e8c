"""One writer at a time in a root. The lock is the operating system's: it ends with the process that holds it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
from filelock import FileLock, Timeout

from sparse_control.errors import InputError
from sparse_control.files import remove_unfinished
from sparse_control.records.paths import MANIFEST, model_folders

NAME = ".lock"


@contextmanager
def root_lock(root: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other writers out of `root`, and remove what a killed one left of files it was writing.

    Whoever writes into a root holds its lock: runs, single stages, `reproduce`, `make record`. A thread that holds it
    may take it again.

    Args:
        root: made if it is not there.
        wait: for the writer that is there to end, instead of refusing.

    Raises:
        InputError: another command is writing into `root`, or the folder cannot be written to.
    """
    lock = FileLock(Path(root).resolve() / NAME, is_singleton=True, fallback_to_soft=False)
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        _acquire(lock, root, wait)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"root {root}: cannot be written ({reason}); choose another --root") from error
    try:
        remove_unfinished(root)
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, root: Path, wait: bool) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        if not wait:
            raise InputError(
                f"root {root}: another command is writing into it; let it end, add --wait, or choose another --root"
            ) from error
        click.echo(f"waiting for another command in {root} to end", err=True)
        lock.acquire()


@contextmanager
def lock_around(path: Path, *, wait: bool = False) -> Iterator[None]:
    """`root_lock` of the root that a file is to be written into; nothing where it is in none.

    Raises:
        InputError: as `root_lock`.
    """
    above = Path(path).resolve().parents
    root = next((folder for folder in above if (folder / MANIFEST).is_file() and model_folders(folder)), None)
    with nullcontext() if root is None else root_lock(root, wait=wait):
        yield
