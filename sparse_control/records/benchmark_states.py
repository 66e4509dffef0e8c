"""Transported states of the benchmark, one file a validated layer: official ISS can be recomputed from these alone.

A file holds the states of every reported sketch seed in the reduced coordinates `y = B h` of its factors, whose cosines
are those of `Q y` (source document, 6.4), as float32, and the labels of their rows in its header.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from sparse_control.errors import InputError
from sparse_control.files import json_line, parse_json
from sparse_control.records.base import Count, Name, Record, validate
from sparse_control.records.paths import ModelPaths

LABELS = "labels"  # key of the header
Names = Annotated[list[Name], Field(min_length=1)]


class RowLabels(Record):
    """What each of the N rows is of, and the width d of the model."""

    facts: Names
    relations: Names
    families: Names
    width: Count

    @model_validator(mode="after")
    def _of_the_same_rows(self) -> "RowLabels":
        if not len(self.facts) == len(self.relations) == len(self.families):
            raise ValueError("facts, relations and families must be of the same rows")
        return self


@dataclass(frozen=True, eq=False)
class BenchmarkStates:
    """The states of one layer.

    Attributes:
        labels: of the N rows.
        per_seed: (N, r) states of each reported sketch seed, in order.
    """

    labels: RowLabels
    per_seed: tuple[np.ndarray, ...]


def layer_file(paths: ModelPaths, layer: int) -> Path:
    """The file of one layer."""
    return paths.states(f"benchmark/{layer}")


def header(labels: RowLabels) -> dict[str, str]:
    """The labels as a safetensors header has them."""
    return {LABELS: json_line(labels.model_dump()).strip()}


def tensor_names(count: int) -> list[str]:
    """Names of the states of `count` sketch seeds."""
    return [f"seed_{index}" for index in range(count)]


def layer_files(paths: ModelPaths) -> dict[int, Path]:
    """Layer -> its file, those that are there."""
    found = layer_file(paths, 0).parent.glob("*.safetensors")
    return {int(path.stem): path for path in sorted(found) if path.stem.isdigit()}


def read_benchmark_states(path: Path) -> BenchmarkStates:
    """Read the states of one layer.

    Raises:
        InputError: the file cannot be read, or is not one of these.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(LABELS, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); restore it with `dvc pull`") from error
    labels = validate(RowLabels, parse_json(text, f"{path}: labels"), f"{path}: labels")
    if not tensors or set(tensors) != set(tensor_names(len(tensors))):
        raise InputError(f"{path}: expected states named seed_0 and so on, got {', '.join(sorted(tensors)) or 'none'}")
    for name, states in tensors.items():
        if states.ndim != 2 or len(states) != len(labels.facts) or not np.isfinite(states).all():
            shape = f"finite numbers of shape ({len(labels.facts)}, r)"
            raise InputError(f"{path}: {name}: expected {shape}, got shape {states.shape}")
    return BenchmarkStates(labels, tuple(tensors[name].astype(np.float64) for name in tensor_names(len(tensors))))
