"""One six-axis record: the gate, the choice on the fitting split, then the six axes (source document, 01-06)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sparse_control.models.sites import Site
from sparse_control.protocol.directions import CONDITIONS, mean_contrast, random_of_equal_norm
from sparse_control.protocol.feedback import FeedbackPlan
from sparse_control.protocol.fitting import Choice, Fitting, baseline_intervention
from sparse_control.protocol.gate import GatedPairs
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import measure
from sparse_control.protocol.readouts import draw_readouts
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.protocol.splits import Split
from sparse_control.records.six_axis import RecordKey
from sparse_control.seeds import stream
from sparse_control.settings import ProtocolSettings

SECTIONS = (
    "candidates", "support", "strengths", "selection", "effects", "norms",
    "evaluate", "reversal", "feedback", "preservation", "reuse", "draws",
)  # fmt: skip


def record_sections(fitting: Fitting, key: RecordKey) -> dict[str, Any]:
    """What a record says beside its key and provenance; where the task is not supported, its sections are None.

    Strengths and gain come from the pairs' own contrasts under every rule (source document: the direction rule is
    independent of coefficient fitting and of dose updates). Under `random_direction` the support and the strengths are
    Driver-OMP's, and each direction is a random one of equal norm: a new one per pair under P, one under F and O. A
    baseline has its own direction at its own site in all of it.
    """
    pairs = fitting.pairs(key.task, key.seed)
    head = {"supported": pairs.splits is not None, "reason": pairs.reason, "gate": pairs.counts}
    if pairs.splits is None:
        return head | dict.fromkeys(SECTIONS)
    choice, protocol = fitting.choice(key.task, key.seed, key.selector), fitting.protocol
    draws = _draws(fitting, pairs, choice, key)
    slope = float(choice.joint.mean())
    baseline = SELECTORS[key.selector].baseline
    axes = measure(
        fitting.lm,
        draws[0].intervention,
        draws[0].evaluate,
        draws[0].reuse,
        doses=protocol.doses,
        feedback=feedback_plan(protocol, key.task, pairs.splits["fit"], slope),
        off_target=fitting.off_target,
        refit_strengths=choice.refitted,
    )
    sections = axes | {
        "candidates": {
            "components": ["resid"] if baseline else list(protocol.components),
            "positions": list(protocol.positions),
            "sites": len(pairs.stream) if baseline else len(pairs.sites),
            "without_contrast": pairs.stream_without_contrast if baseline else pairs.without_contrast,
        },
        "support": [site.name for site in choice.support],
        "strengths": list(draws[0].intervention.strengths),
        "selection": _selection(choice, pairs.splits["fit"]),
        "effects": _effects(fitting, key),
        "draws": None,
    }
    if SELECTORS[key.selector].draws:
        further = [(draw.intervention, draw.evaluate) for draw in draws[1:]]
        sections["draws"] = recorded_draws(sections, protocol, further)
    return head | {name: sections[name] for name in SECTIONS}


def recorded_draws(
    sections: Mapping[str, Any], protocol: ProtocolSettings, further: Sequence[tuple[Intervention, Split]]
) -> list[dict[str, Any]]:
    """The draws of a random control: the one that was measured on all axes, then the further ones."""
    first = {
        "support": sections["support"],
        "strengths": sections["strengths"],
        "patched": sections["evaluate"]["patched"][protocol.doses.index(1.0)],
        "reversed": sections["reversal"]["reversed"],
    }
    return [first, *draw_readouts(further)]


def feedback_plan(protocol: ProtocolSettings, task: str, fit: Split, slope: float) -> FeedbackPlan:
    """Targets in equal steps from the fitting split's mean source to its mean target; gain 1/slope.

    Args:
        slope: `M(1) - M(0)` on the fitting split with each pair's own contrast; the gain is the same for every rule,
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
class _Draw:
    """An intervention, with the splits whose contrasts it uses under rule P."""

    intervention: Intervention
    evaluate: Split
    reuse: Split


def _draws(fitting: Fitting, pairs: GatedPairs, choice: Choice, key: RecordKey) -> list[_Draw]:
    """The intervention to measure, and the further draws of a random control, the first of which it is."""
    rule, selector = CONDITIONS[key.condition], SELECTORS[key.selector]
    fit, evaluate, reuse = (pairs.splits[name] for name in ("fit", "evaluate", "reuse"))

    def mean(support: tuple[Site, ...]) -> tuple[Tensor, ...] | None:
        signs = fit.signs if rule.oriented else None
        return mean_contrast(fit.contrasts, support, signs) if rule.mean else None

    draws = []
    if selector.baseline:
        return [_Draw(baseline_intervention(choice.selections[0], pairs.stream), evaluate, reuse)]
    if not selector.random_directions:
        for selection in choice.selections:
            support = tuple(pairs.sites[index] for index in selection.support)
            chosen = Intervention(support, selection.strengths, mean(support), rule.oriented)
            draws.append(_Draw(chosen, evaluate, reuse))
        return draws
    support, strengths = choice.support, choice.selections[0].strengths
    generator = stream(key.seed, key.task, "evaluate", f"{key.selector}.{key.condition}")
    for _ in range(fitting.protocol.random_supports):
        directions = mean(support)
        if directions is not None:
            directions = tuple(random_of_equal_norm(direction, generator) for direction in directions)
        splits = [
            split.with_contrasts({site: random_of_equal_norm(split.contrasts[site], generator) for site in support})
            for split in (evaluate, reuse)
        ]
        draws.append(_Draw(Intervention(support, strengths, directions, rule.oriented), *splits))
    return draws


def _selection(choice: Choice, fit: Split) -> dict[str, Any]:
    selection = choice.selections[0]
    return {
        "path": list(selection.path),
        "stop_reason": selection.stop_reason,
        "predicted_additivity": share_of_gap(np.array(selection.predicted), fit.gap) if selection.predicted else None,
        "measured_additivity": share_of_gap(choice.joint, fit.gap),
    }


def _effects(fitting: Fitting, key: RecordKey) -> dict[str, Any]:
    effects = fitting.effects(key.task, key.seed)
    return {"kind": effects.kind, "check_sites": effects.check_sites, "check_pearson": effects.check_pearson}


def share_of_gap(change: np.ndarray, gap: np.ndarray) -> float | None:
    """Share of the gap a change of readouts covers, `<change, gap> / ||gap||^2`."""
    square = float(gap @ gap)
    return float(change @ gap) / square if square else None
