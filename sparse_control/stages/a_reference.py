"""Stage A: exact finite-corpus Jacobians and what every candidate rank loses against them (source document, 5)."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, write_json
from sparse_control.jacobian.actions import action_agreement, frobenius_error
from sparse_control.jacobian.alternatives import svd_factors
from sparse_control.jacobian.exact import jacobian_sum
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.jacobian.qb import Factors
from sparse_control.models import LanguageModel
from sparse_control.receipt import Receipt
from sparse_control.records.paths import ModelPaths, save_stages_closure, stages_code_sha256
from sparse_control.settings import EstimatorSettings, Settings
from sparse_control.stages.calibration import Calibration, calibration_queries, load_calibration
from sparse_control.stages.checkpoint import Checkpoint, load_part, save_part
from sparse_control.stages.inputs import Inputs, open_inputs
from sparse_control.stages.sketches import LayerEstimators, load_reference
from sparse_control.stages.states import load_tensors, query_states, save_tensors

NAME = "reference"
COMPARISON = "small_model_full_comparison.json"


def blocks(settings: Settings) -> list[tuple[int, int]]:
    """The corpus in units of work, (start, stop): every corpus size, and half the largest, ends one."""
    estimator = settings.estimator
    if not estimator.reference:
        return []
    largest = estimator.corpus_sizes[-1]
    ends = sorted({*estimator.corpus_sizes, largest // 2})
    units = []
    for start, end in pairwise([0, *ends]):
        step = estimator.block_prompts
        units += [(first, min(first + step, end)) for first in range(start, end, step)]
    return units


def pending_blocks(*, corpus: Path, root: Path, settings: Settings) -> list[tuple[int, int]]:
    """The blocks that `run` would still have to sum; none once the references stand.

    Raises:
        InputError: as `open_inputs`, or unfinished work that was begun with something else.
    """
    inputs = open_inputs(corpus, root, settings)
    if _references_stand(inputs):
        return []
    return [unit for unit in blocks(settings) if _finished_block(inputs, settings, unit) is None]


def run_block(*, corpus: Path, root: Path, settings: Settings, start: int, stop: int) -> Receipt:
    """Sum the Jacobians of one block of prompts, all layers in one sweep each; taken up where it was left.

    Raises:
        InputError: as `open_inputs`, a Jacobian that is not finite, or unfinished work begun with something else.
    """
    if (start, stop) not in blocks(settings):
        raise ValueError(f"start, stop must be one of blocks(settings), got {(start, stop)}")
    inputs = open_inputs(corpus, root, settings)
    _sum_block(inputs, settings, (start, stop), lambda: None)
    return Receipt.of(root, [_block(inputs, settings, (start, stop)).path])


def run(*, corpus: Path, root: Path, settings: Settings, keep_unfinished: bool = False) -> Receipt:
    """Measure calibration states and, where the settings ask for them, references and the rank comparison.

    Args:
        corpus: a built corpus folder.
        root: results root.
        settings: one preset.
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: ranks or layers that do not fit the model, a corpus that is too small, a model not fetched, or
            unfinished work in `root` that was begun with something else.
    """
    inputs = open_inputs(corpus, root, settings)
    written = [_save_calibration_states(inputs, settings)]
    if settings.estimator.reference:
        if not _references_stand(inputs):
            _save_references(inputs, settings)
        layers = _reference_layers(inputs.lm, settings)
        written += [*map(inputs.paths.reference, layers), inputs.paths.reference_metadata]
        written.append(_save_comparison(inputs, settings, layers))
    save_stages_closure(root)
    if not keep_unfinished:
        inputs.paths.finish(NAME)
    return Receipt.of(root, written)


def _reference_layers(lm: LanguageModel, settings: Settings) -> list[int]:
    return list(range(lm.n_layers)) if settings.estimator.reference_layers == "all" else settings.iss.layers


def _save_calibration_states(inputs: Inputs, settings: Settings) -> Path:
    path = inputs.paths.states("calibration")
    unfinished = inputs.paths.unfinished(NAME) / "calibration_states"
    checkpoint = Checkpoint(unfinished, inputs.key, settings.estimator.checkpoint_seconds)
    states = query_states(
        inputs.lm, calibration_queries(settings), _state_layers(inputs.lm, settings), "calibration states", checkpoint
    )
    save_tensors(path, {str(layer): rows for layer, rows in states.states.items()})
    return path


def _state_layers(lm: LanguageModel, settings: Settings) -> list[int]:
    return _reference_layers(lm, settings) if settings.estimator.reference else settings.iss.layers


# --- references -----------------------------------------------------------------------------------------------------


def _block(inputs: Inputs, settings: Settings, unit: tuple[int, int]) -> Checkpoint:
    name = f"prompts_{unit[0]}-{unit[1]}"
    return Checkpoint(inputs.paths.unfinished(NAME) / name, inputs.key, settings.estimator.checkpoint_seconds)


def _finished_block(inputs: Inputs, settings: Settings, unit: tuple[int, int]) -> Tensor | None:
    """(number of layers, d, d) of a block that is through, else None."""
    saved = _block(inputs, settings, unit).load()
    return saved["total"] if saved and int(saved["next"]) == unit[1] else None


def _sum_block(inputs: Inputs, settings: Settings, unit: tuple[int, int], on_prompt) -> Tensor:
    checkpoint, (start, stop) = _block(inputs, settings, unit), unit
    begun = checkpoint.load() or {"total": None, "next": torch.tensor(start)}
    first = int(begun["next"])
    if first == 0:  # once per fit, before the hours
        check_derivatives(inputs.lm, inputs.windows.input_ids[0], _reference_layers(inputs.lm, settings))
    for _ in range(first - start):
        on_prompt()

    def progress(following: int, total: Tensor) -> None:
        if checkpoint.due or following == stop:
            checkpoint.save({"total": total, "next": torch.tensor(following)})
        on_prompt()

    return jacobian_sum(
        inputs.lm,
        inputs.windows.first(stop).input_ids,
        _reference_layers(inputs.lm, settings),
        start=first,
        stop=stop,
        total=begun["total"],
        progress=progress,
    )


def _save_references(inputs: Inputs, settings: Settings) -> None:
    """Add up the blocks in corpus order, so that interrupted and distributed runs give the same bytes."""
    sizes, layers = settings.estimator.corpus_sizes, _reference_layers(inputs.lm, settings)
    n, half = sizes[-1], sizes[-1] // 2
    inputs.windows.first(n)
    total, first_half, means = 0.0, None, {}
    with tqdm(total=n, desc="exact Jacobians", unit="prompt") as bar:
        for unit in blocks(settings):
            total = total + _sum_block(inputs, settings, unit, bar.update)
            if unit[1] == half:
                first_half = total
            if unit[1] in sizes:
                means[unit[1]] = total / unit[1]
    halves = first_half / half, (total - first_half) / (n - half)
    files = {}
    for index, layer in enumerate(layers):
        path = inputs.paths.reference(layer)
        tensors = {f"n{size}": mean[index] for size, mean in means.items()}
        save_tensors(path, tensors | {f"half{number}": mean[index] for number, mean in enumerate(halves)})
        files[str(layer)] = sha256_file(path)
    metadata = {
        "kind": "exact finite-corpus Jacobian",
        "position": "final",
        "target_layer": inputs.lm.n_layers,
        "norm": "before the final norm",
        "layers": layers,
        "corpus_sizes": sizes,
        "halves": "the first and the second half of the largest corpus",
        "corpus_sha256": inputs.windows.sha256,
        "corpus_ids": list(inputs.windows.ids[:n]),
        "null": settings.null,
        "calibration_sequence_length": settings.corpus.sequence_length,
        "model": inputs.lm.provenance,
        "code_sha256": stages_code_sha256(),
        "key": dict(inputs.key),
        "files": files,
    }
    write_json(inputs.paths.reference_metadata, metadata)


def _references_stand(inputs: Inputs) -> bool:
    """Whether whole references made from the same things are there already."""
    path = inputs.paths.reference_metadata
    try:
        metadata = read_json(path) if path.is_file() else {}
        return metadata.get("key") == dict(inputs.key) and all(
            sha256_file(inputs.paths.reference(int(layer))) == sha256 for layer, sha256 in metadata["files"].items()
        )
    except InputError:
        return False


# --- comparison -----------------------------------------------------------------------------------------------------


def _save_comparison(inputs: Inputs, settings: Settings, layers: list[int]) -> Path:
    paths = inputs.paths
    calibration = load_calibration(paths, settings)
    rows, floors = [], []
    for layer in tqdm(layers, desc="rank comparison", unit="layer"):
        part = paths.unfinished(NAME) / f"comparison_{layer}.json"
        content = load_part(part, inputs.key)
        if content is None:
            content = _compare_layer(paths, layer, calibration, settings)
            save_part(part, inputs.key, content)
        rows += content["rows"]
        floors.append(content["noise_floor"])
    path, size = paths.validation(COMPARISON), settings.estimator.corpus_sizes[-1]
    write_json(path, {"model": paths.model, "corpus_size": size, "rows": rows, "noise_floor": floors})
    return path


def _compared(settings: EstimatorSettings, in_window: bool) -> Iterator[tuple[str, int, int, int]]:
    """(probe, oversampling, power iterations, rank): everything in the window, plain estimators elsewhere."""
    powers = settings.power_iterations if in_window else settings.power_iterations[:1]
    for oversampling in settings.oversampling:
        for power in powers:
            yield from ((settings.probe, oversampling, power, rank) for rank in settings.ranks)
    other = "rademacher" if settings.probe == "gaussian" else "gaussian"
    for oversampling in settings.oversampling:
        yield from ((other, oversampling, settings.power_iterations[0], rank) for rank in settings.ranks)


def _compare_layer(paths: ModelPaths, layer: int, calibration: Calibration, settings: Settings) -> dict:
    """One row per estimator with the statistics of section 5.4, preregistered seed; and the noise floor."""
    size, seed = settings.estimator.corpus_sizes[-1], settings.estimator.sketch_seeds[0]
    matrix = load_reference(paths.reference(layer), [size])[size]
    width = matrix.shape[0]
    probes = ("gaussian", "rademacher")
    estimators = {
        probe: LayerEstimators(
            layer=layer,
            settings=settings.estimator.model_copy(update={"probe": probe}),
            reference={size: matrix},
        )
        for probe in probes
    }
    held_out = calibration.activations(layer)
    centred = held_out - held_out.mean(dim=0)
    direct, direct_centred = held_out @ matrix.T, centred @ matrix.T

    states = calibration.states[layer]
    lam_rel = calibration.labels.lam_rel(states @ matrix.T)
    exact = calibration.labels.iss(states @ matrix.T, lam_rel=lam_rel, width=width)
    best = svd_factors(matrix, max(settings.estimator.ranks), max(settings.estimator.oversampling))

    rows = []
    for probe, oversampling, power_iterations, rank in _compared(settings.estimator, layer in settings.iss.layers):
        factors = estimators[probe].factors(
            rank=rank, oversampling=oversampling, corpus_size=size, power_iterations=power_iterations, seed=seed
        )
        floor = best.truncate(rank, oversampling)
        agreement = action_agreement(direct, factors.apply(held_out))
        agreement_centred = action_agreement(direct_centred, factors.apply(centred))
        estimated = calibration.labels.iss(factors.reduce(states), lam_rel=lam_rel, width=width)
        rows.append(
            {
                "layer": layer,
                "estimator": "qb",
                "probe": probe,
                "oversampling": oversampling,
                "power_iterations": power_iterations,
                "seed": seed,
                "k": rank,
                "r": factors.r,
                "E_F": frobenius_error(matrix, factors.Q, factors.B),
                "E_vec": agreement.mean_relative_error,
                "C_vec": agreement.mean_cosine,
                "E_vec_centred": agreement_centred.mean_relative_error,
                "C_vec_centred": agreement_centred.mean_cosine,
                "E_ISS": abs(float(exact.iss.mean() - estimated.iss.mean())),
                "rho_fact": rank_agreement(exact.iss.to_numpy(), estimated.iss.to_numpy()),
                "svd_floor_E_F": frobenius_error(matrix, floor.Q, floor.B),
                "svd_floor_E_vec": _relative_error(direct, floor, held_out),
            }
        )
    return {"rows": rows, "noise_floor": _noise_floor(paths, layer, calibration, lam_rel, width)}


def _relative_error(direct: Tensor, factors: Factors, activations: Tensor) -> float:
    return action_agreement(direct, factors.apply(activations)).mean_relative_error


def rank_agreement(exact: np.ndarray, estimated: np.ndarray) -> float | None:
    """`rho_fact`: Spearman over the facts both sides define; None where either side is constant."""
    both = np.isfinite(exact) & np.isfinite(estimated)
    if both.sum() < 2 or np.ptp(exact[both]) == 0 or np.ptp(estimated[both]) == 0:
        return None
    return float(spearmanr(exact[both], estimated[both]).statistic)


def _noise_floor(paths: ModelPaths, layer: int, calibration: Calibration, lam_rel: float, width: int) -> dict:
    """Two disjoint halves of the corpus against each other: no claim is made below these errors."""
    tensors = load_tensors(paths.reference(layer))
    first, second = tensors["half0"].double(), tensors["half1"].double()
    held_out, states = calibration.activations(layer), calibration.states[layer]
    centred = held_out - held_out.mean(dim=0)
    agreement = action_agreement(held_out @ first.T, held_out @ second.T)
    agreement_centred = action_agreement(centred @ first.T, centred @ second.T)
    scores = [
        calibration.labels.iss(states @ half.T, lam_rel=lam_rel, width=width).iss.mean() for half in (first, second)
    ]
    return {
        "layer": layer,
        "E_F": float(torch.linalg.norm(first - second) / torch.linalg.norm(first)),
        "E_vec": agreement.mean_relative_error,
        "C_vec": agreement.mean_cosine,
        "E_vec_centred": agreement_centred.mean_relative_error,
        "C_vec_centred": agreement_centred.mean_cosine,
        "E_ISS": abs(float(scores[0] - scores[1])),
    }
