"""Margins under an intervention at several doses, and under several interventions at one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_control.models.sites import Site
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.prompts import Prompts
from sparse_control.protocol.splits import Split, margins


def dose_readouts(
    prompts: Prompts,
    pairs: Sequence[Pair],
    intervention: Intervention,
    doses: Sequence[float],
    contrasts: Mapping[Site, Tensor],
    unpatched: np.ndarray,
) -> np.ndarray:
    """Margins (N, R) at each dose; dose 0 is the unpatched model, so its column is `unpatched` itself.

    Args:
        prompts: N prompts to patch.
        pairs: whose answers are read, and whose orientation rule O uses.
        intervention: what is applied.
        doses: (R,).
        contrasts: site -> (N, site width), for rule P.
        unpatched: (N,) margins of the same prompts.
    """
    values = np.repeat(unpatched[:, None], len(doses), axis=1)
    live = [index for index, dose in enumerate(doses) if dose != 0 and intervention.support]
    if live:
        signs = [pair.sign for pair in pairs]
        nonzero, own = [doses[index] for index in live], prompts.activations
        additions = intervention.additions(nonzero, contrasts, len(prompts), signs, own)
        values[:, live] = margins(prompts.patched_logits(additions), pairs)
    return values


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
        rows = [chosen.additions([dose], own.contrasts, len(split), own.signs) for chosen, own in draws]
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
