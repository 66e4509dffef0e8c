"""Factors on disk: `Q.pt`, `B.pt`, `metadata.json` (source document, 6.4, 14, 15). Nothing is unpickled."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_control.archives import read_archive
from sparse_control.errors import InputError
from sparse_control.files import read_json, write_bytes, write_json
from sparse_control.jacobian.qb import Factors

REQUIRED_METADATA = (
    "model",
    "model_revision",
    "tokenizer_revision",
    "layer",
    "hidden_dimension",
    "rank",
    "oversampling",
    "power_iterations",
    "calibration_corpus_size",
    "calibration_sequence_length",
    "random_seed",
    "validation_cosine_median",
    "validation_relative_error_median",
    "iss_rank_difference",
    "validated",
)
LARGEST_FILE = 8 << 30  # bytes; the factors of a 70B-class layer are below 1 GiB
RESTORE = "restore it with `dvc pull`, or measure it with `run official-iss`"


def tensor_bytes(tensor: Tensor) -> bytes:
    """A float32 tensor in `torch.save` form; the same tensor gives the same bytes."""
    buffer = io.BytesIO()
    torch.save(tensor.to(torch.float32).contiguous().clone(), buffer)
    return buffer.getvalue()


def save_factors(folder: Path, factors: Factors, metadata: dict[str, Any]) -> list[Path]:
    """Write the factors (float32) and their metadata; the metadata comes last, so a folder with it is whole.

    Raises:
        ValueError: a required metadata key is missing.
    """
    missing = [key for key in REQUIRED_METADATA if key not in metadata]
    if missing:
        raise ValueError(f"metadata lacks {', '.join(missing)}")
    folder = Path(folder)
    write_bytes(folder / "Q.pt", tensor_bytes(factors.Q))
    write_bytes(folder / "B.pt", tensor_bytes(factors.B))
    write_json(folder / "metadata.json", metadata)
    return [folder / "Q.pt", folder / "B.pt", folder / "metadata.json"]


def _load_tensor(path: Path) -> Tensor:
    tensor = read_archive(path, largest=LARGEST_FILE, restore=RESTORE)
    if (
        not isinstance(tensor, Tensor)
        or tensor.layout != torch.strided
        or tensor.is_meta
        or tensor.dtype != torch.float32
        or tensor.ndim != 2
    ):
        raise InputError(f"{path}: expected one float32 matrix; {RESTORE}")
    if not torch.isfinite(tensor).all():
        raise InputError(f"{path}: holds values that are not finite; {RESTORE}")
    return tensor


def load_factors(folder: Path) -> tuple[Factors, dict[str, Any]]:
    """Read factors and metadata and check that they belong together.

    Raises:
        InputError: a file is missing or corrupt, or shapes and metadata disagree; the message names the file.
    """
    folder = Path(folder)
    metadata = read_json(folder / "metadata.json")
    missing = [key for key in REQUIRED_METADATA if not isinstance(metadata, dict) or key not in metadata]
    if missing:
        raise InputError(f"{folder / 'metadata.json'}: {missing[0]}: is missing")
    for key in ("layer", "hidden_dimension", "rank", "oversampling"):
        if isinstance(metadata[key], bool) or not isinstance(metadata[key], int):
            raise InputError(f"{folder / 'metadata.json'}: {key}: expected an integer, got {repr(metadata[key])[:80]}")
    Q, B = _load_tensor(folder / "Q.pt"), _load_tensor(folder / "B.pt")
    width = metadata["hidden_dimension"]
    columns = min(metadata["rank"] + metadata["oversampling"], width)
    for name, tensor, shape in (("Q.pt", Q, (width, columns)), ("B.pt", B, (columns, width))):
        if tuple(tensor.shape) != shape:
            raise InputError(f"{folder / name}: shape is {tuple(tensor.shape)}, metadata.json says {shape}")
    if float((Q.T @ Q - torch.eye(columns, device="cpu")).abs().max()) > 1e-3:
        raise InputError(f"{folder / 'Q.pt'}: its columns are not orthonormal; {RESTORE}")
    return Factors(Q, B, metadata["rank"], metadata["oversampling"]), metadata
