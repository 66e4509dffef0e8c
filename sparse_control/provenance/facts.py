"""What is told of models, code and settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.code_hash import code_sha256
from sparse_control.records.code import changed_files, counted, read_closure

MODEL_KEYS = ("source", "revision", "weights_sha256", "tokenizer_sha256", "dtype", "device", "bos")


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """What a file is, what is known of how it was made, and the files it was made of."""

    kind: str
    facts: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()


def model_facts(model: Mapping[str, Any]) -> list[str]:
    """Model, hashes, versions."""
    facts = [f"model {model.get('name')}"]
    facts += [f"{name.replace('_', ' ')}: {model[name]}" for name in MODEL_KEYS if model.get(name) is not None]
    if redrawn := model.get("redrawn_weights"):
        facts.append(f"weights redrawn: {pairs(redrawn)}")
    if versions := model.get("versions"):
        facts.append(f"versions: {pairs(versions)}")
    return facts


def pairs(content: Any) -> str:
    """A mapping in one line."""
    if not isinstance(content, Mapping):
        return str(content)
    return ", ".join(f"{key} {value}" for key, value in content.items())


def code_fact(root: Path, sha256: Any) -> str:
    """The code of a measurement, and whether it is what is here."""
    valid = isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256)
    closure = read_closure(root, sha256) if valid else None
    if closure is None:
        return f"code sha256: {sha256} (which files it was is not recorded)"
    try:
        same = code_sha256(*closure.modules) == sha256
    except ValueError:
        same = False
    if same:
        return f"code sha256: {sha256}, as it is here"
    return f"code sha256: {sha256}; since then {counted(changed_files(closure))}"
