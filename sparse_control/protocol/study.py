"""One six-axis study: a (task, selector, condition) over all seeds, one record per seed (source document, 01-06)."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import read_json_lines, sha256_json, write_json_lines
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.sites import Site, all_sites
from sparse_control.protocol.directions import mean_contrast
from sparse_control.protocol.effects import Effects, effect_columns, first_order_effects, measured_effects
from sparse_control.protocol.gate import kept_pairs
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import FeedbackPlan, OffTargetPanel, dose_readouts, measure
from sparse_control.protocol.panels import OFF_TARGET, SPLITS, TASKS, build_pairs
from sparse_control.protocol.selectors import (
    Selection,
    common_strength,
    coverage_driver,
    driver_omp,
    fit_strengths,
)
from sparse_control.protocol.splits import Split
from sparse_control.receipt import Receipt
from sparse_control.seeds import stream
from sparse_control.settings import ProtocolSettings, Settings

SCHEMA = "six-axis/1"
CODE = "sparse_control.protocol.study"
SECTIONS = (
    "support", "strengths", "selection", "effects", "norms",
    "evaluate", "reversal", "feedback", "preservation", "reuse",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SeedContext:
    """What all selectors and conditions of one (task, seed) share.

    Attributes:
        lm: the model.
        gate: counts of the baseline gate, as in the record.
        sites: the candidate sites, S of them.
        splits: fit, evaluate and reuse after the gate; None where a split keeps too few pairs.
        effects: columns (N, S) of the fitting split; None likewise.
    """

    lm: LanguageModel
    gate: dict[str, Any]
    sites: tuple[Site, ...]
    splits: dict[str, Split] | None
    effects: Effects | None


@lru_cache(maxsize=1)
def _model(name: str, dtype: str) -> LanguageModel:
    return load_model(name, dtype=dtype)


@lru_cache(maxsize=1)
def _off_target(lm: LanguageModel) -> OffTargetPanel:
    return OffTargetPanel.read(lm, OFF_TARGET)


@lru_cache(maxsize=8)
def _shared(lm: LanguageModel, protocol_json: str, task: str, seed: int) -> SeedContext:
    """`seed_context` kept for the studies of one task that follow each other; settings as JSON, to be hashable."""
    return seed_context(lm, ProtocolSettings.model_validate_json(protocol_json), task, seed)


def seed_context(lm: LanguageModel, protocol: ProtocolSettings, task: str, seed: int) -> SeedContext:
    """Draw the pairs of one seed, gate them, read all candidate sites and compute the effect columns.

    Raises:
        InputError: the panel has too few pairs, or the tokenizer breaks one.
    """
    sites = all_sites(lm)
    gate: dict[str, Any] = {"minimum_gap": protocol.minimum_gap}
    splits = {}
    for name in SPLITS:
        pairs = build_pairs(task, lm, name, getattr(protocol.pairs, name), seed)
        split = Split.read(lm, pairs, sites)
        kept = kept_pairs(split.y_source, split.y_target, protocol.minimum_gap)
        gate[name] = {"built": len(pairs), "kept": len(kept)}
        splits[name] = split.take(kept)
    if any(gate[name]["kept"] < max(1, protocol.minimum_pairs) for name in SPLITS):
        return SeedContext(lm, gate, sites, None, None)
    draws = stream(seed, task, "fit", "effects_check")
    effects = effect_columns(splits["fit"], sites, protocol.effects, protocol.effects_check, draws)
    return SeedContext(lm, gate, sites, splits, effects)


def select(protocol: ProtocolSettings, selector: str, columns: np.ndarray, gap: np.ndarray) -> Selection:
    """Support and strengths on the fitting split, by the selector's name."""
    k = min(protocol.support_size, columns.shape[1])
    if selector == "driver_omp":
        return driver_omp(columns, gap, k, protocol.minimum_effect, protocol.maximum_strength)
    return coverage_driver(columns, gap, k)


def refit(protocol: ProtocolSettings, selector: str, columns: np.ndarray, gap: np.ndarray) -> tuple[float, ...]:
    """The selector's strengths for a fixed support on other pairs (axis 6); a column without effect gets 0."""
    if selector == "coverage_driver":
        return (common_strength(columns, gap),) * columns.shape[1]
    strengths = np.zeros(columns.shape[1])
    live = np.linalg.norm(columns, axis=0) > 0
    if live.any():
        strengths[live] = fit_strengths(columns[:, live], gap, protocol.maximum_strength)
    return tuple(strengths.tolist())


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


