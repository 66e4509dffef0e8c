"""From a name to a checked model: registry names, hub ids, local directories and GGUF files."""

import hashlib
import platform
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sparse_control.arguments import brief, file_path, instance
from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.models.chat import template_arguments
from sparse_control.models.convert import converted
from sparse_control.models.identity import ModelIdentity, identity_at, label_of, model_identity
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.locate import Location, locate
from sparse_control.models.self_check import self_check
from sparse_control.models.weights import check_tokenizer, read_model


def load_model(name: str, dtype: str = "float32", device: str = "auto") -> LanguageModel:
    """Load a model and accept it only after a self-check.

    Args:
        name: registry name (`models list`), local directory, path of a .gguf file, or hub id.
        dtype: one of float32, float64, bfloat16, float16; float32 is the measured default.
        device: a torch device, or "auto": CUDA where there is one, else the CPU.

    Raises:
        ValueError: an argument of the wrong type.
        NotAvailable: a registry name that has not been fetched; the message gives the command.
        InputError: unknown name, dtype or device; a truncated or altered file; tensors that are not those of the
            configuration; a tokenizer that is not the model's.
        UnsupportedModel: the self-check failed; the message says which part.
    """
    file_path("name", name)  # which it is where no registry has it
    instance("dtype", dtype, str)
    device = _device(device)
    identity, location = model_identity(name, dtype), locate(name)
    folder = converted(location, identity) if location.is_gguf else location.folder
    model, tokenizer = read_model(folder, dtype)
    if identity_at(location, dtype) != identity:
        raise InputError(f"{name}: its files changed while they were loaded; load it again")
    model = model.to(device).eval().requires_grad_(False)
    lm = LanguageModel.wrap(model, tokenizer)
    check_tokenizer(name, tokenizer, lm.vocabulary)
    lm = replace(lm, provenance=_provenance(location, identity, tokenizer, device))
    self_check(lm)
    return lm


def _device(device: str | torch.device) -> str:
    """The device by name, "auto" resolved.

    Raises:
        InputError: not a device that this torch computes on.
    """
    if isinstance(device, str) and device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if not isinstance(device, (str, torch.device)):
            raise TypeError("expected its name")
        torch.zeros(1, device=device).cpu()
    except (TypeError, RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"device: {brief(device)} is no device to compute on ({reason}); use auto or cpu") from error
    return str(device)


def _provenance(location: Location, identity: ModelIdentity, tokenizer: Any, device: str) -> dict[str, Any]:
    """What every record says of the model: its name, its identity and how it was run; no path of this machine."""
    sample = tokenizer("a")["input_ids"]
    of_files = identity.weights_sha256 if location.is_gguf else identity.files_sha256
    kept = identity.as_provenance()
    own = {"python": platform.python_version(), "sparse_control": version("sparse-control")}
    return kept | {
        "name": label_of(location, identity),
        "source": location.source,
        "revision": location.folder.name if location.source == "hub" else of_files,
        "weights_sha256": identity.weights_sha256,
        "tokenizer_sha256": _tokenizer_sha256(tokenizer),
        "device": device,
        "bos": sample[0] == tokenizer.bos_token_id,
        "template_arguments": template_arguments(),
        "versions": own | kept["versions"],
    }


def _tokenizer_sha256(tokenizer: Any) -> str:
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(path) for path in tokenizer.save_pretrained(folder)]
            hashes = sorted((path.name, sha256_file(path)) for path in files if path.is_file())
    except Exception as error:  # writers in other languages raise bare ones
        raise InputError(
            f"TMPDIR: the tokenizer cannot be saved there for its hash ({error}); "
            "make room, or set it to another folder"
        ) from error
    return hashlib.sha256(repr(hashes).encode()).hexdigest()
