"""Jacobian lenses beside the official pipeline: fitting one on the corpus, and ISS with one as the transport.

A lens averages over positions (`future_sum`), official ISS is about the last one. Its score has a name of its own, is
returned and never written below `jacobian_iss/`, and no stage reads it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from sparse_control.corpus import Corpus
from sparse_control.errors import InputError
from sparse_control.jacobian.future_sum import SKIP_FIRST, corpus_future_sum
from sparse_control.jacobian.lens import Lens, check_place, write_lens
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.models.language_model import LanguageModel
from sparse_control.settings import Settings
from sparse_control.stages.benchmark_scores import mean_or_none
from sparse_control.stages.calibration import Labels
from sparse_control.stages.queries import benchmark_queries, calibration_queries
from sparse_control.stages.states import query_states

NAME = "Lens-ISS (future_sum; not official ISS)"
COLUMNS = {  # name -> whose states, at whose penalty
    "lens_iss": ("lens", "lens"),
    "raw_iss": ("raw", "raw"),
    "raw_iss_matched_lam": ("raw", "lens"),
}


def fit_lens(
    lm: LanguageModel,
    windows: Corpus,
    layers: Sequence[int],
    path: Path,
    *,
    skip_first: int = SKIP_FIRST,
    progress: Callable[[], None] = lambda: None,
) -> Path:
    """Average exact `future_sum` Jacobians over all windows and write them as a lens.

    Args:
        layers: as lenses count, 0..L-2: layer l is the output of block l, h^(l+1).
        path: of the lens file.
        skip_first: first position that counts.
        progress: called after every window.

    Raises:
        InputError: a layer outside the model, windows that are too short, or a path that cannot be written.
    """
    check_place(path)
    for layer in layers:
        if not 0 <= layer <= lm.n_layers - 2:
            raise InputError(f"layers: {layer} is not a lens layer of {lm.name}; use 0..{lm.n_layers - 2}")
    length = windows.input_ids.shape[1]
    if length < skip_first + 2:
        raise InputError(f"skip_first: {skip_first} leaves no positions in windows of {length} tokens; take fewer")
    check_derivatives(lm, windows.input_ids[0], [min(layers) + 1])
    matrices = corpus_future_sum(
        lm, list(windows.input_ids), [layer + 1 for layer in layers], skip_first=skip_first, progress=progress
    )
    kept = {name: lm.provenance.get(name) for name in ("revision", "dtype", "bos")}
    return write_lens(
        path,
        dict(zip(layers, matrices, strict=True)),
        n_prompts=len(windows),
        metadata={
            "target_layer": lm.n_layers - 1,
            "norm": "before the final norm",
            "skip_first": skip_first,
            "sequence_length": length,
            "model": lm.name,
            "weights_sha256": lm.provenance.get("weights_sha256"),
            "tokenizer_sha256": lm.provenance.get("tokenizer_sha256"),
            "corpus_sha256": windows.sha256,
            "versions": lm.provenance.get("versions"),
            "fitted_in": kept,
        },
    )


def lens_iss(
    lm: LanguageModel,
    lens: Lens,
    settings: Settings,
    *,
    facts: Literal["benchmark", "calibration"] = "benchmark",
    layers: Sequence[int] | None = None,
) -> dict[str, Any]:
    """ISS of `J_lens h` and, beside it, Raw-ISS of the same states (source document, 10 and 11).

    lam_rel is the Ledoit-Wolf shrinkage of the calibration rows, transported or raw, of each layer.

    Args:
        settings: which facts, families and templates, and the lam_rel sweep.
        facts: the set that is scored.
        layers: as the lens counts; None: all of it.

    Returns:
        metric, official (False), position, model, facts, n_facts (those with a defined score), layers; `lens_iss`,
        `raw_iss` and `raw_iss_matched_lam` (Raw-ISS at the lens' lam_rel), each a mean over layers, then over facts, or
        None; the same `per_layer` with both lam_rel; `sweep`: both over settings.iss.lam_rel_sweep.

    Raises:
        InputError: the lens is of another width or depth, or has no such layer.
    """
    layers = lens.layers if layers is None else tuple(layers)
    if lens.width != lm.width or max(lens.layers) >= lm.n_layers:
        raise InputError(
            f"lens: width {lens.width} and layers up to {max(lens.layers)} do not fit {lm.name} "
            f"(width {lm.width}, {lm.n_layers} layers); give the model it was fitted on"
        )
    calibration = calibration_queries(settings)
    queries = calibration if facts == "calibration" else benchmark_queries(settings)
    states_of = [layer + 1 for layer in layers]
    fitted = query_states(lm, calibration, states_of, "calibration states").states
    scored = fitted if facts == "calibration" else query_states(lm, queries, states_of, "benchmark states").states
    own = Labels.of(calibration), Labels.of(queries)
    found = [_layer_scores(lens, layer, *own, fitted[layer + 1], scored[layer + 1], settings) for layer in layers]

    def over_layers(name: str | tuple[float, str]) -> np.ndarray:
        return np.mean([scores[name] for scores, _ in found], axis=0)

    return {
        "metric": NAME,
        "official": False,
        "position": lens.position,
        "model": lm.name,
        "n_prompts": lens.n_prompts,
        "facts": facts,
        "n_facts": int(np.isfinite(over_layers("lens_iss")).sum()),
        "layers": list(layers),
        **{name: mean_or_none(over_layers(name)) for name in COLUMNS},
        "per_layer": [
            {"layer": layer, "state": f"h^{layer + 1}"}
            | {name: mean_or_none(scores[name]) for name in COLUMNS}
            | {f"lam_rel_{kind}": value for kind, value in lam_rel.items()}
            for layer, (scores, lam_rel) in zip(layers, found, strict=True)
        ],
        "sweep": [
            {"lam_rel": value} | {f"{kind}_iss": mean_or_none(over_layers((value, kind))) for kind in ("lens", "raw")}
            for value in settings.iss.lam_rel_sweep
        ],
    }


def _layer_scores(
    lens: Lens, layer: int, calibration: Labels, labels: Labels, fitted: Tensor, scored: Tensor, settings: Settings
) -> tuple[dict[Any, np.ndarray], dict[str, float | None]]:
    """ISS of every fact (F,) by column, and by penalty and kind of state; and the two penalties of the layer.

    Args:
        calibration, labels: of the rows of `fitted` and `scored`.
        fitted, scored: states (N, d) at the layer's output, of the calibration set and of the facts that are scored.
    """
    operator = lens.operator(layer)

    def kinds(states: Tensor) -> dict[str, np.ndarray]:
        raw = states.double().numpy()
        return {"lens": operator.matmat(raw.T).T, "raw": raw}

    lam_rel = {kind: calibration.lam_rel(rows) for kind, rows in kinds(fitted).items()}
    rows, width = kinds(scored), lens.width

    def iss(kind: str, value: float | None) -> np.ndarray:
        return labels.iss(rows[kind], lam_rel=value, width=width).iss.to_numpy()

    scores: dict[Any, np.ndarray] = {name: iss(kind, lam_rel[of]) for name, (kind, of) in COLUMNS.items()}
    scores |= {(value, kind): iss(kind, value) for value in settings.iss.lam_rel_sweep for kind in ("lens", "raw")}
    return scores, lam_rel
