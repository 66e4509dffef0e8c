"""What the records of one model share: pairs read and gated, effect columns, and a selector's choice for both rules."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site, all_sites
from sparse_control.protocol.effects import (
    Effects,
    effect_columns,
    first_order_effects,
    joint_readouts,
    measured_effects,
)
from sparse_control.protocol.gate import kept_pairs
from sparse_control.protocol.measurement import OffTargetPanel
from sparse_control.protocol.panels import SPLITS, PanelSources, draw_pairs, off_target_panel
from sparse_control.protocol.selectors import (
    Selection,
    chosen_sites,
    common_strength,
    coverage_driver,
    driver_omp,
    driver_omp_remeasured,
    fit_strengths,
    random_supports,
    top_k,
)
from sparse_control.protocol.splits import Split
from sparse_control.seeds import stream
from sparse_control.settings import ProtocolSettings

MAXIMUM_BYTES = 3 * 2**30  # of the prompts of several seeds kept together; the latest is kept whatever its size
SELECTORS = (
    "driver_omp", "coverage_driver",
    "driver_omp_remeasured", "top_k", "random_support", "all_sites", "random_direction",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SeedContext:
    """The pairs of one (task, seed).

    Attributes:
        gate: counts of the baseline gate, as in the record; None where the pairs cannot be built for the model.
        reason: why the task is not supported by the model; None where it is.
        sites: the candidate sites, S of them; those at which no pair of the fitting split has a contrast are left out.
        dead: how many were left out.
        splits: fit, evaluate and reuse after the gate; None where the task is not supported.
    """

    gate: dict[str, Any] | None
    reason: str | None
    sites: tuple[Site, ...] = ()
    dead: int = 0
    splits: dict[str, Split] | None = None


@dataclass(frozen=True, eq=False)
class Chosen:
    """A selector's choice on the fitting split, for both direction rules.

    Attributes:
        selections: the selection; of random supports, one per draw, of which the first is measured in full.
        joint: (N,) change of the fitting split's readouts under the first, with each pair's own contrasts.
        refitted: its strengths fitted on the reuse split.
    """

    selections: tuple[Selection, ...]
    joint: np.ndarray
    refitted: tuple[float, ...]


def candidate_sites(lm: LanguageModel, protocol: ProtocolSettings) -> tuple[Site, ...]:
    """The sites a selector may choose from: the components of every layer at every position of the settings."""
    return tuple(site for position in protocol.positions for site in all_sites(lm, protocol.components, position))


def seed_context(
    lm: LanguageModel, protocol: ProtocolSettings, task: str, seed: int, sources: PanelSources = PanelSources()
) -> SeedContext:
    """Draw the pairs of one seed, read them unpatched at all candidate sites, and gate them.

    Raises:
        InputError: the panel has too few pairs that the tokenizer keeps minimal edits, or a position of the settings is
            outside a prompt, names a place twice, or comes before all differences.
    """
    sites = candidate_sites(lm, protocol)
    gate: dict[str, Any] = {"minimum_gap": protocol.minimum_gap}
    splits = {}
    for name in SPLITS:
        try:
            drawn = draw_pairs(task, lm, name, getattr(protocol.pairs, name), seed, sources)
        except UnsupportedModel as error:
            return SeedContext(None, str(error))
        split = _read(lm, drawn.pairs, sites)
        kept = kept_pairs(split.y_source, split.y_target, protocol.minimum_gap)
        gate[name] = {"built": len(drawn.pairs), "kept": len(kept), "passed_over": drawn.dropped}
        splits[name] = split.take(kept)
    needed = max(1, protocol.minimum_pairs)
    for name in SPLITS:
        built, kept = gate[name]["built"], gate[name]["kept"]
        if kept < needed:
            gap = f"{protocol.minimum_gap:g}"
            reason = f"{kept} of {built} {name} pairs have a gap of at least {gap} logits; {needed} are needed"
            return SeedContext(gate, reason)
    alive = tuple(site for site in sites if splits["fit"].contrasts[site].any())
    if not alive:
        raise InputError(
            f"protocol.positions: {protocol.positions}: the prompts of every {task} pair agree up to there; "
            "use positions from a difference on, such as -1"
        )
    return SeedContext(gate, None, alive, len(sites) - len(alive), splits)


def _read(lm: LanguageModel, pairs: Sequence[Any], sites: Sequence[Site]) -> Split:
    try:
        return Split.read(lm, pairs, sites)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"protocol.positions: {error}") from error


def select(
    protocol: ProtocolSettings,
    selector: str,
    fit: Split,
    sites: Sequence[Site],
    columns: np.ndarray,
    task: str,
    seed: int,
) -> tuple[Selection, ...]:
    """A selector's choice by its name: one selection, or one per draw of random supports."""
    gap, k, bound = fit.gap, min(protocol.support_size, len(sites)), protocol.maximum_strength
    match selector:
        case "driver_omp" | "random_direction":
            return (driver_omp(columns, gap, k, protocol.minimum_effect, bound),)
        case "driver_omp_remeasured":
            measure = _measure(fit, sites)
            return (driver_omp_remeasured(measure, columns, gap, k, protocol.minimum_effect, bound),)
        case "coverage_driver":
            return (coverage_driver(columns, gap, k),)
        case "top_k":
            return (top_k(columns, gap, k, bound),)
        case "all_sites":
            return (chosen_sites(columns, gap, range(len(sites)), bound),)
        case "random_support":
            generator = stream(seed, task, "fit", "random_support")
            return random_supports(columns, gap, k, protocol.random_supports, generator, bound)
    raise ValueError(f"selector must be one of {', '.join(SELECTORS)}, got {selector!r}")


