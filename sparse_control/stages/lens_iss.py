"""Jacobian lenses beside the official pipeline: fitting one on the corpus, and ISS with one as the transport.

A lens averages over positions (`future_sum`), official ISS is about the last one. Its score has a name of its own, is
returned and never written below `jacobian_iss/`, and no stage reads it.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sparse_control.code_hash import code_sha256
from sparse_control.corpus import Corpus
from sparse_control.errors import InputError
from sparse_control.jacobian.exact import jacobian_sum
from sparse_control.jacobian.future_sum import SKIP_FIRST, future_sum_jacobian
from sparse_control.jacobian.lens import Lens, check_target, write_lens
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.models.language_model import LanguageModel
from sparse_control.settings import Settings
from sparse_control.stages.benchmark_scores import mean_or_none
from sparse_control.stages.calibration import Labels
from sparse_control.stages.checkpoint import Checkpoint
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
    checkpoint_seconds: float = 60.0,
    progress: Callable[[int], None] = lambda prompts: None,
) -> Path:
    """Average exact `future_sum` Jacobians over all windows and write them as a lens.

    The sum is kept beside the lens in `NAME.unfinished/` from the beginning on, so that a path that cannot be written
    costs nothing and a fit that was ended goes on where it was, to the same bytes.

    Args:
        layers: as lenses count, 0..L-2: layer l is the output of block l, h^(l+1).
        path: of the lens file.
        skip_first: first position that counts.
        checkpoint_seconds: between two savings of the sum.
        progress: called with the number of windows that are through beside those told before.

    Raises:
        InputError: a layer outside the model, windows that are too short, a path that cannot be written, or an
            unfinished fit of something else beside it.
    """
    check_target(path)
    for layer in layers:
        if not 0 <= layer <= lm.n_layers - 2:
            raise InputError(f"layers: {layer} is not a lens layer of {lm.name}; use 0..{lm.n_layers - 2}")
    length = windows.input_ids.shape[1]
    if length < skip_first + 2:
        raise InputError(f"skip_first: {skip_first} leaves no positions in windows of {length} tokens; take fewer")
    entering = [layer + 1 for layer in layers]  # as Jacobians count layers
    checkpoint = _unfinished(lm, windows, layers, path, skip_first, checkpoint_seconds)
    begun = checkpoint.load_within("next", 0, len(windows))
    if begun is None:
        check_derivatives(lm, windows.input_ids[0], [min(entering)])
        zero = torch.zeros((len(layers), lm.width, lm.width), dtype=torch.float64)
        begun = {"total": zero, "next": torch.tensor(0)}
        checkpoint.save(begun)
    progress(int(begun["next"]))

    def through(following: int, total: Tensor) -> None:
        if checkpoint.due or following == len(windows):
            checkpoint.save({"total": total, "next": torch.tensor(following)})
        progress(1)

    total = jacobian_sum(
        lm, windows.input_ids, entering, start=int(begun["next"]), stop=len(windows), total=begun["total"],
        progress=through, jacobian=partial(future_sum_jacobian, skip_first=skip_first),
    )  # fmt: skip
    matrices = dict(zip(layers, total / len(windows), strict=True))
    write_lens(path, matrices, n_prompts=len(windows), metadata=_metadata(lm, windows, skip_first))
    checkpoint.path.unlink()
    checkpoint.path.parent.rmdir()
    return path


def _unfinished(
    lm: LanguageModel, windows: Corpus, layers: Sequence[int], path: Path, skip_first: int, seconds: float
) -> Checkpoint:
    """Where the sum is kept while the fit goes on; its key is everything the lens depends on."""
    key = {
        "work": "lens",
        "model": lm.identity.sha256,
        "corpus": windows.sha256,
        "prompts": f"{len(windows)} {hashlib.sha256(np.ascontiguousarray(windows.input_ids)).hexdigest()}",
        "layers": ",".join(map(str, layers)),
        "skip_first": str(skip_first),
        "threads": str(torch.get_num_threads()),
        "code": code_sha256(__name__),
    }
    layout = {"total": ((len(layers), lm.width, lm.width), torch.float64), "next": ((), torch.int64)}
    return Checkpoint(Path(path).with_name(f"{Path(path).name}.unfinished") / "sum", key, layout, seconds)


def _metadata(lm: LanguageModel, windows: Corpus, skip_first: int) -> dict[str, Any]:
    """What the lens says of itself."""
    return {
        "target_layer": lm.n_layers - 1,
        "norm": "before the final norm",
        "skip_first": skip_first,
        "sequence_length": windows.input_ids.shape[1],
        "model": lm.name,
        "weights_sha256": lm.provenance.get("weights_sha256"),
        "tokenizer_sha256": lm.provenance.get("tokenizer_sha256"),
        "model_identity": lm.identity.as_provenance(),
        "corpus_sha256": windows.sha256,
        "versions": lm.provenance.get("versions"),
        "fitted_in": {name: lm.provenance.get(name) for name in ("revision", "dtype", "bos")},
    }


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
