"""The header of a GGUF file: its scalar fields, and the name and type of every tensor.

`gguf.GGUFReader` gives the same and makes an array of every token of the vocabulary on the way, which takes seconds to
a quarter of a minute; this reader steps over arrays.
"""

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

from sparse_control.errors import InputError

Scalar = str | bool | int | float
MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """Attributes:
    shape: the fastest-moving dimension first.
    kind: quantisation type, such as `Q4_1`.
    """

    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class GgufHeader:
    """Attributes:
    fields: metadata by key; arrays are left out.
    tensors: by name, in file order.
    """

    fields: dict[str, Scalar]
    tensors: dict[str, GgufTensor]

    @property
    def quantisation(self) -> str:
        """The types of the tensors, the most frequent first, such as `Q4_1, F32, Q8_0`."""
        return ", ".join(name for name, _ in Counter(tensor.kind for tensor in self.tensors.values()).most_common())


class _Cursor:
    """Reads values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.position = data, 0

    def scalar(self, form: str) -> Scalar:
        (value,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        start, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise struct.error("a string runs past the end")
        return self.data[start : self.position].decode()

    def value(self, kind: int) -> Scalar | None:
        """A field's value; None for an array, which is stepped over."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        inner, count = self.scalar("<I"), self.scalar("<Q")
        if inner in _SCALARS:
            self.position += count * struct.calcsize(_SCALARS[inner])
        else:
            for _ in range(count):
                self.value(inner)
        return None


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file; files that stay as they are, are read once in a process.

    Raises:
        InputError: not a GGUF file, or one that ends before its tensors do.
    """
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


@lru_cache(maxsize=16)
def _read(path: Path, size: int, _modified: int, _inode: int) -> GgufHeader:
    with open(path, "rb") as handle:
        if handle.read(4) != MAGIC:
            raise InputError(f"{path}: not a GGUF file (wrong magic bytes)")
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(_Cursor(data), size)
            except (struct.error, KeyError, ValueError, IndexError, OverflowError, RecursionError) as error:
                raise InputError(
                    f"{path}: not a whole GGUF file ({' '.join(str(error).split())}); fetch it again"
                ) from error


def _parse(cursor: _Cursor, size: int) -> GgufHeader:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    cursor.position = len(MAGIC)
    if (format_version := cursor.scalar("<I")) not in (2, 3):
        raise ValueError(f"format version {format_version}, little-endian 2 and 3 are read")
    n_tensors, n_fields = cursor.scalar("<Q"), cursor.scalar("<Q")
    fields: dict[str, Scalar] = {}
    for _ in range(n_fields):
        name = cursor.string()
        if (value := cursor.value(cursor.scalar("<I"))) is not None:
            fields[name] = value
    tensors, end = {}, 0
    for _ in range(n_tensors):
        name = cursor.string()
        shape = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))
        kind = GGMLQuantizationType(cursor.scalar("<I"))
        block, nbytes = GGML_QUANT_SIZES[kind]
        end = max(end, cursor.scalar("<Q") + prod(shape) // block * nbytes)
        tensors[name] = GgufTensor(shape, kind.name)
    alignment = int(fields.get("general.alignment", 32))
    needed = -(-cursor.position // alignment) * alignment + end
    if needed > size:
        raise ValueError(f"its tensors need {needed} bytes, the file has {size}")
    return GgufHeader(fields, tensors)
