"""What the settings are on a model that is not loaded."""

from collections.abc import Collection
from pathlib import Path

from sparse_control.models.identity import model_label
from sparse_control.models.shape import model_shape
from sparse_control.records.paths import ModelPaths
from sparse_control.registry import registry
from sparse_control.settings import Settings

OFFICIAL = ("iss", "estimator")  # sections that stages A to D read and that a model may not fit
NOT_OFFICIAL = {"protocol", "alternatives", "nulls", "preset"}  # parts of the settings that stages A to D do not read


def resolved(settings: Settings, uses: Collection[str] = OFFICIAL) -> Settings:
    """The settings with layers and ranks of their model, whose shape the registry or its configuration tells.

    Raises:
        NotAvailable: the shape of a model of the hub that is not on this machine.
        InputError: as `Settings.for_model`.
    """
    width, n_layers = shape_of(settings.model)
    return settings.for_model(n_layers=n_layers, width=width, uses=uses)


def shape_of(model: str) -> tuple[int, int]:
    """(width, number of blocks) of a model.

    Raises:
        NotAvailable, InputError: as `model_shape`.
    """
    if (source := registry().get(model)) is not None:
        return source.width, source.layers
    shape = model_shape(model)
    return shape.width, shape.layers


def paths_of(root: Path, settings: Settings) -> ModelPaths:
    """Where the files of a study are."""
    return ModelPaths(Path(root), model_label(settings.model), settings.null)
