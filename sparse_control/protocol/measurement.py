"""The six axes for one intervention on one model, as raw readouts; `sparse_control.metrics` turns them into scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_control.arguments import real_number
from sparse_control.metrics.preservation import kl_divergence
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.feedback import Trajectory, check_plan, track_all
from sparse_control.protocol.intervention import Intervention, check_length, check_places, check_readable
from sparse_control.protocol.panels.offtarget import OffTargetPrompt
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.prompts import Prompts, read_prompts
from sparse_control.protocol.splits import Reader, Split, margins

DOSES = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class FeedbackPlan:
    """What axis 4 asks of the loop.

    Attributes:
        targets: requested mean margins, in logits.
        gain: fixed, dose per logit.
        tolerance: |error| that is a hit, in logits.
        readouts: most readouts per target, the zero-dose one included.
        dose_limits: (low, high).

    Raises:
        ValueError: as `track_all`.
    """

    targets: tuple[float, ...]
    gain: float
    tolerance: float
    readouts: int = 11
    dose_limits: tuple[float, float] = (-4.0, 4.0)

    def __post_init__(self) -> None:
        check_plan(self.targets, self.gain, self.tolerance, self.readouts, self.dose_limits)


@dataclass(frozen=True, eq=False)
class OffTargetPanel:
    """Unrelated prompts, read unpatched once."""

    ids: tuple[str, ...]
    prompts: Prompts

    @classmethod
    def read(
        cls,
        lm: LanguageModel,
        prompts: Sequence[OffTargetPrompt],
        sites: Sequence[Site] = (),
        reader: Reader = read_prompts,
    ) -> "OffTargetPanel":
        """Tokenise and run the prompts; `sites` are those that will be patched.

        Raises:
            ValueError: a site outside the model or a prompt, two names of one place, a prompt longer than the
                model's positions.
        """
        ids = [lm.encode(prompt.text).tolist() for prompt in prompts]
        for prompt, tokens in zip(prompts, ids, strict=True):
            check_length(lm, f"prompt {prompt.id}", len(tokens))
        check_places(sites, map(len, ids))
        return cls(tuple(prompt.id for prompt in prompts), reader(lm, ids, sites))


def dose_readouts(
    prompts: Prompts,
    pairs: Sequence[Pair],
    intervention: Intervention,
    doses: Sequence[float],
    contrasts: dict,
    unpatched: np.ndarray,
) -> np.ndarray:
    """Margins (N, R) at each dose; dose 0 is the unpatched model, so its column is `unpatched` itself.

    Args:
        prompts: N prompts to patch.
        pairs: whose answers are read.
        intervention: what is applied.
        doses: (R,).
        contrasts: site -> (N, site width), for rule P.
        unpatched: (N,) margins of the same prompts.
    """
    values = np.repeat(unpatched[:, None], len(doses), axis=1)
    live = [index for index, dose in enumerate(doses) if dose != 0 and intervention.support]
    if live:
        additions = intervention.additions([doses[index] for index in live], contrasts, len(prompts))
        values[:, live] = margins(prompts.patched_logits(additions), pairs)
    return values


def _measured_feedback(split: Split, intervention: Intervention, plan: FeedbackPlan) -> dict[str, Any]:
    def mean_margins(doses: Sequence[float]) -> list[float]:
        values = dose_readouts(split.source, split.pairs, intervention, doses, split.contrasts, split.y_source)
        return values.mean(axis=0).tolist()

    trajectories = track_all(
        mean_margins,
        plan.targets,
        gain=plan.gain,
        tolerance=plan.tolerance,
        readouts=plan.readouts,
        dose_limits=plan.dose_limits,
    )
    return {"gain": plan.gain, "tolerance": plan.tolerance, "endpoints": [_endpoint(t) for t in trajectories]}


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


def _measured_preservation(panel: OffTargetPanel, intervention: Intervention, contrasts: dict) -> dict[str, Any]:
    n = len(panel.ids)
    if not intervention.support:
        return {"prompts": list(panel.ids), "kl": [0.0] * n}
    # rule P has no contrast of its own here: prompt j takes that of evaluation pair j mod N
    borrowed = {site: value[torch.arange(n) % len(value)] for site, value in contrasts.items()}
    patched = panel.prompts.patched_logits(intervention.additions([1.0], borrowed, n))[:, 0]
    rows = zip(_float64(panel.prompts.logits), _float64(patched), strict=True)
    return {"prompts": list(panel.ids), "kl": [kl_divergence(p, q) for p, q in rows]}


def _float64(logits: Tensor) -> np.ndarray:
    return logits.double().cpu().numpy()


def _measured_reuse(
    split: Split, intervention: Intervention, frozen_contrasts: dict, refit_strengths: Sequence[float]
) -> dict[str, Any]:
    refit = Intervention(intervention.support, tuple(refit_strengths), intervention.directions)
    frozen = {site: value.expand(len(split), -1) for site, value in frozen_contrasts.items()}

    def nominal(chosen: Intervention, contrasts: dict) -> list[float]:
        return dose_readouts(split.source, split.pairs, chosen, [1.0], contrasts, split.y_source)[:, 0].tolist()

    return {
        "pairs": [pair.id for pair in split.pairs],
        "source": split.y_source.tolist(),
        "target": split.y_target.tolist(),
        "refit": nominal(refit, split.contrasts),
        "frozen": nominal(intervention, frozen),
        "refit_strengths": list(refit.strengths),
    }


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

    Doses, feedback targets and prompts share batches, and what lies before the earliest patched position is computed
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
            model or a prompt, two names of one place, a direction of the wrong width, or rule P with sites that no pair
            has a contrast at.
        InputError: a readout is not finite.
        UnsupportedModel: a submodule in training mode.
    """
    intervention.check(lm)
    try:
        doses = list(doses)
    except TypeError as error:
        raise ValueError(f"doses must be a sequence of numbers, got {doses!r}") from error
    doses = [real_number(f"doses[{i}]", dose) for i, dose in enumerate(doses)]
    if 0.0 not in doses or 1.0 not in doses:
        raise ValueError(f"doses must hold 0 and 1, got {doses}")
    if not isinstance(evaluate, Split):
        check_readable(lm, evaluate)
    if reuse is not None and not isinstance(reuse, Split):
        check_readable(lm, reuse)  # here, as it is read last

    def split(pairs: Sequence[Pair] | Split) -> Split:
        return pairs if isinstance(pairs, Split) else Split.read(lm, pairs, intervention.support, reader)

    evaluated = split(evaluate)
    contrasts = {site: evaluated.contrasts[site] for site in intervention.support}
    if intervention.directions is None and contrasts and not any(value.any() for value in contrasts.values()):
        names = ", ".join(site.name for site in contrasts)
        raise ValueError(f"support {names}: the prompts of every pair agree up to there, so P has no direction")
    patched = dose_readouts(
        evaluated.source, evaluated.pairs, intervention, doses, contrasts, evaluated.y_source
    )  # (N, G)
    reversed_ = dose_readouts(evaluated.target, evaluated.pairs, intervention, [-1.0], contrasts, evaluated.y_target)
    if off_target is not None and not isinstance(off_target, OffTargetPanel):
        off_target = OffTargetPanel.read(lm, off_target, intervention.support, reader)
    return {
        "norms": {
            "direction": [
                _mean_norm(direction)
                for direction in intervention.directions or [contrasts[site] for site in intervention.support]
            ],
            "activation": [_mean_norm(evaluated.source.activations[site]) for site in intervention.support],
        },
        "evaluate": {
            "pairs": [pair.id for pair in evaluated.pairs],
            "source": evaluated.y_source.tolist(),
            "target": evaluated.y_target.tolist(),
            "doses": doses,
            "patched": patched.T.tolist(),
            "wrong_way": wrong_way(evaluated, patched),
        },
        "reversal": {"reversed": reversed_[:, 0].tolist()},
        "feedback": None if feedback is None else _measured_feedback(evaluated, intervention, feedback),
        "preservation": None if off_target is None else _measured_preservation(off_target, intervention, contrasts),
        "reuse": None
        if reuse is None
        else _measured_reuse(
            split(reuse),
            intervention,
            {site: value.double().mean(dim=0) for site, value in contrasts.items()},
            intervention.strengths if refit_strengths is None else refit_strengths,
        ),
    }


