"""Linear operators by their action: `shape`, `matmat`, `rmatmat` (source document, 6)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from sparse_control.arguments import whole_number
from sparse_control.jacobian.guard import check_exact_mode
from sparse_control.jacobian.sweep import pull_back, push_forward
from sparse_control.models.decode import DecodeStep, as_prompt
from sparse_control.models.language_model import LanguageModel

KEPT_BYTES = 1 << 30  # of keys and values that wait for the next pass
PROMPTS_PER_FORWARD = 4  # enough rows for the matrix products to run at their full rate

Array = np.ndarray | Tensor
Product = Callable[[DecodeStep, Mapping[int, Tensor]], dict[int, Tensor]]


class Operator(Protocol):
    """What randomized QB needs of a Jacobian: its products with blocks of vectors."""

    shape: tuple[int, int]
    dtype: torch.dtype

    def matmat(self, vectors: Array) -> Array: ...

    def rmatmat(self, vectors: Array) -> Array: ...


def like(result: Tensor, given: Array) -> Array:
    """`result` (float64) in the kind of `given` and, where that is a floating one, its dtype."""
    if isinstance(given, np.ndarray):
        return result.numpy().astype(given.dtype if given.dtype.kind == "f" else np.float64, copy=False)
    return result.to(given) if given.is_floating_point() else result.to(given.device)


def as_block(vectors: Array, rows: int, name: str = "vectors") -> Tensor:
    """`vectors` (rows, m) as a float64 CPU tensor.

    Raises:
        ValueError: another shape, or non-finite entries.
    """
    block = torch.as_tensor(vectors)
    if block.is_complex():
        raise ValueError(f"{name} must be real, got {block.dtype}")
    block = block.detach().to("cpu", torch.float64)
    if block.ndim != 2 or block.shape[0] != rows:
        raise ValueError(f"{name} must have shape ({rows}, m), got {tuple(block.shape)}")
    if not torch.isfinite(block).all():
        raise ValueError(f"{name} must be finite")
    return block


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
        tensor = torch.as_tensor(matrix)
        if tensor.ndim != 2:
            raise ValueError(f"matrix must have two dimensions, got shape {tuple(tensor.shape)}")
        self.dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.float64
        self.matrix = as_block(tensor, tensor.shape[0], "matrix")
        self.shape = tuple(self.matrix.shape)

    def _forward(self, block: Tensor) -> Tensor:
        return self.matrix @ block

    def _adjoint(self, block: Tensor) -> Tensor:
        return self.matrix.T @ block


class CorpusOperators:
    """The corpus-averaged Jacobians of several layers by their action alone; each pass makes one forward per prompt.

    Keys and values of the prompts are kept from pass to pass while they fit into `kept_bytes`; the others are read anew.

    Raises:
        ValueError: no prompts or layers, a prompt that is not a sequence of at least two token ids, or a layer outside
            the model.
    """

    def __init__(
        self,
        lm: LanguageModel,
        corpus_ids: Sequence[Sequence[int]],
        layers: Sequence[int],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        check_exact_mode(lm)
        if len(corpus_ids) == 0:
            raise ValueError("corpus_ids must hold at least one prompt")
        if len(layers) == 0:
            raise ValueError("layers must name at least one source layer, got none")
        self.lm = lm
        self.layers = [whole_number("layer", layer, 0, lm.n_layers - 1) for layer in layers]
        self.corpus_ids = [as_prompt(lm, prompt, f"corpus_ids[{index}]") for index, prompt in enumerate(corpus_ids)]
        self._kept: list[DecodeStep] = []
        self._free_bytes = kept_bytes

    def _steps(self) -> Iterator[DecodeStep]:
        yield from self._kept
        for start in range(len(self._kept), len(self.corpus_ids), PROMPTS_PER_FORWARD):
            steps = DecodeStep.batch(self.lm, self.corpus_ids[start : start + PROMPTS_PER_FORWARD])
            for index, step in enumerate(steps, start):
                if len(self._kept) == index and step.nbytes <= self._free_bytes:  # kept are the first ones, in order
                    self._kept.append(step)
                    self._free_bytes -= step.nbytes
                yield step

    def prompt_products(self, product: Product, blocks: Mapping[int, Tensor]) -> Iterator[dict[int, Tensor]]:
        """Products of each prompt's own Jacobians, one prompt after another: {l: (d, m)} -> {l: (m, d)}."""
        check_exact_mode(self.lm)
        rows = {layer: block.T.to(self.lm.device, self.lm.model.dtype).contiguous() for layer, block in blocks.items()}
        for step in self._steps():
            yield {layer: products.cpu() for layer, products in product(step, rows).items()}

    def mean(self, product: Product, blocks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Products of the averages, `push_forward` or `pull_back`: {l: (d, m)} -> {l: (d, m)}, float64."""
        totals = {layer: torch.zeros(block.T.shape, dtype=torch.float64) for layer, block in blocks.items()}
        for products in self.prompt_products(product, blocks):
            for layer, rows in products.items():
                totals[layer] += rows
        return {layer: total.T / len(self.corpus_ids) for layer, total in totals.items()}


class CorpusOperator(_Products):
    """The corpus-averaged Jacobian of one layer by its action alone: batched JVPs and VJPs, never a d x d matrix."""

    def __init__(self, lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int) -> None:
        self._layers = CorpusOperators(lm, corpus_ids, [layer])
        self.lm, (self.layer,) = lm, self._layers.layers
        self.shape = (lm.width, lm.width)
        self.dtype = lm.model.dtype

    def _forward(self, block: Tensor) -> Tensor:
        return self._layers.mean(push_forward, {self.layer: block})[self.layer]

    def _adjoint(self, block: Tensor) -> Tensor:
        return self._layers.mean(pull_back, {self.layer: block})[self.layer]


def nested_actions(
    lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int, vectors: Tensor, sizes: Sequence[int]
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
    """
    if len(sizes) == 0:
        raise ValueError("sizes must hold at least one corpus size")
    sizes = {whole_number(f"sizes[{i}]", size, 1, len(corpus_ids)) for i, size in enumerate(sizes)}
    operators = CorpusOperators(lm, corpus_ids[: max(sizes)], [layer], kept_bytes=0)
    block = as_block(torch.as_tensor(vectors).T, lm.width)
    total, means = torch.zeros(block.T.shape, dtype=torch.float64), {}
    for count, products in enumerate(operators.prompt_products(push_forward, {layer: block}), start=1):
        total += products[layer]
        if count in sizes:
            means[count] = total / count
    return means


def corpus_operator(lm: LanguageModel, corpus_ids: Sequence[Sequence[int]], layer: int) -> CorpusOperator:
    """Matrix-free `J^l = (1/n) sum_i J^l_{x_i}`.

    Args:
        corpus_ids: n prompts of token ids, the calibration sequence length each.
        layer: source layer, 0..L-1: h^l enters block l, and `Site("resid", l)` is h^(l+1).

    Raises:
        ValueError: no prompts, a prompt that is not a sequence of at least two token ids, or a layer outside the model.
    """
    return CorpusOperator(lm, corpus_ids, layer)