def measure_seed(
    context: SeedContext, protocol: ProtocolSettings, task: str, selector: str, condition: str
) -> dict[str, Any]:
    """The sections of one record: selection on the fitting split, then the six axes."""
    if context.splits is None:
        return {"supported": False, "gate": context.gate} | dict.fromkeys(SECTIONS)
    fit, evaluate, reuse = (context.splits[name] for name in SPLITS)
    selection = select(protocol, selector, context.effects.columns, fit.gap)
    support = tuple(context.sites[index] for index in selection.support)

    # Strengths and gain come from the pairs' own contrasts in both conditions (source document: the direction rule is
    # independent of coefficient fitting and of dose updates).
    own = Intervention(support, selection.strengths)
    joint = dose_readouts(fit.source, fit.pairs, own, [1.0], fit.contrasts, fit.y_source)[:, 0] - fit.y_source
    directions = mean_contrast(fit.contrasts, support) if condition == "F" else None
    compute = {"first_order": first_order_effects, "measured": measured_effects}[protocol.effects]
    refitted = refit(protocol, selector, compute(reuse, support), reuse.gap) if support else ()
    axes = measure(
        context.lm,
        Intervention(support, selection.strengths, directions),
        evaluate,
        reuse,
        doses=protocol.doses,
        feedback=feedback_plan(protocol, task, fit, float(joint.mean())),
        off_target=_off_target(context.lm),
        refit_strengths=refitted,
    )
    return {
        "supported": True,
        "gate": context.gate,
        "support": [site.name for site in support],
        "strengths": list(selection.strengths),
        "selection": {
            "path": list(selection.path),
            "stop_reason": selection.stop_reason,
            "predicted_additivity": _progress(np.array(selection.predicted), fit.gap),
            "measured_additivity": _progress(joint, fit.gap),
        },
        "effects": {
            "kind": context.effects.kind,
            "check_sites": context.effects.check_sites,
            "check_pearson": context.effects.check_pearson,
        },
    } | axes


def _progress(change: np.ndarray, gap: np.ndarray) -> float | None:
    """Share of the gap a change of readouts covers, `<change, gap> / ||gap||^2`."""
    square = float(gap @ gap)
    return float(change @ gap) / square if square else None


def _params_sha256(settings: Settings) -> str:
    """Hash of the settings a record depends on; which records are asked for is not among them."""
    protocol = settings.protocol.model_dump(mode="json", exclude={"tasks", "selectors", "conditions", "seeds"})
    return sha256_json({"model": settings.model, "dtype": settings.dtype, "threads": settings.threads, **protocol})


def _sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the hash of its content in its provenance, by which a later run knows it is whole."""
    return record | {"provenance": record["provenance"] | {"record_sha256": sha256_json(record)}}


def _finished(path: Path, common: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Whole records of an earlier run that were made with the same model, settings and code, by seed."""
    try:
        rows = read_json_lines(path) if path.is_file() else []
    except InputError:
        return {}  # a broken file holds nothing to keep; it is measured again
    kept = {}
    for row in rows:
        if not isinstance(row, dict) or row.get("schema") != SCHEMA or not isinstance(row.get("provenance"), dict):
            continue
        provenance = {key: value for key, value in row["provenance"].items() if key != "record_sha256"}
        if provenance == common | {"seed": row.get("seed")} and row == _sealed(row | {"provenance": provenance}):
            kept[row["seed"]] = row
    return kept


def run(*, root: Path, settings: Settings, task: str, selector: str, condition: str) -> Receipt:
    """Measure one study into `measurements/{model}/{task}.{selector}.{condition}.jsonl` below `root`.

    Whole records that stand there already with the same model, settings and code are kept, those of seeds that are
    not asked for too; the file is replaced whole after every seed, so an interrupted run goes on where it stopped.
    Records of other settings or code are replaced. The model and the work that selectors and conditions
    share are kept in the process, one model and eight seeds at a time; studies must not run in parallel threads,
    as their hooks stand on one model.

    Raises:
        InputError: unknown task, selector or condition, or as `load_model` and `build_pairs`.
    """
    protocol = settings.protocol
    for name, value, known in (
        ("task", task, list(TASKS)),
        ("selector", selector, ["driver_omp", "coverage_driver"]),
        ("condition", condition, ["P", "F"]),
    ):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    torch.set_num_threads(settings.threads)
    lm = _model(settings.model, settings.dtype)
    path = Path(root, "measurements", lm.name, f"{task}.{selector}.{condition}.jsonl")
    common = {
        "model": lm.provenance,
        "params_sha256": _params_sha256(settings),
        "code_sha256": code_sha256(CODE),
        "threads": settings.threads,
    }
    finished = _finished(path, common)
    waiting = [seed for seed in protocol.seeds if seed not in finished]
    for seed in tqdm(waiting, desc=f"{task} {selector} {condition}", unit="seed"):
        context = _shared(lm, protocol.model_dump_json(), task, seed)
        record = {
            "schema": SCHEMA,
            "model": lm.name,
            "task": task,
            "selector": selector,
            "condition": condition,
            "seed": seed,
            **measure_seed(context, protocol, task, selector, condition),
            "provenance": common | {"seed": seed},
        }
        finished[seed] = _sealed(record)
        write_json_lines(path, [finished[key] for key in sorted(finished)])
    if not waiting:
        write_json_lines(path, [finished[key] for key in sorted(finished)])
    return Receipt.of(root, [path])
