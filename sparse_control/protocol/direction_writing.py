"""Vectors of the residual stream, one per layer, written as other tools read them; `direction_files` reads them."""

import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sparse_control.errors import InputError
from sparse_control.files import write_bytes
from sparse_control.protocol.direction_files import BLOCK_OUTPUT


def check_writable(path: Path) -> None:
    """Refuse a path that no directions are written to, before they are computed.

    Raises:
        InputError: another ending, or there is something already.
    """
    if path.suffix not in WRITERS:
        raise InputError(f"{path}: write .gguf for repeng and llama.cpp, or .safetensors, .npz or .pt")
    if path.exists():
        raise InputError(f"{path}: is there already; remove it, or write another file")


def write_directions(path: Path, by_layer: Mapping[int, np.ndarray], *, model_hint: str) -> Path:
    """Write a vector per layer for other tools, float32: .gguf for repeng and llama.cpp, .pt for steering-vectors.

    A .safetensors or .npz has arrays `layer.L`; a .pt the two arguments of steering-vectors' `SteeringVector`.

    Args:
        path: ends in .gguf, .safetensors, .npz or .pt.
        by_layer: block index -> (d,), in the units that are added to the output of that block.
        model_hint: the model's type as its configuration names it, such as `llama`; kept in a .gguf.

    Raises:
        InputError: another ending, a file that is there, one that cannot be written, or a vector beyond float32.
        ValueError: no layer.
    """
    path = Path(path)
    if not by_layer:
        raise ValueError("by_layer must hold at least one layer")
    check_writable(path)
    vectors = {}
    for layer, vector in sorted(by_layer.items()):
        with np.errstate(over="ignore"):
            vectors[layer] = np.ascontiguousarray(vector, dtype=np.float32)
        if not np.isfinite(vectors[layer]).all() or not vectors[layer].any():
            raise InputError(f"{path}: layer {layer}: is zero or not finite in float32; nothing is written")
    write_bytes(path, WRITERS[path.suffix](vectors, model_hint))
    return path


def _named(vectors: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"layer.{layer}": vector for layer, vector in vectors.items()}


def _safetensors_bytes(vectors: Mapping[int, np.ndarray], _model_hint: str) -> bytes:
    import safetensors.numpy

    return safetensors.numpy.save(_named(vectors))


def _npz_bytes(vectors: Mapping[int, np.ndarray], _model_hint: str) -> bytes:
    content = io.BytesIO()
    np.savez(content, **_named(vectors))
    return content.getvalue()


def _pt_bytes(vectors: Mapping[int, np.ndarray], _model_hint: str) -> bytes:
    import torch

    content = io.BytesIO()
    activations = {layer: torch.from_numpy(vector) for layer, vector in vectors.items()}
    torch.save({"layer_activations": activations, "layer_type": BLOCK_OUTPUT}, content)
    return content.getvalue()


def _gguf_bytes(vectors: Mapping[int, np.ndarray], model_hint: str) -> bytes:
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vector.gguf"
        writer = GGUFWriter(file, "controlvector")
        writer.add_string("controlvector.model_hint", model_hint)
        writer.add_uint32("controlvector.layer_count", len(vectors))
        for layer, vector in vectors.items():
            writer.add_tensor(f"direction.{layer}", vector)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file.read_bytes()


WRITERS = {".gguf": _gguf_bytes, ".safetensors": _safetensors_bytes, ".npz": _npz_bytes, ".pt": _pt_bytes}
