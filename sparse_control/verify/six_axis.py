"""Numbers of six-axis records that follow from other saved ones, each computed again, and the hash of every record."""

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparse_control.files import read_json_lines
from sparse_control.records.paths import ModelPaths
from sparse_control.records.six_axis import (
    Endpoint,
    Feedback,
    Measurement,
    RecordKey,
    record_sha256,
)
from sparse_control.records.six_axis_files import measurement_files
from sparse_control.verify.check import Check, Status, named
from sparse_control.verify.finding import same
from sparse_control.verify.given import equal_size

SHARED = ("effects",)  # sections that do not depend on selector and direction rule


def six_axis_checks(paths: ModelPaths, records: Iterable[Measurement]) -> Iterator[Check]:
    """The hash of every record of a model, the numbers in each, and what the records of a task and seed share."""
    for path in measurement_files(paths):
        name = path.relative_to(paths.root).as_posix()
        yield named(f"sealed {name}", lambda path=path: _sealed(path))
    by_file: dict[str, list[Measurement]] = {}
    for record in records:
        by_file.setdefault(record.key.file(paths.root).relative_to(paths.root).as_posix(), []).append(record)
    for name, rows in by_file.items():
        yield named(f"numbers of {name}", lambda rows=rows: _numbers(rows))
    yield named(f"{paths.folder.name}/six_axis records share their pairs", lambda: _shared(records))
    if any(record.origin is not None for record in records):
        yield named(f"{paths.folder.name}/six_axis controls are of equal size", lambda: equal_size(records))


def _sealed(path: Path) -> tuple[Status, str]:
    """Of the file as it is: a number that is read in another type would have another hash."""
    rows = [(RecordKey(*(row[field] for field in RecordKey._fields)), row) for row in read_json_lines(path)]
    without = []
    for key, row in rows:
        stored = row["provenance"].get("record_sha256")
        if stored is None:
            without.append(key)
        elif stored != (found := record_sha256(row)):
            return "FAIL", f"{key}: provenance.record_sha256: {stored}, but the record has {found}; measure it again"
    return ("warn", f"{without[0]}: record_sha256 is missing, so nothing binds its numbers") if without else ("ok", "")


def _numbers(records: Iterable[Measurement]) -> tuple[Status, str]:
    wrong = [f"{record.key}: {detail}" for record in records for detail in broken_numbers(record)]
    if not wrong:
        return "ok", ""
    return "FAIL", wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")


def broken_numbers(record: Measurement) -> Iterator[str]:
    """Every number of a record that is not what the numbers it follows from give."""
    if not record.supported:
        return
    evaluate, reuse, gate = record.evaluate, record.reuse, record.gate
    for name, part, kept in (("evaluate", evaluate, gate.evaluate.kept), ("reuse", reuse, gate.reuse.kept)):
        if len(part.pairs) != kept:
            yield f"{name}.pairs: {len(part.pairs)}, but gate.{name}.kept is {kept}"
        gaps = [target - source for source, target in zip(part.source, part.target, strict=True)]
        if min(gaps) < gate.minimum_gap:
            yield f"{name}: a pair has a gap of {min(gaps)}, but the gate keeps those of {gate.minimum_gap} or more"
    if record.panels is not None and record.panels.same_panel is not None and gate.evaluate != gate.fit:
        yield f"gate.evaluate: {gate.evaluate}, but the evaluation pairs are those of gate.fit, {gate.fit}"
    if 0 in evaluate.doses and evaluate.at_dose(0) != evaluate.source:  # bit for bit
        yield "evaluate.patched: at dose 0 other than source"
    yield from _sites(record)
    yield from _feedback(record)
    if record.draws:
        first = record.draws[0]
        own = (record.support, record.strengths, evaluate.at_dose(1.0), record.reversal.reversed)
        if (first.support, first.strengths, first.patched, first.reversed) != own:
            yield "draws.0: other than the record itself, which is the first draw"


def _sites(record: Measurement) -> Iterator[str]:
    """The support is among the candidates."""
    if record.candidates is None:
        return
    for site in record.support:
        component, position = site.split(".")[1].split("@")[0], int(site.split("@")[1])
        if component not in record.candidates.components or position not in record.candidates.positions:
            yield f"support: {site} is none of the candidates"
    if len(record.support) > record.candidates.sites:
        yield f"support: {len(record.support)} sites of {record.candidates.sites} candidates"


