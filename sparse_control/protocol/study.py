"""The six-axis records: one per (task, selector, condition, seed), and one file per study (source document, 01-06)."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from sparse_control.code_hash import code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines, sha256_json, write_json, write_json_lines
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import Site
from sparse_control.protocol.directions import mean_contrast, random_of_equal_norm
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import FeedbackPlan, draw_readouts, measure
from sparse_control.protocol.panels import TASKS, PanelSources, panel_source
from sparse_control.protocol.selectors import Selection
from sparse_control.protocol.shared import SELECTORS, SharedWork
from sparse_control.protocol.splits import Split
from sparse_control.receipt import Receipt
from sparse_control.records.paths import ModelPaths
from sparse_control.seeds import stream
from sparse_control.settings import ProtocolSettings, Settings
from sparse_control.threads import pin_threads

SCHEMA = "six-axis/1"
CODE = "sparse_control.protocol.study"
CONDITIONS = ("P", "F")
SECTIONS = (
    "candidates", "support", "strengths", "selection", "effects", "norms",
    "evaluate", "reversal", "feedback", "preservation", "reuse", "draws",
)  # fmt: skip
WHICH = {"tasks", "selectors", "conditions", "seeds", "task_seeds"}  # settings that say which records are asked for


@lru_cache(maxsize=1)
def _model(name: str, dtype: str) -> LanguageModel:
    return load_model(name, dtype=dtype)


@lru_cache(maxsize=1)
def _work(lm: LanguageModel, protocol_json: str, sources: PanelSources) -> SharedWork:
    """What the studies of one process share; settings as JSON, to be hashable."""
    return SharedWork(lm, ProtocolSettings.model_validate_json(protocol_json), sources)


def feedback_plan(protocol: ProtocolSettings, task: str, fit: Split, slope: float) -> FeedbackPlan:
    """Targets in equal steps from the fitting split's mean source to its mean target; gain 1/slope.

    Args:
        slope: `M(1) - M(0)` on the fitting split with each pair's own contrast; the gain is the same for P and F,
            as the direction rule is independent of dose updates.
    """
    settings = protocol.feedback
    start, end = float(fit.y_source.mean()), float(fit.y_target.mean())
    n = settings.targets[task]
    return FeedbackPlan(
        targets=tuple(start + (end - start) * step / n for step in range(1, n + 1)),
        gain=1.0 / slope if slope else 0.0,
        tolerance=settings.tolerance[task],
        readouts=settings.readouts,
        dose_limits=(settings.dose_limits[0], settings.dose_limits[1]),
    )


@dataclass(frozen=True, eq=False)
class _Applied:
    """One draw of an intervention, with the splits whose contrasts it uses under rule P."""

    intervention: Intervention
    evaluate: Split
    reuse: Split


def _applied(work: SharedWork, task: str, selector: str, condition: str, seed: int) -> list[_Applied]:
    """The intervention to measure, and the further draws of a random control, the first of which it is."""
    context = work.context(task, seed)
    fit, evaluate, reuse = context.splits["fit"], context.splits["evaluate"], context.splits["reuse"]

    def fixed(support: tuple[Site, ...]) -> tuple[torch.Tensor, ...] | None:
        return mean_contrast(fit.contrasts, support) if condition == "F" else None

    if selector != "random_direction":
        return [
            _Applied(Intervention(support, selection.strengths, fixed(support)), evaluate, reuse)
            for selection in work.chosen(task, seed, selector).selections
            for support in [_sites(work, task, seed, selection)]
        ]
    (selection,) = work.chosen(task, seed, selector).selections
    support = _sites(work, task, seed, selection)
    generator = stream(seed, task, "evaluate", f"random_direction.{condition}")
    draws = []
    for _ in range(work.protocol.random_supports):
        vectors = fixed(support)
        if vectors is not None:
            vectors = tuple(random_of_equal_norm(vector, generator) for vector in vectors)
        splits = [
            split.with_contrasts({site: random_of_equal_norm(split.contrasts[site], generator) for site in support})
            for split in (evaluate, reuse)
        ]
        draws.append(_Applied(Intervention(support, selection.strengths, vectors), *splits))
    return draws


def _sites(work: SharedWork, task: str, seed: int, selection: Selection) -> tuple[Site, ...]:
    sites = work.context(task, seed).sites
    return tuple(sites[index] for index in selection.support)


def measured_sections(work: SharedWork, task: str, selector: str, condition: str, seed: int) -> dict[str, Any]:
    """The sections of one record: the gate, selection on the fitting split, then the six axes.

    Strengths and gain come from the pairs' own contrasts under both rules (source document: the direction rule is
    independent of coefficient fitting and of dose updates). Under `random_direction` the support and the strengths are
    Driver-OMP's, and each direction is a random one of equal norm: a new one per pair under P, one under F.
    """
    context, protocol = work.context(task, seed), work.protocol
    head = {"reason": context.reason, "gate": context.gate}
    if context.splits is None:
        return {"supported": False} | head | dict.fromkeys(SECTIONS)
    fit = context.splits["fit"]
    effects, chosen = work.effects(task, seed), work.chosen(task, seed, selector)
    applied = _applied(work, task, selector, condition, seed)
    first = applied[0].intervention
    axes = measure(
        work.lm,
        first,
        applied[0].evaluate,
        applied[0].reuse,
        doses=protocol.doses,
        feedback=feedback_plan(protocol, task, fit, float(chosen.joint.mean())),
        off_target=work.off_target,
        refit_strengths=chosen.refitted,
    )
    selection = chosen.selections[0]
    sections = {
        "candidates": {
            "components": list(protocol.components),
            "positions": list(protocol.positions),
            "sites": len(context.sites),
            "without_contrast": context.dead,
        },
        "support": [site.name for site in first.support],
        "strengths": list(first.strengths),
        "selection": {
            "path": list(selection.path),
            "stop_reason": selection.stop_reason,
            "predicted_additivity": _progress(np.array(selection.predicted), fit.gap),
            "measured_additivity": _progress(chosen.joint, fit.gap),
        },
        "effects": {
            "kind": effects.kind,
            "check_sites": effects.check_sites,
            "check_pearson": effects.check_pearson,
        },
        "draws": None,
    } | axes
    if selector in ("random_support", "random_direction"):
        own = {
            "support": sections["support"],
            "strengths": sections["strengths"],
            "patched": axes["evaluate"]["patched"][protocol.doses.index(1.0)],
            "reversed": axes["reversal"]["reversed"],
        }
        sections["draws"] = [own, *draw_readouts([(draw.intervention, draw.evaluate) for draw in applied[1:]])]
    return {"supported": True} | head | {name: sections[name] for name in SECTIONS}


def _progress(change: np.ndarray, gap: np.ndarray) -> float | None:
    """Share of the gap a change of readouts covers, `<change, gap> / ||gap||^2`."""
    square = float(gap @ gap)
    return float(change @ gap) / square if square else None


def _params_sha256(settings: Settings) -> str:
    """Hash of the settings a record depends on; which records are asked for is not among them."""
    protocol = settings.protocol.model_dump(mode="json", exclude=WHICH)
    return sha256_json({"model": settings.model, "dtype": settings.dtype, "threads": settings.threads, **protocol})


def _sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the hash of its content in its provenance, by which a later run knows it is whole."""
    return record | {"provenance": record["provenance"] | {"record_sha256": sha256_json(record)}}


