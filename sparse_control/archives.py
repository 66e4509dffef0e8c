"""Archives of `torch.save`, read as data: nothing in them is unpickled as code."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from sparse_control.errors import InputError

LARGEST_PICKLE = 16 << 20  # bytes of structure beside the tensors


def read_archive(path: Path, *, largest: int, restore: str) -> Any:
    """The tensors and plain values of an archive that is no larger in memory than on disk, on the CPU.

    Args:
        largest: bytes; a larger file is refused before it is opened.
        restore: what to do about a file that cannot be read, the end of the message.

    Raises:
        InputError: missing, too large, damaged, compressed, or holding other things than tensors and plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; {restore}")
    try:
        size = path.stat().st_size
        if size > largest:
            raise InputError(f"{path}: {size} bytes is more than any such file has ({largest})")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            raise InputError(f"{path}: unpacks to more than it holds; save it with torch.save")
        for member in members:
            if member.filename.endswith("/constants.pkl"):
                raise InputError(f"{path}: is a program (TorchScript), not tensors; {restore}")
            if member.filename.endswith(".pkl") and member.file_size > LARGEST_PICKLE:
                raise InputError(f"{path}: {member.filename}: {member.file_size} bytes is more than tensors need")
    except InputError:
        raise
    except Exception as error:  # the reader raises many kinds; each means that this is no whole archive
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: not a readable tensor file ({reason}); {restore}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, some with the advice to unpickle whatever is there
        raise InputError(
            f"{path}: holds other things than tensors and plain values, or is damaged; {restore}"
        ) from error
