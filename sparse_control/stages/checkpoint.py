"""Unfinished work on disk: saved now and then, taken up again, never readable as a result.

Every file says of itself that it is a checkpoint and carries the key of what it was begun with, so that work with
another model, corpus, dtype, settings or code is refused instead of mixed in.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.files import read_json, write_bytes, write_json

KIND = "checkpoint"
SUFFIX = ".checkpoint"

Key = Mapping[str, str]


def _check_key(path: Path, found: Any, wanted: Key) -> None:
    """
    Raises:
        InputError: the file was begun with something else; names what.
    """
    found = found if isinstance(found, dict) else {}
    if differing := [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]:
        name = differing[0]
        raise InputError(
            f"{path}: holds unfinished work with another {name} ({found.get(name)}, now {wanted.get(name)}); "
            f"finish it as it was begun, use another --root, or remove {path.parent} to begin anew"
        )


class Checkpoint:
    """Tensors of one unit of work, in their own dtype.

    Args:
        path: without the suffix that marks it.
        key: what the work depends on; a file with another key is refused.
        every: seconds between two saves.
    """

    def __init__(self, path: Path, key: Key, every: float) -> None:
        self.path = Path(path).with_name(Path(path).name + SUFFIX)
        self._key, self._every = dict(key), every
        self._saved_at = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """What was saved last; None where nothing was.

        Raises:
            InputError: another key, or a file that is not a checkpoint.
        """
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            key = json.loads(metadata["key"])
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise InputError(f"{self.path}: not a readable checkpoint ({error}); remove it") from error
        if metadata.get("kind") != KIND:
            raise InputError(f"{self.path}: is not a checkpoint; remove it")
        _check_key(self.path, key, self._key)
        return tensors

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what was saved."""
        metadata = {"kind": KIND, "key": json.dumps(self._key, sort_keys=True)}
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write_bytes(self.path, safetensors.torch.save(contiguous, metadata=metadata))
        self._saved_at = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last save, or the beginning, is long enough ago."""
        return time.monotonic() - self._saved_at >= self._every

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def save_part(path: Path, key: Key, content: Any) -> None:
    """Keep a finished part, a JSON value, of work that goes on."""
    write_json(path, {"kind": KIND, "key": dict(key), "content": content})


def load_part(path: Path, key: Key) -> Any | None:
    """A kept part; None where there is none.

    Raises:
        InputError: another key, or a file that is not a part.
    """
    if not path.is_file():
        return None
    part = read_json(path)
    if not isinstance(part, dict) or part.get("kind") != KIND or "content" not in part:
        raise InputError(f"{path}: is not a part of unfinished work; remove it")
    _check_key(path, part.get("key"), key)
    return part["content"]