@dataclass(frozen=True, eq=False)
class _Study:
    """Where the records of one (task, selector, condition) are, and what a record must say to be of this run."""

    root: Path
    settings: Settings
    task: str
    selector: str
    condition: str
    sources: PanelSources
    lm: LanguageModel
    common: dict[str, Any]  # provenance that all seeds have alike

    @property
    def file(self) -> Path:
        return ModelPaths(self.root, self.lm.name).six_axis(self.task, self.selector, self.condition)

    def part(self, seed: int) -> Path:
        return self.file.parent / ".parts" / f"{self.file.stem}.{seed}.part"  # no reader takes it for a measurement

    @cached_property
    def named(self) -> dict[str, Any]:
        """What every record of the study says, whatever the seed."""
        return {
            "schema": SCHEMA,
            "model": self.lm.name,
            "task": self.task,
            "selector": self.selector,
            "condition": self.condition,
            "panels": {
                "pairs": panel_source(self.task, self.sources),
                "off_target": panel_source("off_target", self.sources),
            },
        }

    def is_whole(self, row: Any) -> bool:
        """Whether a row read from a file is a record of this model, these settings and this code, and unaltered."""
        if not isinstance(row, dict) or not isinstance(row.get("provenance"), dict):
            return False
        provenance = {key: value for key, value in row["provenance"].items() if key != "record_sha256"}
        return (
            self.named.items() <= row.items()
            and provenance == self.common | {"seed": row.get("seed")}
            and row == _sealed(row | {"provenance": provenance})
        )

    def finished(self) -> dict[int, dict[str, Any]]:
        """Whole records of the assembled file, by seed."""
        try:
            rows = read_json_lines(self.file) if self.file.is_file() else []
        except InputError:
            return {}  # a broken file holds nothing to keep; it is measured again
        return {row["seed"]: row for row in rows if self.is_whole(row)}

    def part_record(self, seed: int) -> dict[str, Any] | None:
        """The whole record of a part file; None where there is none."""
        try:
            row = read_json(self.part(seed)) if self.part(seed).is_file() else None
        except InputError:
            return None
        return row if self.is_whole(row) and row["seed"] == seed else None

    def measured(self, seed: int) -> dict[str, Any]:
        work = _work(self.lm, self.settings.protocol.model_dump_json(), self.sources)
        record = self.named | {
            "seed": seed,
            **measured_sections(work, self.task, self.selector, self.condition, seed),
            "provenance": self.common | {"seed": seed},
        }
        return _sealed(record)


