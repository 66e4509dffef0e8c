"""`params.yaml`: one strict schema, presets laid over the base, errors that name the file, the field and the value."""

from sparse_control.settings.load import load_settings
from sparse_control.settings.schema import (
    CorpusSettings,
    EstimatorSettings,
    FactsSettings,
    ProtocolSettings,
    Section,
    Settings,
    ValidationSettings,
)

__all__ = [
    "CorpusSettings",
    "EstimatorSettings",
    "FactsSettings",
    "ProtocolSettings",
    "Section",
    "Settings",
    "ValidationSettings",
    "load_settings",
]
