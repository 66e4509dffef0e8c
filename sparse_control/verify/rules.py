"""The fixed rules of the estimator, applied again to the numbers that the measuring run stored.

`stages/ladder.py` states the same rules for the run that decides by them. They are stated here a second time on
purpose, as the independent check of what it decided; a test holds the two against each other.
"""

import statistics
from collections.abc import Iterator
from typing import Any

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.freeze import (
    MEAN_OF_SEEDS,
    PREREGISTERED,
    FreezeManifest,
    FrozenLayer,
    Thresholds,
)
from sparse_control.records.jacobian_iss.validation import ActionValidation, AlternativeAttempt, CorpusConvergence
from sparse_control.records.paths import ISS_FILES
from sparse_control.verify.finding import Finding, same

ACTIONS, CORPUS, SEEDS, ALTERNATIVES, FREEZE = (
    ISS_FILES[field] for field in ("actions", "corpus_convergence", "seed_stability", "alternatives", "freeze")
)


def broken_rules(iss: IssRecords) -> Iterator[Finding]:
    """Every decision that is not what its rule makes of the stored numbers.

    Acceptance, the ladder's end, the corpus size, the reporting of sketch seeds, and means and deviations over seeds.
    """
    if iss.freeze is None:
        return
    thresholds = iss.freeze.settings.validation
    yield from _acceptance(ACTIONS, iss.actions, thresholds)
    yield from _acceptance(ALTERNATIVES, iss.alternatives, thresholds)
    yield from _ladder(iss)
    yield from _kept(iss.alternatives)
    yield from _corpus(iss.corpus_convergence, thresholds)
    yield from _seeds(iss)
    yield from _freeze(iss.freeze, iss)


def accepted(row: ActionValidation | AlternativeAttempt, thresholds: Thresholds) -> bool:
    """Whether all four criteria hold (7.3, 17); a missing number never passes."""
    if row.median_cosine is None or not row.median_cosine >= thresholds.median_cosine:
        return False
    names = ("median_relative_error", "iss_rank_difference", "iss_seed_deviation")
    return all((value := getattr(row, name)) is not None and value <= getattr(thresholds, name) for name in names)


def _acceptance(
    file: str, rows: tuple[ActionValidation, ...] | tuple[AlternativeAttempt, ...], thresholds: Thresholds
) -> Iterator[Finding]:
    for number, row in enumerate(rows, start=1):
        expected = accepted(row, thresholds)
        if row.passed != expected:
            yield f"{file}:{number}", f"passed: {row.passed}, but the frozen thresholds give {expected}"


def _ladder(iss: IssRecords) -> Iterator[Finding]:
    """The first attempt of a layer that passes is frozen and is the last; the first is at the chosen corpus size."""
    starts = {row.layer: row.n for row in iss.corpus_convergence if row.chosen}
    for layer in sorted({row.layer for row in iss.actions}):
        rows = [row for row in iss.actions if row.layer == layer]
        first = next((index for index, row in enumerate(rows) if row.passed), None)
        found = [index for index, row in enumerate(rows) if row.chosen]
        what = f"layer {layer}"
        if found != ([] if first is None else [first]):
            yield ACTIONS, f"{what}: chosen: attempt {_numbers(found)}, but the first that passes is {_number(first)}"
        if first is not None and first + 1 < len(rows):
            yield ACTIONS, f"{what}: {len(rows) - first - 1} attempts after the one that passes"
        if layer in starts and rows[0].corpus_size != starts[layer]:
            yield ACTIONS, f"{what}: its ladder starts at n = {rows[0].corpus_size}, not at the chosen {starts[layer]}"


def _kept(rows: tuple[AlternativeAttempt, ...]) -> Iterator[Finding]:
    """Of each alternative at each layer the smallest rank that passes is kept."""
    for layer, estimator in sorted({(row.layer, row.estimator) for row in rows}):
        group = [row for row in rows if (row.layer, row.estimator) == (layer, estimator)]
        smallest = min((row.k for row in group if row.passed), default=None)
        found = [row.k for row in group if row.chosen]
        if found != ([] if smallest is None else [smallest]):
            detail = f"layer {layer}, {estimator}: chosen: k = {found}, but the smallest that passes is {smallest}"
            yield ALTERNATIVES, detail