def _study(root: Path, settings: Settings, task: str, selector: str, condition: str, sources: PanelSources) -> _Study:
    for name, value, known in (
        ("task", task, TASKS),
        ("selector", selector, SELECTORS),
        ("condition", condition, CONDITIONS),
    ):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    pin_threads(settings.threads)
    lm = _model(settings.model, settings.dtype)
    save_closure(root, CODE)
    common = {
        "model": lm.provenance,
        "params_sha256": _params_sha256(settings),
        "code_sha256": code_sha256(CODE),
        "threads": settings.threads,
    }
    return _Study(Path(root), settings, task, selector, condition, sources, lm, common)


def _write_part(study: _Study, seed: int, finished: dict[int, dict[str, Any]]) -> Path:
    path = study.part(seed)
    if study.part_record(seed) is None:
        write_json(path, finished.get(seed) or study.measured(seed))
    return path


def run_seed(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    seed: int,
    sources: PanelSources = PanelSources(),
) -> Receipt:
    """One record, into a part file below `.parts/` beside the assembled one.

    A whole record of the same model, settings, sources of prompts and code is kept, whether it stands in the part or in
    the assembled file. What the records of a seed share (pairs, effect columns, selections) is kept in the process for a
    few seeds, so a run that takes all selectors and conditions of a (task, seed) one after the other is the cheapest.
    Records must not be measured in parallel threads, as their hooks stand on one model.

    Raises:
        InputError: unknown task, selector or condition, or as `load_model`, `build_pairs` and `seed_context`.
    """
    study = _study(root, settings, task, selector, condition, sources)
    return Receipt.of(study.root, [_write_part(study, seed, study.finished())])


def run(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    sources: PanelSources = PanelSources(),
) -> Receipt:
    """One study: measure what is missing, then write the file of `ModelPaths.six_axis`.

    Every record is written to its part file as soon as it is measured (`run_seed`), and the parts are removed once the
    whole file stands, so an interrupted run loses the record in hand and the final bytes do not depend on the
    interruption. Whole records of seeds that are not asked for stay; records of other settings or code are replaced.

    Raises:
        InputError: as `run_seed`.
    """
    study = _study(root, settings, task, selector, condition, sources)
    records = study.finished()
    seeds = settings.protocol.seeds_of(task)
    missing = [seed for seed in seeds if seed not in records]
    for seed in tqdm(missing, desc=f"{task} {selector} {condition}", unit="seed"):
        _write_part(study, seed, records)
        records[seed] = study.part_record(seed)
    write_json_lines(study.file, [records[seed] for seed in sorted(records)])
    for seed in seeds:
        study.part(seed).unlink(missing_ok=True)
    parts = study.part(0).parent
    if parts.is_dir() and not any(parts.iterdir()):
        parts.rmdir()
    return Receipt.of(study.root, [study.file])
