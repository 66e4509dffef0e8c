"""Whether what stage B left was made with the settings that are to be frozen (source document, 13.2, 14).

No model is loaded.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sparse_control.errors import InputError
from sparse_control.files import read_json
from sparse_control.records.factors import frozen_layer, reported_factors
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.records.jacobian_iss.freeze import PREREGISTERED, FrozenLayer
from sparse_control.records.jacobian_iss.validation import ActionValidation, CorpusConvergence
from sparse_control.records.paths import FACTOR_FILES, METADATA, VALIDATION, ModelPaths
from sparse_control.settings import Settings
from sparse_control.stages.ladder import Convergence, Evidence, Rung, climb, reporting, starting_size
from sparse_control.stages.queries import calibration_queries

MEND = "run experiment-c first"
SETTING = "k, oversampling, power_iterations, corpus_size"

Difference = tuple[Path, str, Any, Any]  # file, field, what it says, what the settings give


def check_validated(paths: ModelPaths, settings: Settings, corpus_sha256: str) -> None:
    """Refuse to freeze what stage B made with other settings, or has not made.

    Thresholds count as far as they decide: by those of the settings, the stored numbers must lead to the same choices.

    Args:
        paths: of the model, or of its null.
        settings: that are to be frozen.
        corpus_sha256: of the corpus they are of.

    Raises:
        InputError: a file is missing or malformed, or the first difference from the settings.
    """
    for path in _needed(paths, settings):
        if not path.is_file():
            raise InputError(f"{path}: is missing; {MEND}")
    for path, field, found, expected in _differences(paths, settings, corpus_sha256):
        if found != expected:
            raise InputError(f"{path}: {field}: {found!r:.120}, but the settings give {expected!r:.120}; {MEND}")


def _needed(paths: ModelPaths, settings: Settings) -> Iterator[Path]:
    yield paths.states("calibration")
    yield from map(paths.iss_file, (*VALIDATION, "comparison") if settings.estimator.reference else VALIDATION)


def _differences(paths: ModelPaths, settings: Settings, corpus_sha256: str) -> Iterator[Difference]:
    layers, estimator = settings.iss.layers, settings.estimator
    path, whitening = paths.iss_file("whitening"), read_iss_file(paths, "whitening")
    yield path, "model", whitening.model, paths.model
    yield path, "layers of lam_rel", sorted(whitening.lam_rel), sorted(map(str, layers))

    yield from _states(paths, settings)
    path = paths.iss_file("seed_stability")
    for row in read_iss_file(paths, "seed_stability"):
        yield path, "seeds", row.seeds, estimator.sketch_seeds
    if estimator.reference:
        yield from _compared(paths, settings)

    sizes = read_iss_file(paths, "corpus_convergence")
    actions = read_iss_file(paths, "actions")
    for field, rows in (("corpus_convergence", sizes), ("actions", actions)):
        yield paths.iss_file(field), "layers", sorted({row.layer for row in rows}), sorted(layers)
    for layer in layers:
        of_layer = [row for row in sizes if row.layer == layer]
        found = [row.n for row in of_layer]
        yield paths.iss_file("corpus_convergence"), f"layer {layer}: n", found, estimator.corpus_sizes
        rungs = [row for row in actions if row.layer == layer]
        yield from _climbed(paths.iss_file("actions"), of_layer, rungs, settings)
    frozen = {str(layer): chosen_layer(actions, layer, settings) for layer in layers}
    for factors in reported_factors(paths, frozen, settings, corpus_sha256, attempts=actions):
        for name in FACTOR_FILES:
            if not (factors.folder / name).is_file():
                raise InputError(f"{factors.folder / name}: is missing; {MEND}")
        content = read_json(factors.folder / METADATA)
        for field, value in factors.expected.items():
            yield factors.folder / METADATA, field, content.get(field) if isinstance(content, dict) else None, value


def chosen_layer(actions: Sequence[ActionValidation], layer: int, settings: Settings) -> FrozenLayer:
    """What is frozen of a layer: the attempt that stage B chose, and the sketch seeds reported by the rule (9)."""
    chosen = next((row for row in actions if row.layer == layer and row.chosen), None)
    rule = PREREGISTERED if chosen is None else reporting(_number(chosen.iss_seed_deviation), settings.validation)
    return frozen_layer(chosen, rule, settings.estimator.sketch_seeds)


def _states(paths: ModelPaths, settings: Settings) -> Iterator[Difference]:
    """As many calibration states of every layer as the settings have prompts."""
    path, n_prompts = paths.states("calibration"), len(calibration_queries(settings))
    try:
        with safe_open(path, framework="numpy") as content:
            rows = {name: content.get_slice(name).get_shape()[0] for name in content.keys()}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {MEND}") from error
    for layer in settings.iss.layers:
        yield path, f"states of layer {layer}", rows.get(str(layer)), n_prompts


def _compared(paths: ModelPaths, settings: Settings) -> Iterator[Difference]:
    """Every candidate of the window is in the comparison with the references."""
    path, comparison = paths.iss_file("comparison"), read_iss_file(paths, "comparison")
    estimator = settings.estimator
    yield path, "corpus_size", comparison.corpus_size, estimator.corpus_sizes[-1]
    candidates = sorted(product(estimator.ranks, estimator.oversampling, estimator.power_iterations))
    for layer in settings.iss.layers:
        rows = [row for row in comparison.rows if (row.layer, row.probe) == (layer, estimator.probe)]
        found = sorted((row.k, row.oversampling, row.power_iterations) for row in rows)
        yield path, f"layer {layer}, {estimator.probe}: k, oversampling, power_iterations", found, candidates


def _climbed(
    path: Path, sizes: list[CorpusConvergence], rows: list[ActionValidation], settings: Settings
) -> Iterator[Difference]:
    """The ladder of the settings, climbed with the stored numbers, is the one that was climbed."""
    names = [criterion.name for criterion in fields(Evidence)]
    known = {_setting(row): Evidence(*(_number(getattr(row, name)) for name in names)) for row in rows}
    missing = Evidence(*(math.nan for _ in names))  # never passes

    def stored(rung: Rung) -> Evidence:
        return known.get((rung.rank, rung.oversampling, rung.power_iterations, rung.corpus_size), missing)

    converged = [Convergence(row.n, row.cosine_to_2n, row.relative_error_to_2n, row.iss_difference) for row in sizes]
    start = starting_size(converged, settings.validation)
    attempts = climb(settings.estimator, settings.validation, start, stored)
    layer = sizes[0].layer
    yield (
        path,
        f"layer {layer}: direct_action",
        sorted({row.direct_action for row in rows}),
        [settings.estimator.products],
    )
    rungs = [attempt.rung for attempt in attempts]
    expected = [(rung.rank, rung.oversampling, rung.power_iterations, rung.corpus_size) for rung in rungs]
    yield path, f"layer {layer}: {SETTING}", [_setting(row) for row in rows], expected
    passed = [not attempt.failed for attempt in attempts]
    yield path, f"layer {layer}: passed", [row.passed for row in rows], passed
    yield path, f"layer {layer}: chosen", [row.chosen for row in rows], passed


def _setting(row: ActionValidation) -> tuple[int, ...]:
    return row.k, row.oversampling, row.power_iterations, row.corpus_size


def _number(value: float | None) -> float:
    return math.nan if value is None else value