def _feedback(record: Measurement) -> Iterator[str]:
    """Every dose follows from the margin before it; the loop ends as it says, and a dose has one margin."""
    feedback, evaluate = record.feedback, record.evaluate
    start = statistics.fmean(evaluate.source)
    known: dict[float, float] = {}
    for index, end in enumerate(feedback.endpoints):
        what = f"feedback.endpoints.{index}"
        if end.trajectory[0] != [0.0, end.initial_margin] or not same(end.initial_margin, start):
            yield f"{what}: starts at {end.trajectory[0]}, initial_margin {end.initial_margin}, mean source {start}"
        if len(end.trajectory) != end.readouts:
            yield f"{what}: readouts: {end.readouts}, but trajectory has {len(end.trajectory)}"
        yield from (f"{what}: {detail}" for detail in _steps(end, feedback))
        for dose, margin in end.trajectory:
            if known.setdefault(dose, margin) != margin:
                yield f"{what}: trajectory: margin {margin} at dose {dose}, elsewhere {known[dose]}"


def _steps(end: Endpoint, feedback: Feedback) -> Iterator[str]:
    """`dose + gain * (target - margin)`, or the limit that holds it; a hit ends the loop and nothing else is one."""
    hits = [abs(end.target - margin) <= feedback.tolerance for _, margin in end.trajectory]
    if any(hits[:-1]) or hits[-1] is not (end.stop_reason == "hit"):
        yield f"stop_reason: {end.stop_reason}, but {sum(hits)} readouts are within the tolerance, the last {hits[-1]}"
    held = set()
    for (dose, margin), (following, _) in zip(end.trajectory, end.trajectory[1:], strict=False):
        wanted = dose + feedback.gain * (end.target - margin)
        if same(following, wanted):
            continue
        held.add(following)
        if not (end.clipped and abs(following) < abs(wanted) and following * wanted >= 0):
            yield f"trajectory: dose {following} after {dose}, but gain and error give {wanted}"
    if len(held) > 2 or bool(held) is not end.clipped:
        yield f"clipped: {end.clipped}, but {len(held)} doses are held at a limit"


def _shared(records: Iterable[Measurement]) -> tuple[Status, str]:
    """Whatever the selector and direction rule, a task and seed has the same pairs, and margins without a patch.

    Whatever the direction rule, a selector chooses the same, and for a "same panel" task what it chose for the task
    whose fitting pairs that has.
    """
    seen: dict[tuple[Any, ...], dict[str, tuple[RecordKey, Any]]] = {}
    for record in records:
        if not record.supported:
            continue
        provenance = record.provenance
        made = record.seed, provenance.params_sha256, provenance.code_sha256
        at = record.task, record.panels, *made
        for values in (_drawn(record), _unpatched(record), _candidates(record), _chosen(record)):
            shared = (_fitted_on(record), record.selector, *made) if values.keys() & {"support"} else at
            first, expected = seen.setdefault(_hashable((*shared, *values)), (record.key, values))
            for name, value in values.items():
                if value != expected[name]:
                    return "FAIL", f"{name} differs between {first} and {record.key}; measure them again together"
    return "ok", ""


def _hashable(at: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(str, at))


def _drawn(record: Measurement) -> dict[str, Any]:
    """What every record has before any intervention, wherever that acts."""
    parts = {"evaluate": record.evaluate, "reuse": record.reuse, "preservation": record.preservation}
    names = {"evaluate": "pairs", "reuse": "pairs", "preservation": "prompts"}
    drawn = {f"{part}.{names[part]}": getattr(one, names[part]) for part, one in parts.items()}
    return drawn | {"gate": record.gate, "panels": record.panels}


def _unpatched(record: Measurement) -> dict[str, Any]:
    """What is measured before the intervention: of a given one, which may act elsewhere, among records of its file."""
    own = "" if record.origin is None else record.origin.model_copy(update={"control": None}).selector + " "
    parts = {"evaluate": record.evaluate, "reuse": record.reuse}
    read = {f"{part}.{name}": getattr(one, name) for part, one in parts.items() for name in ("source", "target")}
    return {own + name: value for name, value in (read | {name: getattr(record, name) for name in SHARED}).items()}


def _fitted_on(record: Measurement) -> tuple[str | None, ...]:
    """The task whose fitting pairs a record's intervention is of, and where its prompts come from."""
    panels = record.panels
    return (record.task, None) if panels is None else (panels.same_panel or record.task, panels.pairs)


def _chosen(record: Measurement) -> dict[str, Any]:
    """What is decided on the fitting split; of a given intervention nothing is, and its controls are drawn anew."""
    if record.origin is not None:
        return {}
    chosen = {name: getattr(record, name) for name in ("support", "strengths", "selection")}
    return chosen | {"gate.fit": record.gate.fit}


def _candidates(record: Measurement) -> dict[str, Any]:
    """Candidate sites, the same for all that choose among the same components; baselines have the residual stream."""
    if record.candidates is None or record.origin is not None:
        return {}
    return {f"candidates of {' and '.join(record.candidates.components)}": record.candidates}
