"""What makes a model the model it is: one identity over everything that changes its outputs, without loading it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import sha256_file, sha256_json
from sparse_control.models.gguf_file import read_header
from sparse_control.models.locate import Location, base_label, locate
from sparse_control.registry import registry

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
GGUF_LIBRARIES = (*LIBRARIES, "gguf")
WEIGHTS = (".safetensors", ".gguf", "weights")  # ends of the names of files, and of a model made in memory
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelIdentity:
    """Everything a model's outputs depend on, as plain text: two models are the same where `sha256` is.

    It is computed from the files alone (`model_identity`), for keys of work that may be skipped; a loaded model carries
    it (`lm.identity`), and every record keeps it in `provenance.model`, from which `from_provenance` reads it back.
    A key of anything that depends on a model holds `sha256`, or `parts` where a difference is to be told by name.

    Attributes:
        files: SHA-256 of every file that is loaded (weights, adapters are refused, configuration, tokenizer, chat
            template), by its path below the model's folder; of a model made in memory those of its parts.
        quantisation: of the weights file, such as `Q4_1, F32 dequantised to float32`; `none` of plain floats.
        dtype: the model computes in.
        versions: of the libraries that load and run it.
    """

    files: Mapping[str, str]
    quantisation: str
    dtype: str
    versions: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parts(self) -> dict[str, str]:
        """Part -> its hash, name or version, all in one mapping."""
        return dict(self.files) | {"quantisation": self.quantisation, "dtype": self.dtype} | dict(self.versions)

    @cached_property
    def sha256(self) -> str:
        return sha256_json(self.parts)

    def __hash__(self) -> int:
        return hash(self.sha256)

    @cached_property
    def weights_sha256(self) -> str:
        """Of the weights alone: that of the file, or over those of all files in order."""
        hashes = [sha256 for name, sha256 in sorted(self.files.items()) if name.endswith(WEIGHTS)]
        return hashes[0] if len(hashes) == 1 else sha256_json(hashes)

    @cached_property
    def files_sha256(self) -> str:
        """Of the files alone, whatever dtype and libraries they are read with."""
        return sha256_json(dict(self.files))

    def as_provenance(self) -> dict[str, Any]:
        """What a record keeps of it, as JSON."""
        return {
            "identity": self.sha256,
            "files": dict(self.files),
            "quantisation": self.quantisation,
            "dtype": self.dtype,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, Any]) -> "ModelIdentity | None":
        """The identity that a record's `provenance.model` holds; None where a record holds none.

        Raises:
            ValueError: its parts do not have the hash that stands beside them.
        """
        if "identity" not in provenance:
            return None
        versions = {name: text for name, text in provenance["versions"].items() if name in GGUF_LIBRARIES}
        found = cls(provenance["files"], provenance["quantisation"], provenance["dtype"], versions)
        if found.sha256 != provenance["identity"]:
            raise ValueError(f"identity: {provenance['identity']} is not that of its parts, {found.sha256}")
        return found

    def difference(self, other: "ModelIdentity") -> str:
        """What differs, in words: `config.json differs; torch is 2.12.0 and 2.13.0`; empty where nothing does."""
        mine, theirs = self.parts, other.parts
        words = []
        for name in sorted({*mine, *theirs}):
            here, there = mine.get(name), theirs.get(name)
            if here == there:
                continue
            if here is None or there is None:
                words.append(f"only {'the second' if here is None else 'the first'} has {name}")
            elif name in self.files:
                words.append(f"{name} differs")
            else:
                words.append(f"{name} is {here} and {there}")
        return "; ".join(words)


def model_identity(name: str, dtype: str = "float32") -> ModelIdentity:
    """The identity of a model that is not loaded; files are hashed once in a process, while they stay as they are.

    Args:
        name: registry name, hub id, local directory or .gguf file.
        dtype: it will compute in.

    Raises:
        NotAvailable, InputError, UnsupportedModel: as `locate`, or an unknown dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return identity_at(locate(name), dtype)


def identity_at(location: Location, dtype: str) -> ModelIdentity:
    """`model_identity` of files that are located already."""
    files = {name: file_sha256(location.folder / name) for name in location.files}
    if location.source == "registry":
        _check_pinned(location, files)
    libraries = GGUF_LIBRARIES if location.is_gguf else LIBRARIES
    return ModelIdentity(files, _quantisation(location), dtype, _versions(libraries))


def _check_pinned(location: Location, files: Mapping[str, str]) -> None:
    """
    Raises:
        InputError: the file of a registry name has another hash than the pinned one.
    """
    expected = registry()[location.name].sha256
    for name, found in files.items():
        if found != expected:
            raise InputError(
                f"{location.folder / name}: SHA-256 is {found}, expected {expected}; delete the file and fetch it again"
            )


def identity_in_memory(parts: Mapping[str, str], dtype: str) -> ModelIdentity:
    """The identity of a model that no files are known of, by hashes of its parts."""
    return ModelIdentity(parts, "none", dtype, _versions(LIBRARIES))


def model_label(name: str) -> str:
    """What records and folders call a model, without loading it: as `load_model` names it.

    A registry name is itself, a hub id has "--" for its "/". A folder or file is called by the last part of its path
    and the first 8 hex digits of the hash over its files, so that two models of one name, or one model before and after
    its configuration was changed, are measured beside each other.

    Raises:
        NotAvailable, InputError, UnsupportedModel: as `locate`.
    """
    if not Path(name).exists():
        return base_label(name)
    location = locate(name)
    return label_of(location, identity_at(location, DTYPES[0]))


def label_of(location: Location, identity: ModelIdentity) -> str:
    """`model_label`, of files that are located and hashed already."""
    own = base_label(location.name)
    return f"{own}-{identity.files_sha256[:8]}" if location.source in ("directory", "gguf") else own


def file_sha256(path: Path) -> str:
    """SHA-256 of a file; hashed again in this process only where its size, time, inode or path is another.

    Raises:
        InputError: it cannot be read.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return _hashed(path.resolve(), stat.st_size, stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=4096)
def _hashed(path: Path, _size: int, _modified: int, _inode: int) -> str:
    return sha256_file(path)


def _quantisation(location: Location) -> str:
    if location.is_gguf:
        headers = [read_header(location.folder / name) for name in location.files]
        kinds = ", ".join(dict.fromkeys(kind for header in headers for kind in header.quantisation.split(", ")))
        return f"{kinds} dequantised to float32"
    try:
        content = json.loads((location.folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        content = None  # the loader says it better
    declared = content.get("quantization_config") if isinstance(content, dict) else None
    return str(declared.get("quant_method", "unknown")) if isinstance(declared, dict) else "none"


def _versions(libraries: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in libraries:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
