"""Query-end states of prompts, and tensors on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from tqdm import tqdm

from sparse_control.errors import InputError
from sparse_control.files import write_bytes
from sparse_control.iss.benchmark import Query
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.stream import residual_stream

TOKENS_PER_BATCH = 1024


@dataclass(frozen=True, eq=False)
class QueryStates:
    """States of N prompts.

    Attributes:
        states: source layer -> (N, d) float32, `h^l` at the last token.
        answered: (N,) whether the model's first answer token is the right one.
    """

    states: dict[int, Tensor]
    answered: np.ndarray


def query_states(lm: LanguageModel, queries: Sequence[Query], layers: Sequence[int], label: str) -> QueryStates:
    """Run every prompt once, in batches of equal token length, so that nothing is padded."""
    encoded = [lm.encode(query.text) for query in queries]
    answers = [lm.tokenizer(" " + query.answer, add_special_tokens=False)["input_ids"][0] for query in queries]
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(index)
    states = {layer: torch.zeros(len(queries), lm.width) for layer in layers}
    answered = np.zeros(len(queries), dtype=bool)
    with tqdm(total=len(queries), desc=label, unit="prompt", mininterval=1.0) as bar:
        for length, indices in sorted(by_length.items()):
            size = max(1, TOKENS_PER_BATCH // length)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                stream = residual_stream(lm, torch.stack([encoded[index] for index in batch]))  # (B, L+1, d)
                for layer in layers:
                    states[layer][batch] = stream[:, layer].float().cpu()
                first = _first_tokens(lm, stream[:, -1])
                answered[batch] = [first[row] == answers[index] for row, index in enumerate(batch)]
                bar.update(len(batch))
    return QueryStates(states, answered)


@torch.no_grad()
def _first_tokens(lm: LanguageModel, final: Tensor) -> list[int]:
    hidden = lm.layout.final_norm(final.to(lm.model.dtype))
    return lm.model.get_output_embeddings()(hidden).argmax(-1).tolist()


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named float32 tensors as safetensors; the same tensors give the same bytes."""
    write_bytes(path, safetensors.torch.save({name: tensor.float().contiguous() for name, tensor in tensors.items()}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors.

    Raises:
        InputError: the file is missing or corrupt.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; run `dvc pull`, or measure it with `run official-iss`")
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error}); restore it with `dvc checkout`") from error
