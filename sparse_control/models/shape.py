"""The shape of a model from its configuration, without its weights and without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError, NotAvailable
from sparse_control.files import read_json
from sparse_control.models.fetch import model_path
from sparse_control.models.gguf_file import read_header
from sparse_control.project import cache_folder
from sparse_control.registry import find_source, registry


@dataclass(frozen=True)
class ModelShape:
    """What sites a model has.

    Attributes:
        name: as the model was asked for.
        architecture: `model_type` of its configuration.
        layers: L.
        width: d.
        heads: query heads per layer; grouped key/value heads are no sites.
        head_dim: width of one head's output.
    """

    name: str
    architecture: str
    layers: int
    width: int
    heads: int
    head_dim: int

    def sites_of(self, component: str) -> int:
        """How many sites of one component the model has at one position."""
        return self.layers * (self.heads if component == "head" else 1)

    def site_width(self, component: str) -> int:
        """Numbers of one activation at a site of that component."""
        return self.head_dim if component == "head" else self.width


def model_shape(name: str) -> ModelShape:
    """The shape of a registry name, a directory, a .gguf file, or a hub id that is in the hub's cache.

    Raises:
        NotAvailable: the model is not on this machine; the message gives the command where there is one.
        InputError: an unknown name, or a configuration that says no shape.
    """
    path = Path(name)
    if name in registry():
        source = find_source(name)
        converted = sorted((cache_folder() / "models").glob(f"{source.sha256[:16]}-transformers-*/config.json"))
        if converted:
            return _of_config(name, converted[-1])
        gguf = model_path(source)
        if not gguf.is_file():
            raise NotAvailable(f"{name}: not fetched yet; run: python -m sparse_control models fetch {name}")
        return _of_gguf(name, gguf)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model {name}: no such file")
        return _of_gguf(name, path)
    if path.is_dir():
        return _of_config(name, path / "config.json")
    if "/" not in name:
        find_source(name)  # tells the known names
    return _of_config(name, _hub_config(name))


def _hub_config(name: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError as error:  # no such id can be
        raise InputError(f"model {name}: is no hub id ({' '.join(str(error).split())})") from error
    if not isinstance(found, str):
        raise NotAvailable(f"{name}: its configuration is not in the hub's cache; a run fetches it")
    return Path(found)


def _of_config(name: str, path: Path) -> ModelShape:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: is no model configuration")
    text = content.get("text_config")
    text = {**content, **text} if isinstance(text, dict) else content
    heads = _number(path, text, "num_attention_heads", "n_head")
    width = _number(path, text, "hidden_size", "n_embd")
    return ModelShape(
        name=name,
        architecture=str(content.get("model_type", "unknown")),
        layers=_number(path, text, "num_hidden_layers", "n_layer"),
        width=width,
        heads=heads,
        head_dim=_number(path, text, "head_dim") if text.get("head_dim") is not None else width // heads,
    )


def _number(path: Path, content: Mapping[str, Any], *names: str) -> int:
    value = next((content[name] for name in names if name in content), None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{path}: {names[0]}: must be a whole number from 1 on, got {value!r}")
    return value


def _of_gguf(name: str, path: Path) -> ModelShape:
    fields = read_header(path).fields
    architecture = str(fields.get("general.architecture"))
    content = {key.removeprefix(f"{architecture}."): value for key, value in fields.items()}
    heads, width = _number(path, content, "attention.head_count"), _number(path, content, "embedding_length")
    declared = "attention.key_length" in content
    return ModelShape(
        name=name,
        architecture=architecture,
        layers=_number(path, content, "block_count"),
        width=width,
        heads=heads,
        head_dim=_number(path, content, "attention.key_length") if declared else width // heads,
    )
