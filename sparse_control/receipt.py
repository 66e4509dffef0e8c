"""What a stage hands back: the files it wrote, each with its SHA-256."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.records.base import RelativePath, Sha256

_FILES = TypeAdapter(dict[RelativePath, Sha256])


@dataclass(frozen=True)
class Receipt:
    """The files a stage wrote: (path relative to the root, sha256), ordered by path.

    Paths use forward slashes, so that a receipt means the same on every platform.
    """

    files: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, root: Path, paths: Iterable[Path]) -> "Receipt":
        """Hash `paths`, files below `root` (absolute, or relative to `root`).

        Raises:
            InputError: a path lies outside `root`, or cannot be read.
        """
        root = Path(root).resolve()
        files = {}
        for path in paths:
            place = (root / path).resolve()
            if not place.is_relative_to(root):
                raise InputError(f"{path}: lies outside {root}; a stage writes below its root")
            files[place.relative_to(root).as_posix()] = sha256_file(place)
        return cls(tuple(sorted(files.items())))

    def as_json(self) -> dict[str, str]:
        """`{relative path: sha256}`, the form in which results are cached."""
        return dict(self.files)

    @classmethod
    def from_json(cls, value: Any) -> "Receipt":
        """Inverse of `as_json`.

        Raises:
            InputError: `value` is not a mapping of relative paths, none with "..", to hashes.
        """
        try:
            files = _FILES.validate_python(value, strict=True)
        except ValidationError as error:
            raise InputError(f"receipt: expected a mapping of relative paths to SHA-256, got {value!r:.200}") from error
        return cls(tuple(sorted(files.items())))

    def broken(self, root: Path) -> list[str]:
        """The paths that are missing or changed below `root`, in order."""
        root = Path(root)
        return [path for path, sha256 in self.files if not _holds(root / path, sha256)]


def _holds(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_file(path) == sha256
