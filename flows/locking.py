"""One run at a time in an output folder. The lock is the operating system's: it ends with the process that holds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from filelock import FileLock, Timeout

from sparse_control.errors import InputError
from sparse_control.files import remove_unfinished

NAME = ".lock"
MEASURED = ("measurements", "jacobian_iss", "code")


@contextmanager
def output_lock(root: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other runs out of `root`, and remove what a killed one left of files it was writing.

    Args:
        root: an existing folder.
        wait: for the run that is there to end, instead of refusing.

    Raises:
        InputError: another run is measuring into `root`, or the folder cannot be written to.
    """
    lock = FileLock(root / NAME, thread_local=False, fallback_to_soft=False)
    try:
        _acquire(lock, root, wait)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"root {root}: cannot be written ({reason}); choose another --root") from error
    try:
        remove_unfinished(root, deep=False)
        for folder in MEASURED:
            remove_unfinished(root / folder)
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, root: Path, wait: bool) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        if not wait:
            raise InputError(
                f"root {root}: another run is measuring into it; let it end, add --wait, or choose another --root"
            ) from error
        click.echo(f"waiting for another run in {root} to end", err=True)
        lock.acquire()
