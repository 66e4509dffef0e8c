"""The baseline gate: pairs are read unpatched, and one that the model does not tell apart is dropped and counted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site, all_sites
from sparse_control.protocol.panels import SPLITS, Pair, PanelSources, draw_pairs, drawn_from
from sparse_control.protocol.splits import Split
from sparse_control.settings import ProtocolSettings


@dataclass(frozen=True, eq=False)
class GatedPairs:
    """The pairs of one (task, seed).

    Attributes:
        counts: of the baseline gate, as in the record; None where the pairs cannot be built for the model.
        reason: why the task is not supported by the model; None where it is.
        sites: the candidate sites, S of them; those at which no pair of the fitting split has a contrast are left out.
        without_contrast: how many were left out.
        splits: fit, evaluate and reuse after the gate, read at the candidates and at the residual stream of all layers;
            None where the task is not supported.
        stream: those of the residual stream at which the fitting split has a contrast, for baselines.
        stream_without_contrast: how many of the residual stream were left out.
    """

    counts: dict[str, Any] | None
    reason: str | None
    sites: tuple[Site, ...] = ()
    without_contrast: int = 0
    splits: dict[str, Split] | None = None
    stream: tuple[Site, ...] = ()
    stream_without_contrast: int = 0


def candidate_sites(lm: LanguageModel, protocol: ProtocolSettings) -> tuple[Site, ...]:
    """The sites a selector may choose from: the components of every layer at every position of the settings."""
    return tuple(site for position in protocol.positions for site in all_sites(lm, protocol.components, position))


def stream_sites(lm: LanguageModel, protocol: ProtocolSettings) -> tuple[Site, ...]:
    """The residual stream of every layer, at every position of the settings: what baselines choose from."""
    return tuple(site for position in protocol.positions for site in all_sites(lm, ["resid"], position))


def read_sites(lm: LanguageModel, protocol: ProtocolSettings) -> tuple[Site, ...]:
    """Where prompts are read, whichever selectors are asked for."""
    return tuple(dict.fromkeys((*candidate_sites(lm, protocol), *stream_sites(lm, protocol))))


def kept_pairs(source: Sequence[float], target: Sequence[float], minimum_gap: float) -> list[int]:
    """Indices of the pairs whose gap `y_tar - y_src` is at least `minimum_gap`, in order.

    Args:
        source: (N,) unpatched readouts on the source inputs, in logits.
        target: (N,) on the target inputs.
        minimum_gap: g_min, in logits.
    """
    gap = np.asarray(target, dtype=np.float64) - np.asarray(source, dtype=np.float64)
    return [int(index) for index in np.flatnonzero(gap >= minimum_gap)]


def gated_pairs(
    lm: LanguageModel, protocol: ProtocolSettings, task: str, seed: int, sources: PanelSources = PanelSources()
) -> GatedPairs:
    """Draw the pairs of one seed, read them unpatched at all sites, and gate them.

    The evaluation split of a "same panel" task is its fitting split, with the pairs and counts of that.

    Raises:
        InputError: the panel has too few pairs that the tokenizer keeps minimal edits, or a position of the settings is
            outside a prompt, names a site twice, or comes before all differences.
    """
    sites, read = candidate_sites(lm, protocol), read_sites(lm, protocol)
    counts: dict[str, Any] = {"minimum_gap": protocol.minimum_gap}
    splits: dict[str, Split] = {}
    for name in SPLITS:
        of = drawn_from(task, name)[1]
        if of in splits:
            counts[name], splits[name] = counts[of], splits[of]
            continue
        try:
            drawn = draw_pairs(task, lm, name, getattr(protocol.pairs, name), seed, sources)
        except UnsupportedModel as error:
            return GatedPairs(None, str(error))
        split = _read(lm, drawn.pairs, read)
        kept = kept_pairs(split.y_source, split.y_target, protocol.minimum_gap)
        counts[name] = {"built": len(drawn.pairs), "kept": len(kept), "passed_over": drawn.dropped}
        splits[name] = split.take(kept)
    if reason := _too_few(counts, protocol):
        return GatedPairs(counts, reason)
    alive = tuple(site for site in sites if splits["fit"].contrasts[site].any())
    if not alive:
        raise InputError(
            f"protocol.positions: {protocol.positions}: the prompts of every {task} pair agree up to there; "
            "use positions from a difference on, such as -1"
        )
    every = stream_sites(lm, protocol)
    stream = tuple(site for site in every if splits["fit"].contrasts[site].any())
    return GatedPairs(counts, None, alive, len(sites) - len(alive), splits, stream, len(every) - len(stream))


def same_panel_pairs(pairs: GatedPairs, task: str) -> GatedPairs:
    """What `gated_pairs` gives for a "same panel" task, from the supported task whose pairs it has; nothing is read."""
    of = {name: drawn_from(task, name)[1] for name in SPLITS}
    counts = {"minimum_gap": pairs.counts["minimum_gap"], **{name: pairs.counts[of[name]] for name in SPLITS}}
    return replace(pairs, counts=counts, splits={name: pairs.splits[of[name]] for name in SPLITS})


def _too_few(counts: dict[str, Any], protocol: ProtocolSettings) -> str | None:
    needed = max(1, protocol.minimum_pairs)
    for name in SPLITS:
        built, kept = counts[name]["built"], counts[name]["kept"]
        if kept < needed:
            gap = f"{protocol.minimum_gap:g}"
            return f"{kept} of {built} {name} pairs have a gap of at least {gap} logits; {needed} are needed"
    return None


def _read(lm: LanguageModel, pairs: Sequence[Pair], sites: Sequence[Site]) -> Split:
    try:
        return Split.read(lm, pairs, sites)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"protocol.positions: {error}") from error
