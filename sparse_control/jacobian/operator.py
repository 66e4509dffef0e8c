"""Linear operators by their action: `shape`, `matmat`, `rmatmat` (source document, 6)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from sparse_control.arguments import brief, whole_number
from sparse_control.jacobian.guard import check_exact_mode, decode_steps, exact_mode
from sparse_control.jacobian.sweep import pull_back, push_forward
from sparse_control.models.decode import DecodeStep, as_prompt
from sparse_control.models.language_model import LanguageModel
from sparse_control.tensors import as_float64

KEPT_BYTES = 1 << 30  # of keys and values that wait for the next pass
PROMPTS_PER_FORWARD = 4  # enough rows for the matrix products to run at their full rate

NARROW = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Array = np.ndarray | Tensor
Product = Callable[[DecodeStep, Mapping[int, Tensor]], dict[int, Tensor]]


class Operator(Protocol):
    """What randomized QB needs of a Jacobian: its products with blocks of vectors."""

    shape: tuple[int, int]
    dtype: torch.dtype

    def matmat(self, vectors: Array) -> Array: ...

    def rmatmat(self, vectors: Array) -> Array: ...


def like(result: Tensor, given: Any) -> Array:
    """`result` (float64) as a tensor where `given` is one, else as an array; in the dtype of a floating `given`."""
    if isinstance(given, Tensor):
        return result.to(given) if given.is_floating_point() else result.to(given.device)
    floating = isinstance(given, np.ndarray) and given.dtype.kind == "f"
    return result.numpy().astype(given.dtype if floating else np.float64, copy=False)


def as_block(vectors: Any, rows: int, name: str = "vectors") -> Tensor:
    """`vectors` (rows, m) as a float64 CPU tensor.

    Raises:
        ValueError: not a dense array of finite real numbers, or another shape.
    """
    block = as_float64(name, vectors)
    if block.ndim != 2 or block.shape[0] != rows:
        raise ValueError(f"{name} must have shape ({rows}, m), got {tuple(block.shape)}")
    return block


def as_states(h: Any, width: int) -> Tensor:
    """`h` (..., width) as a float64 CPU tensor.

    Raises:
        ValueError: not a dense array of finite real numbers, or another last dimension.
    """
    states = as_float64("h", h)
    if states.ndim == 0 or states.shape[-1] != width:
        raise ValueError(f"h must have last dimension {width}, got shape {tuple(states.shape)}")
    return states


class _Products:
    """`matmat`, `rmatmat` and the scipy view over `_forward` and `_adjoint`, float64 (d, m) -> (d, m)."""

    shape: tuple[int, int]

    def matmat(self, vectors: Array) -> Array:
        """J V for V (d, m), as (d, m) in the kind and dtype of V."""
        return like(self._forward(as_block(vectors, self.shape[1])), vectors)

    def rmatmat(self, vectors: Array) -> Array:
        """J^T V for V (d, m), as (d, m) in the kind and dtype of V."""
        return like(self._adjoint(as_block(vectors, self.shape[0])), vectors)

    def to_scipy(self) -> LinearOperator:
        """The operator as a `scipy.sparse.linalg.LinearOperator` over float64."""
        return LinearOperator(
            self.shape,
            matvec=lambda v: self.matmat(np.asarray(v, dtype=np.float64).reshape(-1, 1))[:, 0],
            rmatvec=lambda v: self.rmatmat(np.asarray(v, dtype=np.float64).reshape(-1, 1))[:, 0],
            matmat=lambda v: self.matmat(np.asarray(v, dtype=np.float64)),
            rmatmat=lambda v: self.rmatmat(np.asarray(v, dtype=np.float64)),
            dtype=np.float64,
        )


class DenseOperator(_Products):
    """The operator of a dense matrix (d, d).

    Args:
        matrix: numpy or torch, finite; products are taken in float64.

    Raises:
        ValueError: not a matrix, or not finite.
    """

    def __init__(self, matrix: Array) -> None:
        self.matrix = as_float64("matrix", matrix)
        if self.matrix.ndim != 2 or 0 in self.matrix.shape:
            raise ValueError(f"matrix must have two dimensions, got shape {tuple(self.matrix.shape)}")
        self.dtype = NARROW.get(str(getattr(matrix, "dtype", "")).removeprefix("torch."), torch.float64)
        self.shape = tuple(self.matrix.shape)

    def _forward(self, block: Tensor) -> Tensor:
        return self.matrix @ block

    def _adjoint(self, block: Tensor) -> Tensor:
        return self.matrix.T @ block


class CorpusOperator(_Products):
    """The corpus-averaged Jacobian of one layer by its action alone: batched JVPs and VJPs, never a d x d matrix.

    Each product makes one forward per prompt. Keys and values of the prompts are kept from one product to the next
    while they fit into `kept_bytes`; the others are read anew.
    """

    def __init__(
        self, lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int, kept_bytes: int = KEPT_BYTES
    ) -> None:
        check_exact_mode(lm)
        self.lm, self.layer = lm, whole_number("layer", layer, 0, lm.n_layers - 1)
        self.corpus_ids = as_corpus(lm, corpus_ids)
        self.shape, self.dtype = (lm.width, lm.width), lm.model.dtype
        self._kept: list[DecodeStep] = []
        self._free_bytes = kept_bytes

    def prompt_products(self, product: Product, block: Tensor) -> Iterator[Tensor]:
        """Products of each prompt's own Jacobian, `push_forward` or `pull_back`, in corpus order: (d, m) -> (m, d).

        To be gone through within `exact_mode`.
        """
        rows = block.T.to(self.lm.device, self.lm.model.dtype).contiguous()
        for step in self._steps():
            yield product(step, {self.layer: rows})[self.layer].cpu()

    def _steps(self) -> Iterator[DecodeStep]:
        yield from self._kept
        for start in range(len(self._kept), len(self.corpus_ids), PROMPTS_PER_FORWARD):
            steps = decode_steps(self.lm, self.corpus_ids[start : start + PROMPTS_PER_FORWARD])
            for index, step in enumerate(steps, start):
                if len(self._kept) == index and step.nbytes <= self._free_bytes:  # kept are the first ones, in order
                    self._kept.append(step)
                    self._free_bytes -= step.nbytes
                yield step

    def _mean(self, product: Product, block: Tensor) -> Tensor:
        total = torch.zeros(block.T.shape, dtype=torch.float64, device="cpu")
        with exact_mode(self.lm):
            for rows in self.prompt_products(product, block):
                total += rows
        return total.T / len(self.corpus_ids)

    def _forward(self, block: Tensor) -> Tensor:
        return self._mean(push_forward, block)

    def _adjoint(self, block: Tensor) -> Tensor:
        return self._mean(pull_back, block)


def as_corpus(lm: LanguageModel, corpus_ids: Any) -> list[Tensor]:
    """Prompts of token ids, (T_i,) each, on the model's device.

    Raises:
        ValueError: not a sequence of prompts, none, or a prompt that the model does not take (names it).
    """
    sequence = isinstance(corpus_ids, (Sequence, np.ndarray, Tensor)) and not isinstance(corpus_ids, (str, bytes))
    if not sequence or getattr(corpus_ids, "ndim", 1) == 0:
        raise ValueError(f"corpus_ids must be a sequence of prompts, got {brief(corpus_ids)}")
    if len(corpus_ids) == 0:
        raise ValueError("corpus_ids must hold at least one prompt")
    return [as_prompt(lm, corpus_ids[index], f"corpus_ids[{index}]") for index in range(len(corpus_ids))]


def corpus_operator(lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int) -> CorpusOperator:
    """Matrix-free `J^l = (1/n) sum_i J^l_{x_i}`.

    Args:
        corpus_ids: n prompts of token ids, the calibration sequence length each.
        layer: source layer, 0..L-1: h^l enters block l, and `Site("resid", l)` is h^(l+1).

    Raises:
        ValueError: no prompts, a prompt that is not a sequence of at least two token ids, or a layer outside the model.
        UnsupportedModel: as `check_exact_mode`.
    """
    return CorpusOperator(lm, corpus_ids, layer)


def nested_actions(
    lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int, vectors: Array, sizes: Sequence[int]
) -> dict[int, Tensor]:
    """Direct actions `(1/n) sum_{i < n} J^l_{x_i} h` of nested corpora, each prompt pushed through once (5.4).

    Args:
        corpus_ids: at least max(sizes) prompts of token ids.
        layer: source layer, 0..L-1.
        vectors: M vectors h (M, d).
        sizes: corpus sizes n >= 1, in any order.

    Returns:
        n -> (M, d) float64 on the CPU.

    Raises:
        ValueError: no sizes, a size beyond the corpus, bad prompts, a layer outside the model, or bad vectors.
        UnsupportedModel: as `check_exact_mode`.
    """
    if len(sizes) == 0:
        raise ValueError("sizes must hold at least one corpus size")
    sizes = {whole_number(f"sizes[{index}]", size, 1, len(corpus_ids)) for index, size in enumerate(sizes)}
    operator = CorpusOperator(lm, corpus_ids[: max(sizes)], layer, kept_bytes=0)
    states = as_float64("vectors", vectors)
    if states.ndim != 2 or states.shape[1] != lm.width:
        raise ValueError(f"vectors must have shape (M, {lm.width}), got {tuple(states.shape)}")
    total, means = torch.zeros(states.shape, dtype=torch.float64, device="cpu"), {}
    with exact_mode(lm):
        for count, rows in enumerate(operator.prompt_products(push_forward, states.T), start=1):
            total += rows
            if count in sizes:
                means[count] = total / count
    return means
