"""Directions in the formats other tools write, one vector of the residual stream per layer.

In every format layer l means the output of block l, counted from 0, which is `Site("resid", l)` and h^(l+1):

- repeng and llama.cpp control vectors (.gguf, architecture `controlvector`): tensors `direction.L`;
- .safetensors, .npz and weights-only .pt: one vector under each name that ends in a layer number (`layer.12`, `12`), or
  keys that are layer numbers; `steering-vectors` keeps its `layer_activations` so;
- one matrix (L, d) or (L + 1, d): a row per block, or per entry of Hugging Face's `hidden_states`, whose first is the
  embedding and has no block;
- one vector (d,) or (1, d), such as the weights of a probe, with its layer given;
- the decoder of a sparse autoencoder, with its layer and the row (feature) given.

Nothing is unpickled.
"""

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparse_control.errors import InputError
from sparse_control.files import check_size

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel

LARGEST_FILE = 16 << 30  # bytes; the decoder of a sparse autoencoder of a large model is below it
DECODERS = ("W_dec", "decoder.weight", "decoder", "dictionary")
VECTORS = ("coef_", "coef", "direction", "vector", "weight", "steering_vector")
_LAYER_AT_END = re.compile(r"(?:.*\D)?(\d+)")
BLOCK_OUTPUT = "decoder_block"  # what steering-vectors calls it
SUFFIXES = (".gguf", ".safetensors", ".npz", ".pt")


@dataclass(frozen=True, eq=False)
class Directions:
    """Vectors of the residual stream.

    Attributes:
        by_layer: block index -> (d,) float64, added to the output of that block.
        source: what the file holds, in words.
    """

    by_layer: Mapping[int, np.ndarray]
    source: str


def read_directions(path: Path, lm: "LanguageModel", layer: int | None = None, row: int | None = None) -> Directions:
    """The directions of a file, checked against a model (source document, "Score your own intervention").

    Args:
        path: .gguf, .safetensors, .npz or weights-only .pt.
        lm: whose width and number of blocks the vectors must fit.
        layer: of a file that holds one vector or a decoder; of one with several layers, the only one taken.
        row: feature of a sparse autoencoder's decoder.

    Raises:
        InputError: one line: a file of another kind, damaged, ambiguous, not finite, or of another width or depth.
    """
    path = Path(path)
    check_size(path, LARGEST_FILE)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: {path.suffix or 'no ending'}: is not read; use {', '.join(SUFFIXES)} or .json")
    if layer is not None and not 0 <= layer < lm.n_layers:
        raise InputError(f"{path}: layer {layer} is outside 0..{lm.n_layers - 1}, the blocks of {lm.name}")
    arrays = READERS[path.suffix](path)
    if not arrays:
        raise InputError(f"{path}: holds no tensor")
    found = _decoder_row(path, arrays, lm, layer, row) if row is not None else _by_layer(path, arrays, lm, layer)
    for number, vector in found.by_layer.items():
        _check_vector(path, number, vector, lm)
    return found


def _by_layer(path: Path, arrays: dict[str, np.ndarray], lm: "LanguageModel", layer: int | None) -> Directions:
    """One vector per layer: by name, by row, or the only one there is."""
    named = {name: match for name in arrays if (match := _LAYER_AT_END.fullmatch(name))}
    if len(named) == len(arrays) and all(array.ndim == 1 for array in arrays.values()):
        found: dict[int, np.ndarray] = {}
        for name, match in named.items():
            if int(match[1]) in found:
                raise InputError(f"{path}: {name}: a second vector of layer {int(match[1])}; keep one")
            found[int(match[1])] = arrays[name]
        if layer is None:
            return Directions(dict(sorted(found.items())), "a vector per layer")
        if layer not in found:
            raise InputError(f"{path}: has no layer {layer}; there are: {', '.join(map(str, sorted(found)))}")
        return Directions({layer: found[layer]}, f"layer {layer} of a vector per layer")
    name, array = _only(path, arrays, VECTORS)
    if array.ndim == 2 and 1 in array.shape and lm.width in array.shape and lm.width > 1:
        array = array.reshape(-1)
    if array.ndim == 1:
        if layer is None:
            raise InputError(f"{path}: {name}: is one vector; say of which block's output with --layer")
        return Directions({layer: array}, f"the vector {name}")
    if array.ndim == 2 and array.shape[1] == lm.width and array.shape[0] in (lm.n_layers, lm.n_layers + 1):
        offset = array.shape[0] - lm.n_layers  # 1: the embedding comes first
        layers = range(lm.n_layers) if layer is None else (layer,)
        kind = "hidden_states, the embedding first" if offset else "block outputs"
        return Directions({number: array[number + offset] for number in layers}, f"rows of {name}: {kind}")
    shape = "x".join(map(str, array.shape))
    raise InputError(
        f"{path}: {name}: shape {shape} is no vector of width {lm.width} and no matrix of a row per block of {lm.name} "
        f"({lm.n_layers}); of a sparse autoencoder give --row and --layer"
    )