def _measure(split: Split, sites: Sequence[Site]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """`measure` of `driver_omp_remeasured` on a split."""

    def measure(
        support: tuple[int, ...], strengths: tuple[float, ...], wanted: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        chosen = [sites[index] for index in support]
        joint = joint_readouts(split, chosen, strengths) - split.y_source
        return joint, measured_effects(split, [sites[index] for index in wanted], chosen, strengths)

    return measure


def refit(protocol: ProtocolSettings, selector: str, split: Split, support: Sequence[Site]) -> tuple[float, ...]:
    """The selector's strengths for a fixed support on other pairs (axis 6); a site without effect gets 0."""
    if not support:
        return ()
    compute = {"first_order": first_order_effects, "measured": measured_effects}[protocol.effects]
    columns, bound = compute(split, support), protocol.maximum_strength
    strengths = np.zeros(len(support))
    live = columns.any(axis=0)
    match selector:
        case "driver_omp" | "random_direction":
            if live.any():
                strengths[live] = fit_strengths(columns[:, live], split.gap, bound)
        case "driver_omp_remeasured":
            again = driver_omp_remeasured(
                _measure(split, support), columns, split.gap, len(support), max_strength=bound
            )
            strengths[list(again.support)] = again.strengths
        case "coverage_driver":
            strengths[:] = common_strength(columns, split.gap)
        case _:
            strengths[:] = common_strength(columns, split.gap, bound)
    return tuple(strengths.tolist())


class SharedWork:
    """Contexts of the last seeds, and the effect columns and selections of all seeds asked for, computed once each.

    Args:
        lm: the model.
        protocol: the settings.
        sources: where the prompts come from.
    """

    def __init__(self, lm: LanguageModel, protocol: ProtocolSettings, sources: PanelSources = PanelSources()) -> None:
        self.lm = lm
        self.protocol = protocol
        self.sources = sources
        self._contexts: OrderedDict[tuple[str, int], SeedContext] = OrderedDict()
        self._effects: dict[tuple[str, int], Effects] = {}
        self._chosen: dict[tuple[str, int, str], Chosen] = {}

    @cached_property
    def off_target(self) -> OffTargetPanel:
        """The prompts of axis 5, read once."""
        try:
            prompts = off_target_panel(sources=self.sources)
            return OffTargetPanel.read(self.lm, prompts, candidate_sites(self.lm, self.protocol))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"protocol.positions: off-target panel: {error}") from error

    def context(self, task: str, seed: int) -> SeedContext:
        """`seed_context`, kept until the contexts after it take more than `MAXIMUM_BYTES` together."""
        key = (task, seed)
        if key not in self._contexts:
            self._contexts[key] = seed_context(self.lm, self.protocol, task, seed, self.sources)
            sizes = {key: _tensor_bytes(context.splits) for key, context in self._contexts.items()}
            for old in list(self._contexts)[:-1]:
                if sum(sizes.values()) <= MAXIMUM_BYTES:
                    break
                del self._contexts[old], sizes[old]
        self._contexts.move_to_end(key)
        return self._contexts[key]

    def effects(self, task: str, seed: int) -> Effects:
        """Effect columns of the fitting split."""
        key = (task, seed)
        if key not in self._effects:
            context = self.context(task, seed)
            draws = stream(seed, task, "fit", "effects_check")
            self._effects[key] = effect_columns(
                context.splits["fit"], context.sites, self.protocol.effects, self.protocol.effects_check, draws
            )
        return self._effects[key]

    def chosen(self, task: str, seed: int, selector: str) -> Chosen:
        """A selector's choice; that of `random_direction` is Driver-OMP's."""
        selector = "driver_omp" if selector == "random_direction" else selector
        key = (task, seed, selector)
        if key not in self._chosen:
            context = self.context(task, seed)
            fit = context.splits["fit"]
            columns = self.effects(task, seed).columns
            selections = select(self.protocol, selector, fit, context.sites, columns, task, seed)
            support = [context.sites[index] for index in selections[0].support]
            joint = joint_readouts(fit, support, selections[0].strengths) if support else fit.y_source
            refitted = refit(self.protocol, selector, context.splits["reuse"], support)
            self._chosen[key] = Chosen(selections, joint - fit.y_source, refitted)
        return self._chosen[key]


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_tensor_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_tensor_bytes, value))
    if isinstance(value, LanguageModel) or not hasattr(value, "__dict__"):
        return 0
    return sum(map(_tensor_bytes, vars(value).values()))
