"""Language models: loading, residual stream, sites. Torch is imported when a model is first asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparse_control.models.language_model import LanguageModel
    from sparse_control.models.load import load_model

__all__ = ["LanguageModel", "load_model"]


def __getattr__(name: str) -> Any:
    if name == "load_model":
        from sparse_control.models.load import load_model

        return load_model
    if name == "LanguageModel":
        from sparse_control.models.language_model import LanguageModel

        return LanguageModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