def wrong_way(split: Split, patched: np.ndarray) -> list[float]:
    """Share of pairs whose readout moves away from the target, at each dose.

    Args:
        split: N pairs.
        patched: (N, R) readouts on the source inputs.
    """
    progress = (patched - split.y_source[:, None]) * split.gap[:, None]
    return (progress < 0).mean(axis=0).tolist()


def draw_readouts(draws: Sequence[tuple[Intervention, Split]]) -> list[dict[str, Any]]:
    """Draws of a random control, short: the readouts of reachability and reversal on the evaluation pairs.

    Args:
        draws: R interventions, each with the evaluation split whose contrasts it uses; the pairs are those of all.

    Returns:
        per draw `support`, `strengths`, `patched` and `reversed` as in a measurement record.
    """
    if not draws:
        return []
    split = draws[0][1]
    sides = []
    for prompts, unpatched, dose in ((split.source, split.y_source, 1.0), (split.target, split.y_target, -1.0)):
        rows = [chosen.additions([dose], own.contrasts, len(split)) for chosen, own in draws]
        together = {}
        for site in dict.fromkeys(site for row in rows for site in row):
            like = next(row[site] for row in rows if site in row)  # (N, 1, width)
            together[site] = torch.cat([row.get(site, torch.zeros_like(like)) for row in rows], dim=1)
        if together:
            sides.append(margins(prompts.patched_logits(together), split.pairs))  # (N, R)
        else:
            sides.append(np.repeat(unpatched[:, None], len(draws), axis=1))
    return [
        {
            "support": [site.name for site in chosen.support],
            "strengths": list(chosen.strengths),
            "patched": sides[0][:, row].tolist(),
            "reversed": sides[1][:, row].tolist(),
        }
        for row, (chosen, _) in enumerate(draws)
    ]


def _mean_norm(vectors: Tensor) -> float:
    return float(vectors.double().norm(dim=-1).mean())
