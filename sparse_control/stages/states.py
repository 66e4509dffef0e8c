"""Query-end states of prompts, and tensors on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from sparse_control.errors import InputError
from sparse_control.files import sha256_json, write_bytes
from sparse_control.iss.benchmark import Query
from sparse_control.models.batches import group_by_length
from sparse_control.models.continuation import continuation
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import residual_stream
from sparse_control.stages.checkpoint import KIND, Checkpoint
from sparse_control.stages.inputs import Inputs

TOKENS_PER_BATCH = 1024


@dataclass(frozen=True, eq=False)
class QueryStates:
    """States of N prompts.

    Attributes:
        states: source layer -> (N, d) float32, `h^l` at the last token.
        answered: (N,) whether the model's next token begins one of the right answers.
    """

    states: dict[int, Tensor]
    answered: np.ndarray


def query_states(
    lm: LanguageModel,
    queries: Sequence[Query],
    layers: Sequence[int],
    label: str,
    checkpoint: Checkpoint | None = None,
) -> QueryStates:
    """Run every prompt once, in batches of equal token length, so that nothing is padded.

    Args:
        queries: N prompts.
        layers: source layers.
        label: of the progress line.
        checkpoint: where the work is saved now and then, and taken up from.
    """
    encoded = [lm.encode(query.text) for query in queries]
    answers = [_first_answer_ids(lm, query, ids) for query, ids in zip(queries, encoded, strict=True)]
    batches = list(_batches(encoded))
    begun = checkpoint.load_within("batches", 1, len(batches)) if checkpoint else None
    layout = _layout(len(queries), lm.width, layers)
    work = begun or {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in layout.items()}
    done = int(work["batches"])
    with tqdm(total=len(queries), desc=label, unit="prompt", mininterval=1.0) as bar:
        bar.update(sum(map(len, batches[:done])))
        for batch in batches[done:]:
            stream = residual_stream(lm, torch.stack([encoded[index] for index in batch]))  # (B, L+1, d)
            for layer in layers:
                work[str(layer)][batch] = stream[:, layer].float().cpu()
            first = _first_tokens(lm, stream[:, -1])
            right = [first[row] in answers[index] for row, index in enumerate(batch)]
            work["answered"][batch] = torch.tensor(right)
            work["batches"] += 1
            bar.update(len(batch))
            if checkpoint and checkpoint.due:
                checkpoint.save(work)
    return QueryStates({layer: work[str(layer)] for layer in layers}, work["answered"].numpy())


def states_checkpoint(
    inputs: Inputs, stage: str, work: str, queries: Sequence[Query], layers: Sequence[int]
) -> Checkpoint:
    """Where the states of these prompts are kept while they are measured."""
    prompts = sha256_json([[query.text, *query.answers] for query in queries])
    return inputs.checkpoint(stage, work, _layout(len(queries), inputs.lm.width, layers), prompts=prompts)


def _layout(n: int, width: int, layers: Sequence[int]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of everything that is kept of n prompts: states by layer, right answers, batches done."""
    states = {str(layer): ((n, width), torch.float32) for layer in layers}
    return states | {"answered": ((n,), torch.bool), "batches": ((), torch.int64)}


def _batches(encoded: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indices of prompts that share a forward: equal lengths, shortest first."""
    for indices in sorted(group_by_length(encoded), key=lambda group: len(encoded[group[0]])):
        size = max(1, TOKENS_PER_BATCH // len(encoded[indices[0]]))
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def _first_answer_ids(lm: LanguageModel, query: Query, prompt_ids: Tensor) -> set[int]:
    """The tokens that begin the right answers after their prompt; none of an answer that merges with it."""
    texts = (continuation(lm.encode, query.text, prompt_ids, " " + answer) for answer in query.answers)
    return {ids[0] for ids in texts if ids is not None}


@torch.no_grad()
def _first_tokens(lm: LanguageModel, final: Tensor) -> list[int]:
    hidden = lm.layout.final_norm(final.to(lm.model.dtype))
    return lm.model.get_output_embeddings()(hidden).argmax(-1).tolist()


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None) -> None:
    """Write named float32 tensors as safetensors; the same tensors give the same bytes."""
    single = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, safetensors.torch.save(single, header))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors.

    Raises:
        InputError: the file is missing or corrupt.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; run `dvc pull`, or measure it with `run official-iss`")
    try:
        with safe_open(path, framework="pt") as file:
            kind = (file.metadata() or {}).get("kind")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: not a readable safetensors file ({error}); restore it with `dvc checkout`"
        ) from error
    if kind == KIND:
        raise InputError(f"{path}: is unfinished work and no result")
    return tensors
