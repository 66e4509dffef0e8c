"""Stage A: exact finite-corpus Jacobians and what every candidate rank loses against them (source document, 5)."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, write_json
from sparse_control.jacobian.exact import jacobian_sum
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.receipt import Receipt
from sparse_control.records.paths import save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.calibration import load_calibration
from sparse_control.stages.checkpoint import Checkpoint
from sparse_control.stages.comparison import check_comparison, compare_layer
from sparse_control.stages.inputs import Inputs, open_inputs
from sparse_control.stages.queries import calibration_queries
from sparse_control.stages.states import query_states, save_tensors, states_checkpoint

NAME = "reference"


def run(*, corpus: Path, root: Path, settings: Settings, keep_unfinished: bool = False) -> Receipt:
    """Measure calibration states and, where the settings ask for them, references and the rank comparison.

    Args:
        corpus: a built corpus folder.
        root: results root.
        settings: one preset.
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: ranks or layers that do not fit the model, a corpus that is too small or another one than the
            settings ask for, a model not fetched, or unfinished work in `root` that is damaged or was begun with
            something else.
    """
    inputs = open_inputs(corpus, root, settings)
    written = [_save_calibration_states(inputs)]
    if inputs.settings.estimator.reference:
        if not _references_are_whole(inputs):
            _save_references(inputs)  # 5.1, 5.2
        written += [*map(inputs.paths.reference, _reference_layers(inputs)), inputs.paths.reference_metadata]
        written.append(_save_comparison(inputs))  # 5.3, 5.4
    save_stages_closure(root)
    if not keep_unfinished:
        inputs.paths.finish(NAME)
    return Receipt.of(root, written)


def _reference_layers(inputs: Inputs) -> list[int]:
    every = inputs.settings.estimator.reference_layers == "all"
    return list(range(inputs.lm.n_layers)) if every else inputs.settings.iss.layers


def _save_calibration_states(inputs: Inputs) -> Path:
    """States at the end of every calibration prompt, on which every later choice is judged (7.2, 13.2)."""
    settings, path = inputs.settings, inputs.paths.states("calibration")
    layers = _reference_layers(inputs) if settings.estimator.reference else settings.iss.layers
    queries = calibration_queries(settings)
    checkpoint = states_checkpoint(inputs, NAME, "calibration_states", queries, layers)
    states = query_states(inputs.lm, queries, layers, "calibration states", checkpoint)
    save_tensors(path, {str(layer): rows for layer, rows in states.states.items()})
    return path


# --- references -----------------------------------------------------------------------------------------------------


def blocks(settings: Settings) -> list[tuple[int, int]]:
    """The corpus in units of work, (start, stop): every corpus size, and half the largest, ends one."""
    estimator = settings.estimator
    if not estimator.reference:
        return []
    largest = estimator.corpus_sizes[-1]
    ends = sorted({0, *estimator.corpus_sizes, largest // 2})
    units = []
    for start, end in pairwise(ends):
        step = estimator.block_prompts
        units += [(first, min(first + step, end)) for first in range(start, end, step)]
    return units


def run_block(*, corpus: Path, root: Path, settings: Settings, start: int, stop: int) -> Receipt:
    """Sum the Jacobians of one block of prompts, all layers in one sweep each; taken up where it was left.

    Raises:
        InputError: as `run`, or a Jacobian that is not finite.
    """
    if (start, stop) not in blocks(settings):
        raise ValueError(f"start, stop must be one of blocks(settings), got {(start, stop)}")
    inputs = open_inputs(corpus, root, settings)
    _sum_block(inputs, (start, stop), lambda: None)
    return Receipt.of(root, [_block(inputs, (start, stop)).path])


def _block(inputs: Inputs, unit: tuple[int, int]) -> Checkpoint:
    shape = (len(_reference_layers(inputs)), inputs.lm.width, inputs.lm.width)
    layout = {"total": (shape, torch.float64), "next": ((), torch.int64)}
    return inputs.checkpoint(NAME, f"prompts_{unit[0]}-{unit[1]}", layout)


def _sum_block(inputs: Inputs, unit: tuple[int, int], on_prompt: Callable[[], Any]) -> Tensor:
    """(number of layers, d, d), float64: the sum over one block."""
    checkpoint, (start, stop) = _block(inputs, unit), unit
    begun = checkpoint.load_within("next", start + 1, stop) or {"total": None, "next": torch.tensor(start)}
    first, layers = int(begun["next"]), _reference_layers(inputs)
    if first == 0:  # once per fit, before the hours
        check_derivatives(inputs.lm, inputs.windows.input_ids[0], layers)
    for _ in range(first - start):
        on_prompt()

    def progress(following: int, total: Tensor) -> None:
        if checkpoint.due or following == stop:
            checkpoint.save({"total": total, "next": torch.tensor(following)})
        on_prompt()

    return jacobian_sum(
        inputs.lm, inputs.corpus_ids, layers, start=first, stop=stop, total=begun["total"], progress=progress
    )


def _save_references(inputs: Inputs) -> None:
    """Add up the blocks in corpus order, so that interrupted and distributed runs give the same bytes."""
    sizes, layers = inputs.settings.estimator.corpus_sizes, _reference_layers(inputs)
    n, half = len(inputs.corpus_ids), sizes[-1] // 2
    total, first_half, means = 0.0, None, {}
    with tqdm(total=n, desc="exact Jacobians", unit="prompt") as bar:
        for unit in blocks(inputs.settings):
            total = total + _sum_block(inputs, unit, bar.update)
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
    write_json(inputs.paths.reference_metadata, _reference_metadata(inputs, layers, files))


def _reference_metadata(inputs: Inputs, layers: list[int], files: dict[str, str]) -> dict[str, Any]:
    sizes = inputs.settings.estimator.corpus_sizes
    return {
        "kind": "exact finite-corpus Jacobian",
        "position": "final",
        "target_layer": inputs.lm.n_layers,
        "norm": "before the final norm",
        "layers": layers,
        "corpus_sizes": sizes,
        "halves": "the first and the second half of the largest corpus",
        "corpus_sha256": inputs.windows.sha256,
        "corpus_ids": list(inputs.windows.ids[: sizes[-1]]),
        "null": inputs.settings.null,
        "calibration_sequence_length": inputs.settings.corpus.sequence_length,
        "model": inputs.lm.provenance,
        "code_sha256": stages_code_sha256(),
        "key": dict(inputs.key),
        "files": files,
    }


def _references_are_whole(inputs: Inputs) -> bool:
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


def _save_comparison(inputs: Inputs) -> Path:
    """Every candidate rank against the reference, layer by layer (5.4), and the noise floor of the corpus."""
    layers = _reference_layers(inputs)
    calibration = load_calibration(inputs.paths, inputs.settings, layers, inputs.lm.width)
    rows: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    for layer in tqdm(layers, desc="rank comparison", unit="layer"):
        part = inputs.part(NAME, f"comparison_{layer}", reference=sha256_file(inputs.paths.reference(layer)))
        kept = part.load(lambda content: check_comparison(content, layer))
        content = kept[0] if kept else compare_layer(inputs.paths, layer, calibration, inputs.settings)
        if kept is None:
            part.save(content)
        rows += content["rows"]
        floors.append(content["noise_floor"])
    path, size = inputs.paths.iss_file("comparison"), inputs.settings.estimator.corpus_sizes[-1]
    write_json(path, {"model": inputs.paths.model, "corpus_size": size, "rows": rows, "noise_floor": floors})
    return path
