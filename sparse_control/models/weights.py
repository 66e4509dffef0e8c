"""Reading weights and tokenizers with transformers; what is missing, left over or of another shape is refused."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from sparse_control.errors import InputError

NAMED = 3  # tensors of one kind that an error names


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own reports: what matters of them is raised."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def read_model(folder: Path, dtype: str, gguf: str | None = None) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, or of a GGUF file in it; a folder's own code is never run.

    Raises:
        InputError: not a whole, supported model; tensors that are missing, unexpected or of another shape, by name.
    """
    place = folder / gguf if gguf else folder
    where = {"local_files_only": True, "trust_remote_code": False} | ({"gguf_file": gguf} if gguf else {})
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **where)
            model, found = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # so that they are named here
                output_loading_info=True,
                **where,
            )
    except Exception as error:  # the readers raise many kinds; each means that this is no whole, supported model
        raise InputError(f"{place}: cannot be loaded as a language model ({' '.join(str(error).split())})") from error
    check_tensors(place, found)
    return model, tokenizer


def check_tensors(place: Path, found: dict[str, Any]) -> None:
    """Refuse weights that do not fill the model, or do not fit into it.

    Args:
        place: what was read.
        found: transformers' loading info; weights that are tied and buffers that are recomputed are not missing in it.

    Raises:
        InputError: names the tensors.
    """
    mismatched = [f"{name} {tuple(here)} for {tuple(there)}" for name, here, there in sorted(found["mismatched_keys"])]
    kinds = (
        ("lacks", sorted(found["missing_keys"])),
        ("has unknown", sorted(found["unexpected_keys"])),
        ("has of another shape", mismatched),
    )
    problems = [f"{kind} {_named(names)}" for kind, names in kinds if names]
    problems += [" ".join(str(message).split()) for message in found.get("error_msgs") or ()]
    if problems:
        raise InputError(f"{place}: its tensors are not those of its configuration: {'; '.join(problems)}")


def _named(names: Iterable[str]) -> str:
    first, *rest = list(names)
    shown = [first, *rest[: NAMED - 1]]
    left = len(rest) + 1 - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def check_tokenizer(name: str, tokenizer: Any, embeddings: int) -> None:
    """Refuse a tokenizer that cannot be that of the model, or that ends every prompt.

    Args:
        name: of the model.
        embeddings: number of token ids the model embeds.

    Raises:
        InputError: it is empty, it appends a token such as EOS, or it knows ids that the model does not.
    """
    try:
        plain, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    except Exception:  # of the library in Rust, which has no class of its own
        plain, whole = [], []
    if not plain:
        raise InputError(f"{name}: its tokenizer is empty or cannot encode 'a'; add the tokenizer's files")
    if whole[-1] != plain[-1]:
        token = tokenizer.convert_ids_to_tokens(whole[-1])
        raise InputError(
            f"{name}: its tokenizer appends {token!r} to every text, after which no prompt goes on; "
            "save it without (add_eos_token=False)"
        )
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= embeddings:
        raise InputError(
            f"{name}: its tokenizer knows ids up to {largest} ({token!r}), the model embeds 0..{embeddings - 1}; "
            "use the tokenizer the model was trained with"
        )
