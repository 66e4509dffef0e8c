"""Jacobian lenses beside the official pipeline: fitting one on the corpus, and ISS with one as the transport.

A lens averages over positions (`future_sum`), official ISS is about the last one. Its score has a name of its own, is
returned and never written below `jacobian_iss/`, and no stage reads it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparse_control.corpus import Corpus
from sparse_control.errors import InputError
from sparse_control.jacobian.future_sum import SKIP_FIRST, corpus_future_sum
from sparse_control.jacobian.lens import Lens, check_place, write_lens
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.models.language_model import LanguageModel
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Labels
from sparse_control.stages.queries import benchmark_queries, calibration_queries
from sparse_control.stages.states import query_states

NAME = "Lens-ISS (future_sum; not official ISS)"


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
    operators = {layer: lens.operator(layer) for layer in layers}
    calibration = calibration_queries(settings)
    queries = calibration if facts == "calibration" else benchmark_queries(settings)
    states_of = [layer + 1 for layer in layers]
    fitted = query_states(lm, calibration, states_of, "calibration states").states
    scored = fitted if facts == "calibration" else query_states(lm, queries, states_of, "benchmark states").states

    calibration_labels, labels = Labels.of(calibration), Labels.of(queries)
    per_layer, columns, sweep = [], {"lens_iss": [], "raw_iss": [], "raw_iss_matched_lam": []}, {}
    for layer in layers:
        rows = {"lens": _transported(operators[layer], scored[layer + 1]), "raw": scored[layer + 1].double().numpy()}
        lam_rel = {
            "lens": _lam_rel(calibration_labels, _transported(operators[layer], fitted[layer + 1]), layer),
            "raw": _lam_rel(calibration_labels, fitted[layer + 1].double().numpy(), layer),
        }
        found = {
            name: labels.iss(rows[kind], lam_rel=lam_rel[of], width=lm.width).iss.to_numpy()
            for name, kind, of in (
                ("lens_iss", "lens", "lens"), ("raw_iss", "raw", "raw"), ("raw_iss_matched_lam", "raw", "lens"),
            )
        }  # fmt: skip
        for name, values in found.items():
            columns[name].append(values)
        for value in settings.iss.lam_rel_sweep:
            for kind in ("lens", "raw"):
                table = labels.iss(rows[kind], lam_rel=value, width=lm.width)
                sweep.setdefault((value, kind), []).append(table.iss.to_numpy())
        means = {name: _mean(values) for name, values in found.items()}
        penalties = {f"lam_rel_{kind}": value for kind, value in lam_rel.items()}
        per_layer.append({"layer": layer, "state": f"h^{layer + 1}", **means, **penalties})

    totals = {name: _mean(np.mean(values, axis=0)) for name, values in columns.items()}
    return {
        "metric": NAME,
        "official": False,
        "position": lens.position,
        "model": lm.name,
        "n_prompts": lens.n_prompts,
        "facts": facts,
        "n_facts": int(np.isfinite(np.mean(columns["lens_iss"], axis=0)).sum()),
        "layers": list(layers),
        **totals,
        "per_layer": per_layer,
        "sweep": [
            {"lam_rel": value} | {f"{kind}_iss": _mean(np.mean(sweep[value, kind], axis=0)) for kind in ("lens", "raw")}
            for value in settings.iss.lam_rel_sweep
        ],
    }


def _transported(operator, states) -> np.ndarray:
    """(N, d) states carried to the final residual stream, float64."""
    return operator.matmat(states.double().numpy().T).T


def _lam_rel(labels: Labels, rows: np.ndarray, layer: int) -> float:
    try:
        return labels.lam_rel(rows)
    except ValueError as error:
        raise InputError(f"lens: layer {layer}: {error}") from error


def _mean(values: np.ndarray) -> float | None:
    """Mean over the facts that are defined; None where none is."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else None
