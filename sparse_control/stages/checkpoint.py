"""Unfinished work on disk: saved now and then, taken up again, never readable as a result.

Every file says of itself that it is a checkpoint, carries the key of what it was begun with and the hash of its own
content. Work with another model, corpus, dtype, settings or code is refused instead of mixed in, and so is a file whose
content is not what was saved, or does not fit the work.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_json, write_bytes, write_json
from sparse_control.receipt import Receipt

KIND = "checkpoint"
SUFFIX = ".checkpoint"

Key = Mapping[str, str]
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # of tensors: name -> shape, dtype


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


def _damaged(path: Path, what: str) -> InputError:
    what = " ".join(what.split())[:300]
    return InputError(f"{path}: unfinished work is damaged ({what}); remove the file to do this part again")


class Checkpoint:
    """Tensors of one unit of work, in their own dtype.

    Args:
        path: without the suffix that marks it.
        key: what the work depends on; a file with another key is refused.
        layout: shape and dtype of every tensor.
        every: seconds between two saves.
    """

    def __init__(self, path: Path, key: Key, layout: Layout, every: float) -> None:
        self.path = Path(path).with_name(Path(path).name + SUFFIX)
        self._key, self._layout, self._every = dict(key), dict(layout), every
        self._saved_at = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """What was saved last; None where nothing was.

        Raises:
            InputError: another key, a file that is not a checkpoint, or content that was not saved so or does not fit.
        """
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            key = json.loads(metadata["key"])
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise _damaged(self.path, f"not a readable checkpoint: {error}") from error
        if metadata.get("kind") != KIND:
            raise InputError(f"{self.path}: is not a checkpoint; remove it")
        _check_key(self.path, key, self._key)
        if metadata.get("content") != _content_sha256(tensors):
            raise _damaged(self.path, "its content is not what was saved")
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        if found != self._layout:
            raise _damaged(self.path, f"it holds {_told(found)}, and should hold {_told(self._layout)}")
        for name, tensor in tensors.items():
            if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
                raise _damaged(self.path, f"{name} is not finite")
        return tensors

    def load_within(self, counter: str, low: int, high: int) -> dict[str, Tensor] | None:
        """`load`, with one whole number among the tensors held against its range, both ends included."""
        tensors = self.load()
        if tensors is not None and not low <= int(tensors[counter]) <= high:
            raise _damaged(self.path, f"{counter} is {int(tensors[counter])}, outside {low}..{high}")
        return tensors

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace what was saved."""
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        key = json.dumps(self._key, sort_keys=True)
        metadata = {"kind": KIND, "key": key, "content": _content_sha256(contiguous)}
        write_bytes(self.path, safetensors.torch.save(contiguous, metadata=metadata))
        self._saved_at = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last save, or the beginning, is long enough ago."""
        return time.monotonic() - self._saved_at >= self._every


def _content_sha256(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _told(layout: Layout) -> str:
    return ", ".join(
        f"{name} {tuple(shape)} {str(dtype).removeprefix('torch.')}" for name, (shape, dtype) in sorted(layout.items())
    )[:300]


@dataclass(frozen=True)
class Part:
    """A finished part, a JSON object, of work that goes on, and the files that were written with it.

    Attributes:
        path: of the part.
        key: what the work depends on.
        root: the folder that the files are below.
    """

    path: Path
    key: Key
    root: Path

    def save(self, content: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
        """Keep `content`, and the hashes of the files as they are now."""
        body = {"content": dict(content), "files": Receipt.of(self.root, files).as_json()}
        write_json(self.path, {"kind": KIND, "key": dict(self.key), "sha256": sha256_json(body), **body})

    def load(self, check: Callable[[dict[str, Any]], None]) -> tuple[dict[str, Any], list[Path]] | None:
        """The content and the files that belong to it; None where there is none, or a file is not as it was.

        Args:
            check: raises a ValueError, or another error of its kind, where the content does not fit the work.

        Raises:
            InputError: another key, a file that is not a part, or content that was not saved so or does not fit.
        """
        if not self.path.is_file():
            return None
        part = read_json(self.path)
        if not isinstance(part, dict) or part.get("kind") != KIND:
            raise InputError(f"{self.path}: is not a part of unfinished work; remove it")
        _check_key(self.path, part.get("key"), self.key)
        content, files = part.get("content"), part.get("files")
        if part.get("sha256") != sha256_json({"content": content, "files": files}):
            raise _damaged(self.path, "its content is not what was saved")
        try:
            check(content)
            receipt = Receipt.from_json(files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(self.path, str(error)) from error
        if receipt.broken(self.root):
            return None
        return content, [self.root / name for name, _ in receipt.files]
