"""Every record of a root, by model: what tables, figures and checks are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse_control.records.jacobian_iss import IssRecords, read_iss
from sparse_control.records.manifest import check_root
from sparse_control.records.paths import ModelPaths, folder_name, model_folders
from sparse_control.records.published import read_published
from sparse_control.records.six_axis import Measurement
from sparse_control.records.six_axis_files import read_model_measurements
from sparse_control.registry import registry


@dataclass(frozen=True, kw_only=True)
class ModelRecords:
    """What was measured on one model; what was not is empty."""

    name: str  # as records call it
    six_axis: tuple[Measurement, ...] = ()
    iss: IssRecords = field(default_factory=IssRecords)
    nulls: Mapping[str, IssRecords] = field(default_factory=dict)  # name of the null -> its records


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything the tables are made of."""

    models: tuple[ModelRecords, ...] = ()  # those of the registry first, in its order, then the others by name
    published: Mapping[str, Any] = field(default_factory=dict)  # paper/published.yaml


def read_records(root: Path, project: Path) -> Records:
    """Read every record below `root`, and the published figures of the project folder.

    Raises:
        InputError: names the file, the line, the field and the value; also for a folder without measurements, and for
            one that links lead out of.
    """
    check_root(root)
    models = tuple(read_model(ModelPaths(root, model)) for model in models_of(root))
    return Records(models=models, published=read_published(project))


def models_of(root: Path) -> list[str]:
    """The folders of `root` that hold a model's measurements: models of the registry in its order, others by name.

    Raises:
        InputError: a folder among them is a symbolic link.
    """
    order = {folder_name(model): index for index, model in enumerate(registry())}
    return sorted(model_folders(root), key=lambda folder: (order.get(folder, len(order)), folder))


def read_model(paths: ModelPaths) -> ModelRecords:
    """Read every record of a model and of its nulls.

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    six_axis, iss = read_model_measurements(paths), read_iss(paths)
    nulls = {null.null: read_iss(null) for null in paths.nulls}
    return ModelRecords(name=model_name(paths.model, six_axis, iss), six_axis=six_axis, iss=iss, nulls=nulls)


def model_name(folder: str, six_axis: tuple[Measurement, ...], iss: IssRecords) -> str:
    """What the records in a model's folder call it; the name of the folder where they say nothing else."""
    named = [*(record.model for record in six_axis[:1]), *([iss.model] if iss.model else [])]
    return next((name for name in named if folder_name(name) == folder), folder)