def _decoder_row(
    path: Path, arrays: dict[str, np.ndarray], lm: "LanguageModel", layer: int | None, row: int
) -> Directions:
    """One feature of a decoder (features, d); `decoder.weight` of a linear layer is (d, features)."""
    if layer is None:
        raise InputError(f"{path}: a decoder's row needs its layer; say of which block's output with --layer")
    name, array = _only(path, arrays, DECODERS)
    if array.ndim != 2 or lm.width not in array.shape:
        shape = "x".join(map(str, array.shape))
        raise InputError(f"{path}: {name}: a decoder has one side of width {lm.width}, got shape {shape}")
    of_linear_layer = name.endswith("decoder.weight")
    square = array.shape[0] == array.shape[1]
    rows = array.T if (of_linear_layer if square else array.shape[1] != lm.width) else array
    if not 0 <= row < len(rows):
        raise InputError(f"{path}: row {row} is outside 0..{len(rows) - 1} of {name}")
    return Directions({layer: rows[row]}, f"row {row} of {name}")


def _only(path: Path, arrays: dict[str, np.ndarray], known: tuple[str, ...]) -> tuple[str, np.ndarray]:
    """The array a person means: the only one, or the only one with a name that is known for it."""
    candidates = {name: array for name, array in arrays.items() if array.ndim > 0}
    if len(candidates) != 1:
        candidates = {name: array for name, array in candidates.items() if name.rpartition("/")[2] in known}
    if len(candidates) != 1:
        held = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in list(arrays.items())[:6])
        more = ", ..." if len(arrays) > 6 else ""
        decoder = any(name.rpartition("/")[2] in DECODERS for name in arrays)
        advice = "give --row and --layer of the decoder" if decoder and known is not DECODERS else "keep one"
        raise InputError(
            f"{path}: cannot tell which tensor is meant among {held}{more}; {advice}, or name it {known[0]}"
        )
    return next(iter(candidates.items()))


def _check_vector(path: Path, layer: int, vector: np.ndarray, lm: "LanguageModel") -> None:
    if not 0 <= layer < lm.n_layers:
        raise InputError(f"{path}: layer {layer} is outside 0..{lm.n_layers - 1}, the blocks of {lm.name}")
    if vector.ndim != 1 or len(vector) != lm.width:
        shape = "x".join(map(str, vector.shape))
        raise InputError(f"{path}: layer {layer}: width {shape} is not the width {lm.width} of {lm.name}")
    if not np.isfinite(vector).all():
        raise InputError(f"{path}: layer {layer}: holds a value that is not finite")
    if not vector.any():
        raise InputError(f"{path}: layer {layer}: is all zero and pushes nowhere")


# --- formats --------------------------------------------------------------------------------------------------------


def _numeric(path: Path, name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {name}: expected numbers, got {array.dtype}")
    return array.astype(np.float64)


def _read_gguf(path: Path) -> dict[str, np.ndarray]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    try:
        reader = GGUFReader(path)
        field = reader.get_field("general.architecture")
        architecture = None if field is None else field.contents()
        tensors = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    except Exception as error:  # the reader raises whatever a damaged header leads to
        raise InputError(f"{path}: not a readable GGUF file ({type(error).__name__}: {error})") from error
    if architecture != "controlvector":
        raise InputError(f"{path}: is a GGUF file of architecture {architecture!r}, expected a control vector")
    strange = [name for name in tensors if not re.fullmatch(r"direction\.\d+", name)]
    if strange:
        raise InputError(f"{path}: {strange[0]}: a control vector holds direction.LAYER and nothing else")
    return {name: _numeric(path, name, array) for name, array in tensors.items()}


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as content:
            return {name: _as_float64(path, name, content.get_tensor(name)) for name in content.keys()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(f"{path}: not a readable .npz file of plain arrays ({error})") from error
    return {name: _numeric(path, name, array) for name, array in arrays.items()}


def _read_pt(path: Path) -> dict[str, np.ndarray]:
    import torch

    from sparse_control.archives import read_archive

    content = read_archive(path, largest=LARGEST_FILE, restore="save a tensor or a dict of tensors with torch.save")
    if isinstance(content, torch.Tensor):
        content = {"tensor": content}
    elif isinstance(content, (list, tuple)):
        content = dict(enumerate(content))
    if isinstance(content, dict) and isinstance(content.get("layer_activations"), dict):
        if (kind := content.get("layer_type", BLOCK_OUTPUT)) != BLOCK_OUTPUT:
            raise InputError(f"{path}: layer_type: {kind!r:.60} is not read; vectors must be of {BLOCK_OUTPUT!r}")
        content = content["layer_activations"]
    good = isinstance(content, dict) and all(
        isinstance(name, (str, int)) and not isinstance(name, bool) and isinstance(value, torch.Tensor)
        for name, value in content.items()
    )
    if not good:
        raise InputError(f"{path}: expected a tensor, or tensors by layer, got {type(content).__name__}")
    return {str(name): _as_float64(path, str(name), value) for name, value in content.items()}


def _as_float64(path: Path, name: str, tensor: Any) -> np.ndarray:
    import torch

    if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise InputError(f"{path}: {name}: expected a plain tensor of numbers, got {tensor.dtype}")
    return tensor.detach().double().numpy()


READERS = {".gguf": _read_gguf, ".safetensors": _read_safetensors, ".npz": _read_npz, ".pt": _read_pt}