def _number(index: int | None) -> str:
    return "none" if index is None else str(index + 1)


def _numbers(indices: list[int]) -> str:
    return ", ".join(map(_number, indices)) or "none"


def _corpus(rows: tuple[CorpusConvergence, ...], thresholds: Thresholds) -> Iterator[Finding]:
    """Converged where both differences to 2n are small enough; chosen the smallest such n, else the largest (8.2)."""
    for layer in sorted({row.layer for row in rows}):
        sizes = sorted((row for row in rows if row.layer == layer), key=lambda row: row.n)
        holds = [_converged(row, thresholds) for row in sizes]
        choice = next((row.n for row, good in zip(sizes, holds, strict=True) if good), sizes[-1].n)
        for row, good in zip(sizes, holds, strict=True):
            for field, expected in (("converged", good), ("chosen", row.n == choice)):
                if (found := getattr(row, field)) != expected:
                    yield CORPUS, f"layer {layer}, n = {row.n}: {field}: {found}, but the rule gives {expected}"


def _converged(row: CorpusConvergence, thresholds: Thresholds) -> bool:
    if row.cosine_to_2n is None or row.iss_difference is None:
        return False
    return row.cosine_to_2n >= thresholds.corpus_cosine and row.iss_difference <= thresholds.corpus_iss_difference


def _setting(row: Any) -> tuple[int, ...]:
    return row.layer, row.k, row.oversampling, row.power_iterations, row.corpus_size


def _seeds(iss: IssRecords) -> Iterator[Finding]:
    """Mean and sample sd over seeds; the attempt's own sd and ISS are those of its seeds (9)."""
    rungs = {_setting(row): (number, row) for number, row in enumerate(iss.actions, start=1)}
    for number, row in enumerate(iss.seed_stability, start=1):
        deviation = statistics.stdev(row.values) if len(row.values) > 1 else None
        expected = {"mean": statistics.fmean(row.values), "sd": deviation}
        for field, value in expected.items():
            if not same(getattr(row, field), value):
                yield f"{SEEDS}:{number}", f"{field}: {getattr(row, field)}, but its values give {value}"
        if row.metric != "ISS" or _setting(row) not in rungs:
            continue
        line, rung = rungs[_setting(row)]
        for field, value in (("iss_seed_deviation", deviation), ("iss", row.values[0])):
            if not same(getattr(rung, field), value):
                yield f"{ACTIONS}:{line}", f"{field}: {getattr(rung, field)}, but the sketch seeds give {value}"


def _freeze(freeze: FreezeManifest, iss: IssRecords) -> Iterator[Finding]:
    """A layer is validated where an attempt is chosen, with that attempt's setting and the seeds the rule reports."""
    chosen = {row.layer: row for row in iss.actions if row.chosen}
    if not iss.actions:
        return
    for number, layer in sorted(freeze.layers.items(), key=lambda item: int(item[0])):
        rung = chosen.get(int(number))
        for field, expected in _frozen_as(rung, freeze).items():
            if getattr(layer, field) != expected:
                yield FREEZE, f"layers.{number}.{field}: {getattr(layer, field)}, but the rules give {expected}"


def _frozen_as(rung: ActionValidation | None, freeze: FreezeManifest) -> dict[str, Any]:
    if rung is None:
        names = [name for name in FrozenLayer.model_fields if name != "status"]
        return {"status": "unresolved"} | dict.fromkeys(names)
    settings = freeze.settings
    deviation = rung.iss_seed_deviation
    small = deviation is not None and deviation <= settings.validation.negligible_seed_deviation
    seeds = settings.estimator.sketch_seeds
    names = ("k", "oversampling", "power_iterations", "corpus_size", "step")
    return (
        {"status": "validated"}
        | {name: getattr(rung, name) for name in names}
        | {
            "reporting": PREREGISTERED if small else MEAN_OF_SEEDS,
            "seeds": seeds[:1] if small else seeds,
        }
    )
