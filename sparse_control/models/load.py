"""From a name to a checked model: registry names, hub ids, local directories and GGUF files."""

import hashlib
import os
import platform
import re
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from sparse_control.errors import InputError, NotAvailable
from sparse_control.files import read_json, sha256_file, write_json
from sparse_control.models.fetch import model_path, registry
from sparse_control.models.language_model import LanguageModel
from sparse_control.models.self_check import self_check
from sparse_control.project import cache_folder

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"python": platform.python_version(), "sparse_control": version("sparse-control")} | packages


def _load(folder: str, dtype: str, **where: Any) -> tuple[Any, Any]:
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **where)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **where)
    except Exception as error:  # the readers raise many kinds; each means that this is no whole, supported model
        file = where.get("gguf_file")
        place = f"{folder}/{file}" if file else folder
        raise InputError(f"{place}: cannot be loaded as a language model ({' '.join(str(error).split())})") from error
    return model, tokenizer


def _converted(gguf: Path, sha256: str) -> Path:
    """The safetensors form of a GGUF file in the cache, made once per file and library version."""
    folder = cache_folder() / "models" / f"{sha256[:16]}-transformers-{version('transformers')}"
    if (folder / "source.json").is_file() and read_json(folder / "source.json")["sha256"] == sha256:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".convert."))
    try:
        model, tokenizer = _load(str(gguf.parent), "float32", gguf_file=gguf.name)
        # The tensors are plain floats by now; the quantizer left on the model only forbids saving them.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / "source.json", {"file": gguf.name, "sha256": sha256})
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); free disk space or set SPARSE_CONTROL_CACHE"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _gguf(path: Path, expected: str | None = None) -> tuple[Path, str]:
    with open(path, "rb") as handle:
        if handle.read(4) != b"GGUF":
            raise InputError(f"{path}: not a GGUF file (wrong magic bytes)")
    sha256 = sha256_file(path)
    if expected is not None and sha256 != expected:
        raise InputError(f"{path}: SHA-256 is {sha256}, expected {expected}; delete the file and fetch it again")
    return _converted(path, sha256), sha256


def _weights_sha256(folder: Path) -> str:
    """One hash over the weight files of a directory, in name order."""
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"{folder}: holds no *.safetensors; pickled weights are not read, save the model as safetensors"
        )
    for file in files:
        digest.update(sha256_file(file).encode())
    return digest.hexdigest()


def _tokenizer_sha256(tokenizer: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(path) for path in tokenizer.save_pretrained(folder)]
        hashes = sorted((path.name, sha256_file(path)) for path in files if path.is_file())
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


@dataclass(frozen=True)
class Found:
    """Where a model's files are, and what its records call it."""

    folder: Path
    label: str
    source: str
    revision: str
    weights_sha256: str


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client raises many kinds; each means that the id cannot be had here
        raise NotAvailable(
            f"{name}: cannot be had from the hub ({type(error).__name__}); give a local directory, a .gguf file, "
            f"or one of: {', '.join(registry())}"
        ) from error


def _find(name: str) -> Found:
    path = Path(name)
    sources = registry()
    if name in sources:
        gguf = model_path(sources[name])
        if not gguf.is_file():
            raise NotAvailable(f"{name}: not fetched yet; run: python -m sparse_control models fetch {name}")
        folder, sha256 = _gguf(gguf, sources[name].sha256)
        return Found(folder, name, "registry", sha256, sha256)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        folder, sha256 = _gguf(path)
        return Found(folder, path.stem, "gguf", sha256, sha256)
    if path.is_dir():
        sha256 = _weights_sha256(path)
        return Found(path, path.resolve().name, "directory", sha256, sha256)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
        folder = _hub_snapshot(name)
        return Found(folder, name.replace("/", "--"), "hub", folder.name, _weights_sha256(folder))
    raise InputError(
        f"unknown model {name!r}; give one of {', '.join(sources)}, a hub id (owner/name), a directory or a .gguf file"
    )


def load_model(name: str, dtype: str = "float32", device: str = "auto") -> LanguageModel:
    """Load a model and accept it only after a self-check.

    Args:
        name: registry name (`models list`), local directory, path of a .gguf file, or hub id.
        dtype: one of float32, float64, bfloat16, float16; float32 is the measured default.
        device: a torch device, or "auto": CUDA where there is one, else the CPU.

    Raises:
        NotAvailable: a registry name that has not been fetched; the message gives the command.
        InputError: unknown name or dtype, a truncated or altered file.
        UnsupportedModel: the self-check failed; the message says which part.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = _find(name)
    model, tokenizer = _load(str(found.folder), dtype, local_files_only=True)
    model = model.to(device).eval().requires_grad_(False)
    sample = tokenizer("a")["input_ids"]
    provenance = {
        "name": found.label,
        "source": found.source,
        "revision": found.revision,
        "weights_sha256": found.weights_sha256,
        "tokenizer_sha256": _tokenizer_sha256(tokenizer),
        "dtype": dtype,
        "device": device,
        "bos": bool(sample) and sample[0] == tokenizer.bos_token_id,
        "versions": _versions(),
    }
    lm = LanguageModel.wrap(model, tokenizer, provenance)
    self_check(lm)
    return lm
