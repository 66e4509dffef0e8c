"""Language models: loading, residual stream, sites. Torch is imported when a model is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_control.models.language_model import LanguageModel
    from sparse_control.models.load import load_model

__all__ = ["LanguageModel", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "load_model":
            return import_module("sparse_control.models.load").load_model
        return import_module("sparse_control.models.language_model").LanguageModel
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sparse_control"):
            raise
        hint = "python -m pip install 'sparse-control[measure]', or -e '.[measure]' in a checkout"
        raise ModuleNotFoundError(f"{error.name} is not installed; run: {hint}", name=error.name) from error
