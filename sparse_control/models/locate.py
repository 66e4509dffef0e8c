"""From the name of a model to its files: a registry name, a hub id, a local folder or a GGUF file. Loads nothing."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparse_control.errors import InputError, NotAvailable, UnsupportedModel
from sparse_control.models.fetch import model_path
from sparse_control.registry import find_source, registry

HUB_ID = re.compile(r"(?!\.)[\w.-]+/[\w.-]+")
# What the loaders of weights, configurations, tokenizers and chat templates read; never code, never pickles.
READ = (".json", ".safetensors", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".bpe")
NOT_READ = ("trainer_state.json", "*_results.json")  # what training leaves beside a checkpoint
TEMPLATES = "additional_chat_templates"  # the one subfolder that tokenizers read
INDEX = "*.safetensors.index.json"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class Location:
    """Where a model's files are.

    Attributes:
        name: as it was asked for.
        source: what kind of name that is.
        folder: that holds the files.
        files: every file that is loaded, relative to `folder`, in order; of a split GGUF all parts.
    """

    name: str
    source: Literal["registry", "gguf", "directory", "hub"]
    folder: Path
    files: tuple[str, ...]

    @property
    def is_gguf(self) -> bool:
        return self.source in ("registry", "gguf")


def base_label(name: str) -> str:
    """What a model is called before its content is looked at: of a folder or a file the last part of its path."""
    path = Path(name)
    if name in registry():
        return name
    if path.is_file():
        return PART.sub(r"\1.gguf", path.name).removesuffix(".gguf")
    return path.resolve().name if path.is_dir() else name.replace("/", "--")


def check_model_name(name: str) -> None:
    """Refuse a model that cannot be named so, or that no record can be called after; nothing is loaded.

    Raises:
        InputError: neither a registry name, a hub id (owner/name), a directory nor a file; or a label that is not of
            printable ASCII.
    """
    label = base_label(name)
    if not (label.isascii() and label.isprintable()):
        raise InputError(
            f"model {name}: records and folders are called {label!r} after it, and need printable ASCII; rename it"
        )
    if name in registry() or Path(name).is_dir() or Path(name).is_file():
        return
    if name.endswith(".gguf"):
        raise InputError(f"model {name}: no such file")
    if not HUB_ID.fullmatch(name):
        find_source(name)  # names the known ones


def locate(name: str) -> Location:
    """The files of a model; a hub id is fetched where the hub's cache lacks it.

    Raises:
        NotAvailable: a registry name that has not been fetched, or a hub id that cannot be had here.
        InputError: an unknown name, a folder without weights, or a part of a split GGUF that is missing.
        UnsupportedModel: an adapter beside the weights, or in their place.
    """
    check_model_name(name)
    path = Path(name)
    if name in registry():
        gguf = model_path(registry()[name])
        if not gguf.is_file():
            raise NotAvailable(f"{name}: not fetched yet; run: python -m sparse_control models fetch {name}")
        return Location(name, "registry", gguf.parent, (gguf.name,))
    if path.is_file():
        return Location(name, "gguf", path.parent, _parts(path))
    if path.is_dir():
        return Location(name, "directory", path, _folder_files(path))
    snapshot = _hub_snapshot(name)
    return Location(name, "hub", snapshot, _folder_files(snapshot))


def _parts(path: Path) -> tuple[str, ...]:
    """The file itself, or all parts of a split one, named by any of them."""
    split = PART.fullmatch(path.name)
    if split is None:
        return (path.name,)
    stem, _, count = split.groups()
    names = tuple(f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1))
    for part in names:
        if not (path.parent / part).is_file():
            raise InputError(
                f"{path.parent / part}: part of a split GGUF file, is missing; put all {count} in one folder"
            )
    return names


def _folder_files(folder: Path) -> tuple[str, ...]:
    _refuse_adapter(folder)
    found = {
        path.name
        for path in folder.iterdir()
        if path.is_file() and path.suffix in READ and not path.name.startswith(".")
        and not any(path.match(pattern) for pattern in NOT_READ)
    }  # fmt: skip
    found |= {f"{TEMPLATES}/{path.name}" for path in folder.glob(f"{TEMPLATES}/*.jinja")}
    for index in folder.glob(INDEX):
        found |= _shards(index)
    if not any(name.endswith(".safetensors") for name in found):
        raise InputError(
            f"{folder}: holds no *.safetensors; pickled weights are not read, save the model as safetensors"
        )
    return tuple(sorted(found))


def _shards(index: Path) -> set[str]:
    """The files an index of shards names, in whatever subfolder.

    Raises:
        InputError: not an index, a shard outside of the folder, or one that is missing.
    """
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        paths = {name: (index.parent / name).resolve() for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{index}: is no index of shards ({' '.join(str(error).split())}); fetch the model again"
        ) from error
    for name, path in sorted(paths.items()):
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise InputError(f"{index}: weight_map: {name!r} is outside of the folder")
        if not path.is_file():
            raise InputError(f"{index.parent / name}: is missing, {index.name} names it; fetch the model again")
    return names


def _refuse_adapter(folder: Path) -> None:
    """Refuse a folder with a PEFT adapter, which no loader here applies.

    Raises:
        UnsupportedModel: names the adapter's file and the command that merges it.
    """
    for name in ADAPTER:
        if (folder / name).is_file():
            load, save = f"M.from_pretrained({str(folder)!r})", f"save_pretrained({f'{folder}-merged'!r})"
            raise UnsupportedModel(
                f"{folder / name}: an adapter, which is not applied; merge it and give the merged folder, with the "
                "tokenizer's files (pip install peft; "
                f'python -c "from peft import AutoPeftModelForCausalLM as M; {load}.merge_and_unload().{save}")'
            )


def _hub_snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[f"*{suffix}" for suffix in READ]))
    except Exception as error:  # the hub client raises many kinds; each means that the id cannot be had here
        raise NotAvailable(
            f"{name}: cannot be had from the hub ({type(error).__name__}); give a local directory, a .gguf file, "
            f"or one of: {', '.join(registry())}"
        ) from error
