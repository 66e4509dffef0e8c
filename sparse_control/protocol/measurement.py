"""The six axes for one intervention on one model, as raw readouts; `sparse_control.metrics` turns them into scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sparse_control.arguments import elements, instance, real_number
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.feedback import FeedbackPlan, Trajectory, track_all
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.offtarget import OffTargetPrompt
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.preservation import OffTargetPanel, measured_preservation
from sparse_control.protocol.prompts import read_prompts
from sparse_control.protocol.readable import check_readable
from sparse_control.protocol.readouts import dose_readouts, wrong_way
from sparse_control.protocol.splits import Reader, Split

DOSES = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


def measure(
    lm: LanguageModel,
    intervention: Intervention,
    evaluate: Sequence[Pair] | Split,
    reuse: Sequence[Pair] | Split | None = None,
    *,
    doses: Sequence[float] = DOSES,
    feedback: FeedbackPlan | None = None,
    off_target: Sequence[OffTargetPrompt] | OffTargetPanel | None = None,
    refit_strengths: Sequence[float] | None = None,
    reader: Reader = read_prompts,
) -> dict[str, Any]:
    """Measure the six axes of one intervention and one seed (source document, 01-06).

    Doses, feedback targets and prompts share batches, and what is before the earliest patched position is computed
    once per prompt.

    Args:
        lm: the model.
        intervention: any support, strengths and direction rule.
        evaluate: pairs the intervention was not fitted on, or a split already read at its sites.
        reuse: further unseen pairs for axis 6; None leaves it out.
        doses: gamma of axis 3; 0 and 1 are among them.
        feedback: plan of axis 4; None leaves it out.
        off_target: prompts of axis 5; None leaves it out.
        refit_strengths: strengths refitted on `reuse`; None: those of the intervention.
        reader: how prompts are run.

    Returns:
        `norms`, `evaluate`, `reversal`, `feedback`, `preservation`, `reuse` as in a measurement record; the parts
        left out are None. All numbers are finite Python floats.

    Raises:
        ValueError: pairs as `check_readable` refuses them, doses without 0 and 1 or not finite, a site outside the
            model or a prompt, two names of one site, a direction of the wrong width, or rule P with sites that no pair
            has a contrast at.
        InputError: a readout is not finite.
        UnsupportedModel: a submodule in training mode.
    """
    doses = _checked(lm, intervention, evaluate, reuse, doses, feedback)
    evaluated = _split(lm, evaluate, intervention, reader)
    contrasts = {site: evaluated.contrasts[site] for site in intervention.support}
    _check_contrasts(intervention, contrasts)
    parts: dict[str, Any] = {
        "norms": _norms(evaluated, intervention, contrasts),
        "evaluate": _evaluation(evaluated, intervention, doses, contrasts),
        "reversal": _reversal(evaluated, intervention, contrasts),
    } | dict.fromkeys(("feedback", "preservation", "reuse"))
    if feedback is not None:
        parts["feedback"] = _feedback(evaluated, intervention, feedback)
    if off_target is not None:
        panel = _panel(lm, off_target, intervention, reader)
        parts["preservation"] = measured_preservation(panel, intervention, doses, contrasts, evaluated.signs)
    if reuse is not None:
        unseen = _split(lm, reuse, intervention, reader)
        parts["reuse"] = _reuse(unseen, intervention, contrasts, refit_strengths)
    return parts


def _checked(
    lm: LanguageModel,
    intervention: Intervention,
    evaluate: Sequence[Pair] | Split,
    reuse: Sequence[Pair] | Split | None,
    doses: Sequence[float],
    feedback: FeedbackPlan | None,
) -> list[float]:
    """The doses, once every argument of `measure` is known to be fit for use and before anything is read."""
    instance("intervention", intervention, Intervention).check(lm)
    checked = _checked_doses(doses)
    for name, pairs in (("evaluate", evaluate), ("reuse", reuse)):
        if not isinstance(pairs, Split) and (name == "evaluate" or pairs is not None):
            check_readable(lm, pairs, name)
    if feedback is not None:
        instance("feedback", feedback, FeedbackPlan)
    return checked


def _checked_doses(doses: Sequence[float]) -> list[float]:
    checked = [real_number(f"doses[{i}]", dose) for i, dose in enumerate(elements("doses", doses))]
    if 0.0 not in checked or 1.0 not in checked:
        raise ValueError(f"doses must hold 0 and 1, got {checked}")
    return checked


def _check_contrasts(intervention: Intervention, contrasts: Mapping[Site, Tensor]) -> None:
    if intervention.directions is None and contrasts and not any(value.any() for value in contrasts.values()):
        names = ", ".join(site.name for site in contrasts)
        raise ValueError(f"support {names}: the prompts of every pair agree up to there, so P has no direction")


def _split(lm: LanguageModel, pairs: Sequence[Pair] | Split, intervention: Intervention, reader: Reader) -> Split:
    return pairs if isinstance(pairs, Split) else Split.read(lm, pairs, intervention.support, reader)


def _panel(
    lm: LanguageModel,
    off_target: Sequence[OffTargetPrompt] | OffTargetPanel,
    intervention: Intervention,
    reader: Reader,
) -> OffTargetPanel:
    given = isinstance(off_target, OffTargetPanel)
    return off_target if given else OffTargetPanel.read(lm, off_target, intervention.support, reader)


def _norms(split: Split, intervention: Intervention, contrasts: Mapping[Site, Tensor]) -> dict[str, Any]:
    directions = intervention.directions or [contrasts[site] for site in intervention.support]
    if intervention.levels is not None:
        sites = enumerate(intervention.support)
        directions = [intervention.replacement(index, split.source.activations[site]) for index, site in sites]
    return {
        "direction": [_mean_norm(direction) for direction in directions],
        "activation": [_mean_norm(split.source.activations[site]) for site in intervention.support],
        "contrast": [_mean_norm(contrasts[site]) for site in intervention.support],
    }


def _mean_norm(vectors: Tensor) -> float:
    return float(vectors.double().norm(dim=-1).mean())


def _evaluation(
    split: Split, intervention: Intervention, doses: list[float], contrasts: Mapping[Site, Tensor]
) -> dict[str, Any]:
    patched = dose_readouts(split.source, split.pairs, intervention, doses, contrasts, split.y_source)  # (N, G)
    return {
        "pairs": [pair.id for pair in split.pairs],
        "source": split.y_source.tolist(),
        "target": split.y_target.tolist(),
        "doses": doses,
        "patched": patched.T.tolist(),
        "wrong_way": wrong_way(split, patched),
    }


def _reversal(split: Split, intervention: Intervention, contrasts: Mapping[Site, Tensor]) -> dict[str, Any]:
    values = dose_readouts(split.target, split.pairs, intervention, [-1.0], contrasts, split.y_target)
    return {"reversed": values[:, 0].tolist()}


def _feedback(split: Split, intervention: Intervention, plan: FeedbackPlan) -> dict[str, Any]:
    def mean_margins(doses: Sequence[float]) -> list[float]:
        values = dose_readouts(split.source, split.pairs, intervention, doses, split.contrasts, split.y_source)
        return values.mean(axis=0).tolist()

    endpoints = [_endpoint(trajectory) for trajectory in track_all(mean_margins, plan)]
    return {"gain": plan.gain, "tolerance": plan.tolerance, "endpoints": endpoints}


def _endpoint(trajectory: Trajectory) -> dict[str, Any]:
    dose, margin = trajectory.steps[-1]
    return {
        "target": trajectory.target,
        "initial_margin": trajectory.steps[0][1],
        "terminal_margin": margin,
        "terminal_dose": dose,
        "readouts": len(trajectory.steps),
        "stop_reason": trajectory.stop_reason,
        "clipped": trajectory.clipped,
        "trajectory": [list(step) for step in trajectory.steps],
    }


def _reuse(
    split: Split,
    intervention: Intervention,
    contrasts: Mapping[Site, Tensor],
    refit_strengths: Sequence[float] | None,
) -> dict[str, Any]:
    """Strengths refitted with the pairs' own contrasts, and everything carried over: strengths and mean contrast."""
    strengths = intervention.strengths if refit_strengths is None else tuple(refit_strengths)
    refit = replace(intervention, strengths=strengths)
    frozen = {site: value.double().mean(dim=0).expand(len(split), -1) for site, value in contrasts.items()}

    def nominal(chosen: Intervention, contrasts: Mapping[Site, Tensor]) -> list[float]:
        return dose_readouts(split.source, split.pairs, chosen, [1.0], contrasts, split.y_source)[:, 0].tolist()

    return {
        "pairs": [pair.id for pair in split.pairs],
        "source": split.y_source.tolist(),
        "target": split.y_target.tolist(),
        "refit": nominal(refit, split.contrasts),
        "frozen": nominal(intervention, frozen),
        "refit_strengths": list(refit.strengths),
    }
