"""The sections of a record whose intervention was given: nothing is selected, and the same six axes are measured."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparse_control.models.sites import Site, all_sites
from sparse_control.protocol.directions import CONDITIONS, random_of_equal_norm
from sparse_control.protocol.fitting import Fitting
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import measure
from sparse_control.protocol.panels import SPLITS
from sparse_control.protocol.readouts import dose_readouts
from sparse_control.protocol.record import SECTIONS, feedback_plan, recorded_draws, share_of_gap
from sparse_control.protocol.splits import Split
from sparse_control.records.six_axis import RecordKey
from sparse_control.seeds import stream

SHARES = 2.0 ** np.arange(-6, 1.5, 0.5)  # of the activations' norm, that a fitted push is chosen among, of both signs


def given_sections(fitting: Fitting, key: RecordKey, given: GivenFile) -> dict[str, Any]:
    """What `record_sections` gives, for the intervention of a file or one of its controls.

    Nothing of the fitting split enters but the gain of the feedback loop and, where that is asked for, one common
    factor of the strengths. On axis 6 `refit` has one common factor that is fitted on the unseen pairs, and `frozen`
    the intervention as it is; the vectors are the file's in both. A control has `random_supports` draws.
    """
    pairs = fitting.pairs(key.task, key.seed)
    head = {"supported": pairs.splits is not None, "reason": pairs.reason, "gate": pairs.counts}
    if pairs.splits is None:
        return head | dict.fromkeys(SECTIONS)
    oriented = CONDITIONS[key.condition].oriented
    chosen = replace(given.intervention(fitting.lm), oriented=oriented)
    control = given.origin(key.selector)["control"]
    sites = _sites_like(fitting, chosen.support)
    fit, evaluate, reuse = (fitting.splits_at(key.task, key.seed, sites)[name] for name in SPLITS)
    if given.strength is None:
        chosen = _scaled(chosen, fitted_factor(fit, chosen))
    draws = _draws(fitting, key, chosen, sites, control)
    first, protocol = draws[0], fitting.protocol
    moved = _readouts(fit, first) - fit.y_source
    axes = measure(
        fitting.lm,
        first,
        evaluate,
        reuse,
        doses=protocol.doses,
        feedback=feedback_plan(protocol, key.task, fit, float(moved.mean())),
        off_target=fitting.off_target_with(sites),
        refit_strengths=_scaled(first, fitted_factor(reuse, first)).strengths,
    )
    sections = axes | {
        "candidates": None,
        "support": [site.name for site in first.support],
        "strengths": list(first.strengths),
        "selection": {
            "path": [], "stop_reason": "given",
            "predicted_additivity": None, "measured_additivity": share_of_gap(moved, fit.gap),
        },
        "effects": None,
        "draws": None,
    }  # fmt: skip
    if control is not None:
        sections["draws"] = recorded_draws(sections, protocol, [(draw, evaluate) for draw in draws[1:]])
    return head | {name: sections[name] for name in SECTIONS}


def fitted_factor(split: Split, intervention: Intervention) -> float:
    """The factor of all strengths under which the pairs' readouts come closest to their targets, in squares.

    Measured and not extrapolated: the pushes are 1/64, .. 1, 1.4 of the norm of the activations, in both directions.
    """
    size = sum(float(split.source.activations[site].double().square().sum(-1).mean()) for site in intervention.support)
    vectors = zip(intervention.strengths, intervention.directions, strict=True)
    push = sum(strength**2 * float(vector.double().square().sum()) for strength, vector in vectors)
    if push == 0:
        return 1.0
    factors = np.sqrt(size / push) * np.concatenate([SHARES, -SHARES])
    values = dose_readouts(
        split.source, split.pairs, intervention, factors.tolist(), split.contrasts, split.y_source
    )  # (N, R)
    return float(factors[np.square(values - split.y_target[:, None]).sum(axis=0).argmin()])


def _scaled(intervention: Intervention, factor: float) -> Intervention:
    return replace(intervention, strengths=tuple(factor * strength for strength in intervention.strengths))


def _readouts(split: Split, intervention: Intervention) -> np.ndarray:
    values = dose_readouts(split.source, split.pairs, intervention, [1.0], split.contrasts, split.y_source)
    return values[:, 0]


def _draws(
    fitting: Fitting, key: RecordKey, chosen: Intervention, sites: Sequence[Site], control: str | None
) -> list[Intervention]:
    """The intervention; of a control its draws, of as many sites and equal norms."""
    if control is None:
        return [chosen]
    generator = stream(key.seed, key.task, "evaluate", f"{key.selector}.{key.condition}")
    draws = []
    for _ in range(fitting.protocol.random_supports):
        if control == "random_direction":
            directions = tuple(random_of_equal_norm(vector, generator) for vector in chosen.directions)
            draws.append(replace(chosen, directions=directions))
            continue
        support: list[Site] = []
        for site in chosen.support:
            free = [other for other in sites if _kind(other) == _kind(site) and other not in support]
            support.append(free[generator.integers(len(free))])
        draws.append(replace(chosen, support=tuple(support)))
    return draws


def _kind(site: Site) -> tuple[str, int]:
    return site.component, site.position


def _sites_like(fitting: Fitting, support: Sequence[Site]) -> tuple[Site, ...]:
    """Every site of the model of the components and positions of a support."""
    kinds = dict.fromkeys(_kind(site) for site in support)
    return tuple(site for kind, position in kinds for site in all_sites(fitting.lm, (kind,), position))
