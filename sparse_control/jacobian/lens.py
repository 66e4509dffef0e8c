"""Published Jacobian-lens files, `{J, n_prompts, source_layers, d_model}`: read as operators, and written.

A lens counts layers by block *outputs*: its layer l is the residual state that leaves block l, here h^(l+1), and
`J[l] @ h` carries it to the final residual stream. Its positions are the `future_sum` convention (`future_sum.py`),
so nothing computed with a lens is official ISS. Files are data: nothing in them is unpickled as code.
"""

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_control.archives import read_archive
from sparse_control.arguments import whole_number
from sparse_control.errors import InputError
from sparse_control.files import write_bytes
from sparse_control.jacobian.operator import DenseOperator

KIND = "jacobian-lens"
POSITION = "future_sum"
KEYS = ("J", "n_prompts", "source_layers", "d_model")
# What tells two lenses of one model apart, or a lens of another model; the four keys say none of it.
RECORDED = (
    "target_layer",
    "norm",
    "skip_first",
    "sequence_length",
    "model",
    "weights_sha256",
    "tokenizer_sha256",
    "corpus_sha256",
    "versions",
)
CHECKPOINT_KEYS = ("jacobian_sum", "n_done", "next_idx")
LARGEST_FILE = 64 << 30  # bytes; 80 layers of a 70B-class model in float32 are 20 GiB
LARGEST_WIDTH = 1 << 16
LARGEST_METADATA, DEEPEST_METADATA = 10_000, 8  # plain values under one key, and how they may nest
RESTORE = "fetch the lens again, or fit it with `lens write`"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Lens:
    """A Jacobian lens in memory.

    Attributes:
        matrices: layer -> (d, d) in the stored dtype; layer l is the output of block l, h^(l+1).
        width: d.
        n_prompts: prompts in the average.
        metadata: the file's further plain values by key; empty for files that hold the four keys alone.
        dtype: of the stored matrices, such as "float16".
        position: always "future_sum".
    """

    matrices: Mapping[int, Tensor]
    width: int
    n_prompts: int
    metadata: Mapping[str, Any]
    dtype: str
    position: str = POSITION

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers there are, ascending, as the file counts them."""
        return tuple(sorted(self.matrices))

    def operator(self, layer: int) -> DenseOperator:
        """`J^l` of one layer as an operator, float32 as read; its products are taken in float64.

        Args:
            layer: as the file counts: the operator acts on h^(layer+1).

        Raises:
            InputError: the lens has no such layer.
        """
        if layer not in self.matrices:
            raise InputError(f"layer {layer}: not in the lens; there are: {', '.join(map(str, self.layers))}")
        return DenseOperator(self.matrices[layer].float())


def read_lens(path: Path) -> Lens:
    """Read a lens file and check all of it.

    `J` may be a mapping of layers to matrices, or one tensor (layers, d, d) in the order of `source_layers`.

    Raises:
        InputError: no lens: missing or unreadable, too large, a fitting checkpoint, a missing key, wrong types, shapes,
            widths or layers, values that are not finite, or another position convention. The message names the file
            and the field.
    """
    path = Path(path)
    content = read_archive(path, largest=LARGEST_FILE, restore=RESTORE)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(KEYS)}; this is no Jacobian lens")
    checkpoint = [key for key in CHECKPOINT_KEYS if key in content]
    if checkpoint or not _is_text(content.get("kind", KIND), KIND):
        found = repr(checkpoint[0]) if checkpoint else f"kind {_brief(content['kind'])}"
        raise InputError(f"{path}: holds {found}: a fitting checkpoint is no lens; finish the fit and use its result")
    for key in KEYS:
        if key not in content:
            raise InputError(f"{path}: {key}: is missing; a Jacobian lens has {', '.join(KEYS)}")
    for key in ("position", "position_reduction"):
        if not _is_text(content.get(key, POSITION), POSITION):
            raise InputError(f"{path}: {key}: {_brief(content[key])} is not {POSITION!r}; only such lenses are read")
    width = _whole(path, "d_model", content["d_model"], 1, LARGEST_WIDTH)
    n_prompts = _whole(path, "n_prompts", content["n_prompts"], 1)
    layers = _layers(path, content["source_layers"])
    matrices = _matrices(path, content["J"], layers, width)
    dtypes = sorted({str(matrix.dtype).removeprefix("torch.") for matrix in matrices.values()})
    metadata = {key: value for key, value in content.items() if key not in KEYS and _is_plain(value)}
    return Lens(matrices=matrices, width=width, n_prompts=n_prompts, metadata=metadata, dtype=", ".join(dtypes))


def check_target(path: Path) -> None:
    """Refuse a path that no lens can be written to, before the work of fitting one.

    Raises:
        InputError: the path is a folder, lies below a `jacobian_iss` folder, which holds official results alone, or in
            a folder that cannot be written.
    """
    path = Path(path)
    if "jacobian_iss" in path.resolve().parts:
        raise InputError(f"{path}: jacobian_iss/ holds official results alone; write lenses elsewhere")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it, such as lens.pt")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written, {folder} is no folder that you may write to; choose another one")


def write_lens(path: Path, matrices: Mapping[int, Tensor], *, n_prompts: int, metadata: Mapping[str, Any]) -> Path:
    """Write a lens file, float32, all of it or nothing; readers of the four keys need not know of the others.

    Args:
        path: anywhere but below a `jacobian_iss` folder.
        matrices: layer -> (d, d); layer l is the output of block l, h^(l+1).
        n_prompts: prompts in the average.
        metadata: plain values; at least `RECORDED`. Kind, position, numbering and dtype are added.

    Raises:
        ValueError: no or bad matrices, a missing or reserved metadata key, or a value that is not plain.
        InputError: the path lies in a `jacobian_iss` folder, or cannot be written.
    """
    path = Path(path)
    check_target(path)
    missing = [key for key in RECORDED if key not in metadata]
    if missing:
        raise ValueError(f"metadata lacks {', '.join(missing)}")
    own = {
        "kind": KIND, "position": POSITION, "layers_are": "block outputs: layer l is h^(l+1)", "dtype": "float32",
    }  # fmt: skip
    for key, value in metadata.items():
        if not isinstance(key, str) or key in KEYS or key in own or key in CHECKPOINT_KEYS:
            raise ValueError(f"metadata must not set {key!r}")
        if not _is_plain(value):
            raise ValueError(f"metadata[{key!r}] must be plain numbers, strings, lists and mappings, got {value!r}")
    if not matrices:
        raise ValueError("matrices must hold at least one layer, got none")
    shape = tuple(next(iter(matrices.values())).shape)
    stored = {}
    for layer in sorted(matrices):
        whole_number("layer", layer, 0)
        matrix = matrices[layer].detach().to("cpu", torch.float32).contiguous().clone()
        if tuple(matrix.shape) != shape or len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"matrices[{layer}] must be (d, d) as the others, got shape {tuple(matrix.shape)}")
        if not torch.isfinite(matrix).all():
            raise ValueError(f"matrices[{layer}] must be finite in float32")
        stored[int(layer)] = matrix
    content = {
        "J": stored, "n_prompts": whole_number("n_prompts", n_prompts, 1), "source_layers": list(stored),
        "d_model": shape[0], **own, **metadata,
    }  # fmt: skip
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())
    return path


def _whole(path: Path, field: str, value: Any, low: int, high: int | None = None) -> int:
    try:
        return whole_number(field, value, low, high)
    except ValueError as error:
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise InputError(f"{path}: {field}: expected an integer {bounds}, got {_brief(value)}") from error


def _layers(path: Path, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or not value:
        raise InputError(f"{path}: source_layers: expected a list of layers, got {_brief(value)}")
    layers = [_whole(path, f"source_layers[{index}]", layer, 0) for index, layer in enumerate(value)]
    if len(set(layers)) < len(layers):
        twice = next(layer for layer in layers if layers.count(layer) > 1)
        raise InputError(f"{path}: source_layers: layer {twice} stands twice; each layer has one matrix")
    return layers


def _matrices(path: Path, value: Any, layers: list[int], width: int) -> dict[int, Tensor]:
    if isinstance(value, Tensor):
        _check_tensor(path, "J", value, (len(layers), width, width))
        return dict(zip(layers, value, strict=True))
    if not isinstance(value, dict):
        raise InputError(f"{path}: J: expected a mapping of layers to matrices or one tensor, got {_brief(value)}")
    for layer in value:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise InputError(f"{path}: J: layer {_brief(layer)} is not an integer")
    if set(value) != set(layers):
        other = min(set(value) ^ set(layers))
        raise InputError(f"{path}: J: its layers are not those of source_layers: {other} is in one of them only")
    for layer, matrix in value.items():
        _check_tensor(path, f"J[{layer}]", matrix, (width, width))
    return {layer: value[layer] for layer in layers}


def _check_tensor(path: Path, field: str, value: Any, shape: tuple[int, ...]) -> None:
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_nested or value.is_meta)
    if not dense or value.dtype not in DTYPES:
        raise InputError(f"{path}: {field}: expected a dense tensor of real numbers, got {_brief(value)}")
    if tuple(value.shape) != shape:
        raise InputError(f"{path}: {field}: shape is {tuple(value.shape)}, d_model and source_layers say {shape}")
    if value.untyped_storage().nbytes() < value.numel() * value.element_size():  # a view that repeats few numbers
        raise InputError(f"{path}: {field}: holds fewer numbers than its shape; save it whole")
    if not torch.isfinite(value).all():
        raise InputError(f"{path}: {field}: holds values that are not finite; fit the lens again")


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text


def _brief(value: Any) -> str:
    if isinstance(value, Tensor) and value.is_nested:  # which has no shape
        return f"a nested {value.dtype} tensor"
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, (str, float, bool, type(None))) or (isinstance(value, int) and abs(value) < 10**18):
        return repr(value)[:80]
    return type(value).__name__


def _is_plain(value: Any) -> bool:
    """Whether a value is finite numbers, strings, lists and mappings of strings alone, and of a size for people."""
    waiting = [(value, 0)]
    for _ in range(LARGEST_METADATA):
        if not waiting:
            return True
        part, depth = waiting.pop()
        if isinstance(part, (dict, list, tuple)):
            if depth == DEEPEST_METADATA or (isinstance(part, dict) and not all(isinstance(key, str) for key in part)):
                return False
            waiting += [(inner, depth + 1) for inner in (part.values() if isinstance(part, dict) else part)]
        elif isinstance(part, float):
            if not math.isfinite(part):
                return False
        elif part is not None and not isinstance(part, (str, int)):
            return False
    return not waiting
