"""The six-axis protocol: interventions, selectors and their measurement. Names are loaded when first used."""

from importlib import import_module
from typing import Any

_HOMES = {
    "FeedbackPlan": "sparse_control.protocol.feedback",
    "Site": "sparse_control.models.sites",
    "Intervention": "sparse_control.protocol.intervention",
    "Pair": "sparse_control.protocol.panels.pair",
    "Selection": "sparse_control.protocol.selectors",
    "chosen_sites": "sparse_control.protocol.selectors",
    "coverage_driver": "sparse_control.protocol.selectors",
    "driver_omp": "sparse_control.protocol.selectors",
    "driver_omp_remeasured": "sparse_control.protocol.selectors",
    "generate": "sparse_control.protocol.generation",
    "measure": "sparse_control.protocol.measurement",
    "patched": "sparse_control.protocol.patching",
    "random_supports": "sparse_control.protocol.selectors",
    "read_pairs": "sparse_control.protocol.panels.pair_files",
    "top_k": "sparse_control.protocol.selectors",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
