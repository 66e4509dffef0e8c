"""Official ISS recomputed from the transported states that it was scored on (source document, 10)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sparse_control.iss.score import internal_state_stability
from sparse_control.records.benchmark_states import BenchmarkStates, layer_files, read_benchmark_states
from sparse_control.verify.check import Check, Status, named
from sparse_control.verify.reading import Study

SCORES = ("s_plus", "s_minus", "iss")
ROUNDED = 1e-4  # states are kept in single precision, scores were computed in double


def state_checks(study: Study) -> Iterator[Check]:
    """Every layer whose states are there: each fact's scores against those that were saved."""
    if study.iss.summary is None:
        return
    files = layer_files(study.paths)
    for layer, path in files.items():
        yield named(f"ISS of {study.title(path)}", lambda layer=layer, path=path: _scored(study, layer, path))
    if absent := [layer for layer in study.iss.summary.validated_layers if layer not in files]:
        layers = ", ".join(map(str, absent))
        detail = f"no states of layers {layers}; `dvc pull`, or run official-iss, brings those that are kept"
        yield Check(f"ISS from states of {study.name}", "skip", detail)


def _scored(study: Study, layer: int, path: Path) -> tuple[Status, str]:
    penalty = study.iss.freeze.lam_rel[str(layer)].iss if study.iss.freeze else None
    if penalty is None:
        return "skip", "undefined: the frozen regularisation is missing"
    found = recomputed(read_benchmark_states(path), penalty)
    saved = {row.fact: row for row in study.iss.fact_layers if (row.layer, row.metric) == (layer, "ISS")}
    if set(saved) != set(found):
        return "FAIL", f"{len(set(saved) ^ set(found))} facts have states or saved scores alone"
    for fact, scores in found.items():
        for name, value in zip(SCORES, scores, strict=True):
            kept = getattr(saved[fact], name)
            if (kept is None) != (not np.isfinite(value)) or (kept is not None and abs(kept - value) > ROUNDED):
                return "FAIL", f"{fact}: {name}: saved {kept!r}, from states {float(value)!r}"
    return "ok", f"{len(found)} facts"


def recomputed(states: BenchmarkStates, lam_rel: float) -> dict[str, np.ndarray]:
    """Fact -> (s_plus, s_minus, iss), each the mean over sketch seeds; NaN where it is undefined.

    Args:
        states: of one layer.
        lam_rel: the frozen relative regularisation of the layer.
    """
    labels = states.labels
    tables = [
        internal_state_stability(
            z, labels.facts, labels.relations, labels.families, lam_rel=lam_rel, model_width=labels.width
        )
        for z in states.per_seed
    ]
    values = np.mean([table[list(SCORES)].to_numpy(dtype=np.float64) for table in tables], axis=0)
    return dict(zip(tables[0].fact, values, strict=True))
