"""Directions of rule F from the fitting split of a (task, seed), drawn and gated anew; nothing is selected."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.directions import mean_contrast
from sparse_control.protocol.gate import kept_pairs
from sparse_control.protocol.panels import PanelSources, build_pairs
from sparse_control.protocol.splits import Split


@dataclass(frozen=True, eq=False)
class FittedDirections:
    """Mean contrasts of one fitting split.

    Attributes:
        directions: (site width,) float64 per site.
        kept: pairs of the split that pass the gate.
    """

    directions: tuple[Tensor, ...]
    kept: int


def fitted_directions(
    lm: LanguageModel,
    support: Sequence[Site],
    *,
    task: str,
    seed: int,
    n_pairs: int,
    minimum_gap: float,
    sources: PanelSources = PanelSources(),
) -> FittedDirections:
    """Rule F at the sites of a support.

    Args:
        lm: the model.
        support: the sites.
        task: a task of the panels.
        seed: whose fitting split is drawn.
        n_pairs: pairs drawn before the gate.
        minimum_gap: g_min of the gate, in logits.
        sources: files that stand in for the project's own texts.

    Raises:
        InputError: unknown task, more pairs than the panel has, or a pair the tokenizer breaks.
        ValueError: no pair passes the gate, or a site outside the model or a prompt.
    """
    split = Split.read(lm, build_pairs(task, lm, "fit", n_pairs, seed, sources), support)
    kept = kept_pairs(split.y_source, split.y_target, minimum_gap)
    if not kept:
        raise ValueError(f"task {task}: no pair of the fitting split has a gap of {minimum_gap:g} logits on {lm.name}")
    return FittedDirections(mean_contrast(split.take(kept).contrasts, support), len(kept))
