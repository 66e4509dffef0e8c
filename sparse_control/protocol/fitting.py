"""What the fitting split decides, once for all records of a (task, seed): effects, selections, directions."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.directions import mean_contrast
from sparse_control.protocol.effects import EFFECTS, Effects, effect_columns, joint_readouts, measured_effects
from sparse_control.protocol.gate import GatedPairs, gated_pairs, kept_pairs, read_sites, same_panel_pairs
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels import Pair, PanelSources, build_pairs, drawn_from, off_target_panel
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.readouts import dose_readouts
from sparse_control.protocol.selectors import Selection
from sparse_control.protocol.selectors.baselines import Stream
from sparse_control.protocol.selectors.omp import Measure
from sparse_control.protocol.selectors.table import SELECTORS, Fit, Selector
from sparse_control.protocol.splits import Split
from sparse_control.seeds import stream
from sparse_control.settings import ProtocolSettings

MAXIMUM_BYTES = 3 * 2**30  # of the prompts of several seeds kept together; the latest is kept whatever its size


@dataclass(frozen=True, eq=False)
class Choice:
    """A selector's choice on the fitting split, the same for every direction rule.

    Attributes:
        selections: the selection; of random supports, one per draw, of which the first is measured in full.
        support: the sites of the first.
        joint: (N,) change of the fitting split's readouts under the first, with each pair's own contrasts, or with the
            direction of a baseline.
        refitted: its strengths fitted on the reuse split.
    """

    selections: tuple[Selection, ...]
    support: tuple[Site, ...]
    joint: np.ndarray
    refitted: tuple[float, ...]


class Fitting:
    """Gated pairs of the last seeds, and the effects and choices of all seeds asked for, computed once each.

    Args:
        lm: the model.
        protocol: the settings.
        sources: where the prompts come from.
    """

    def __init__(self, lm: LanguageModel, protocol: ProtocolSettings, sources: PanelSources = PanelSources()) -> None:
        self.lm = lm
        self.protocol = protocol
        self.sources = sources
        self._pairs: OrderedDict[tuple[str, int], GatedPairs] = OrderedDict()
        self._effects: dict[tuple[str, int], Effects] = {}
        self._choices: dict[tuple[str, int, str], Choice] = {}
        self._elsewhere = lru_cache(maxsize=2)(self._read_elsewhere)  # of two seeds
        self._off_target_elsewhere = lru_cache(maxsize=2)(self.off_target_at)

    @cached_property
    def off_target(self) -> OffTargetPanel:
        """The prompts of axis 5, read once where pairs are."""
        return self.off_target_at(read_sites(self.lm, self.protocol))

    def off_target_at(self, sites: Sequence[Site]) -> OffTargetPanel:
        """The prompts of axis 5, read at these sites.

        Raises:
            InputError: as `off_target_panel`, or a site outside a prompt.
        """
        try:
            return OffTargetPanel.read(self.lm, off_target_panel(sources=self.sources), sites)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"positions of the sites: off-target panel: {error}") from error

    def pairs(self, task: str, seed: int) -> GatedPairs:
        """`gated_pairs`, kept until those after it take more than `MAXIMUM_BYTES` together."""
        key, of = (task, seed), drawn_from(task, "fit")[0]
        if key not in self._pairs:
            other = self._pairs.get((of, seed))
            if other is not None and other.splits is not None:
                self._pairs[key] = same_panel_pairs(other, task)
            else:
                self._pairs[key] = gated_pairs(self.lm, self.protocol, task, seed, self.sources)
            sizes = {key: _tensor_bytes(pairs.splits) for key, pairs in self._pairs.items()}
            for old in list(self._pairs)[:-1]:
                if sum(sizes.values()) <= MAXIMUM_BYTES:
                    break
                del self._pairs[old], sizes[old]
        self._pairs.move_to_end(key)
        return self._pairs[key]

    def splits_at(self, task: str, seed: int, sites: tuple[Site, ...]) -> dict[str, Split]:
        """The gated splits of a supported task at any sites, candidates or not.

        Raises:
            InputError: a site outside a prompt.
        """
        splits = self.pairs(task, seed).splits
        read = set(splits["fit"].contrasts).issuperset(sites)
        return splits if read else self._elsewhere(task, seed, sites)

    def _read_elsewhere(self, task: str, seed: int, sites: tuple[Site, ...]) -> dict[str, Split]:
        try:
            return {
                name: Split.read(self.lm, split.pairs, sites) for name, split in self.pairs(task, seed).splits.items()
            }
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"positions of the sites: {task}: {error}") from error

    def off_target_with(self, sites: tuple[Site, ...]) -> OffTargetPanel:
        """The prompts of axis 5 at any sites, candidates or not; read once."""
        read = set(read_sites(self.lm, self.protocol)).issuperset(sites)
        return self.off_target if read else self._off_target_elsewhere(sites)

    def effects(self, task: str, seed: int) -> Effects:
        """Effect columns of the fitting split, which a "same panel" task shares with the task whose pairs it has."""
        key = (of, seed) = drawn_from(task, "fit")[0], seed
        if key not in self._effects:
            pairs = self.pairs(task, seed)
            draws = stream(seed, of, "fit", "effects_check")
            self._effects[key] = effect_columns(
                pairs.splits["fit"], pairs.sites, self.protocol.effects, self.protocol.effects_check, draws
            )
        return self._effects[key]

    def choice(self, task: str, seed: int, selector: str) -> Choice:
        """A selector's choice; that of `random_direction` is Driver-OMP's. A "same panel" task shares it as effects."""
        selector, of = SELECTORS[selector].choice_of or selector, drawn_from(task, "fit")[0]
        key = (of, seed, selector)
        if key not in self._choices and SELECTORS[selector].baseline:
            self._choices[key] = self._baseline(self.pairs(task, seed), SELECTORS[selector])
        if key not in self._choices:
            pairs, row = self.pairs(task, seed), SELECTORS[selector]
            fit, reuse = pairs.splits["fit"], pairs.splits["reuse"]
            generator = stream(seed, of, "fit", selector)
            columns = self.effects(task, seed).columns
            selections = row.select(self._fit(row, fit, pairs.sites, columns, generator))
            support = tuple(pairs.sites[index] for index in selections[0].support)
            joint = joint_readouts(fit, support, selections[0].strengths) if support else fit.y_source
            refitted: tuple[float, ...] = ()
            if support:
                again = EFFECTS[self.protocol.effects](reuse, support)
                refitted = tuple(row.refit(self._fit(row, reuse, support, again, generator)).tolist())
            self._choices[key] = Choice(selections, support, joint - fit.y_source, refitted)
        return self._choices[key]

    def _baseline(self, pairs: GatedPairs, row: Selector) -> Choice:
        fit, reuse = pairs.splits["fit"], pairs.splits["reuse"]
        residual = self._stream(fit, pairs.stream)
        (selection,) = row.select(residual)
        joint = residual.respond(selection, [1.0])[:, 0] - fit.y_source
        refitted = row.refit(replace(self._stream(reuse, pairs.stream), chosen=selection))
        support = tuple(pairs.stream[index] for index in selection.support)
        return Choice((selection,), support, joint, tuple(refitted.tolist()))

    def _stream(self, split: Split, sites: Sequence[Site]) -> Stream:
        def respond(selection: Selection, doses: Sequence[float]) -> np.ndarray:
            chosen = baseline_intervention(selection, sites)
            return dose_readouts(split.source, split.pairs, chosen, doses, {}, split.y_source)

        sides = [
            np.stack([side.activations[site].double().cpu().numpy() for site in sites])
            for side in (split.source, split.target)
        ]
        return Stream(
            source=sides[0],
            target=sides[1],
            positions=tuple(site.position for site in sites),
            y_source=split.y_source,
            gap=split.gap,
            maximum_strength=self.protocol.maximum_strength,
            respond=respond,
        )

    def _fit(
        self, row: Selector, split: Split, sites: Sequence[Site], columns: np.ndarray, generator: np.random.Generator
    ) -> Fit:
        return Fit(
            columns=columns,
            gap=split.gap,
            support_size=min(row.support_size or self.protocol.support_size, len(sites)),
            minimum_effect=self.protocol.minimum_effect,
            maximum_strength=self.protocol.maximum_strength,
            draws=self.protocol.random_supports,
            generator=generator,
            measure=_measure(split, sites),
        )


def baseline_intervention(selection: Selection, sites: Sequence[Site]) -> Intervention:
    """The intervention that a baseline chose among sites of the residual stream."""
    support = tuple(sites[index] for index in selection.support)
    directions = tuple(torch.from_numpy(direction) for direction in selection.directions or ())
    return Intervention(support, selection.strengths, directions, levels=selection.levels)


def _measure(split: Split, sites: Sequence[Site]) -> Measure:
    """`measure` of `driver_omp_remeasured` on a split."""

    def measure(
        support: tuple[int, ...], strengths: tuple[float, ...], wanted: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        chosen = [sites[index] for index in support]
        joint = joint_readouts(split, chosen, strengths) - split.y_source
        return joint, measured_effects(split, [sites[index] for index in wanted], chosen, strengths)

    return measure


@dataclass(frozen=True, eq=False)
class FittedDirections:
    """Mean contrasts of one fitting split.

    Attributes:
        directions: (site width,) float64 per site.
        pairs: those of the split that pass the gate.
    """

    directions: tuple[Tensor, ...]
    pairs: tuple[Pair, ...]


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
    """Rule F at the sites of a support, from the fitting split drawn and gated anew; nothing is selected.

    Args:
        lm: the model.
        support: the sites.
        task: a task of the panels.
        seed: whose fitting split is drawn.
        n_pairs: pairs drawn before the gate.
        minimum_gap: g_min of the gate, in logits.
        sources: files that replace the project's own texts.

    Raises:
        InputError: unknown task, more pairs than the panel has, or a pair the tokenizer breaks.
        ValueError: no pair passes the gate, or a site outside the model or a prompt.
    """
    split = Split.read(lm, build_pairs(task, lm, "fit", n_pairs, seed, sources), support)
    kept = kept_pairs(split.y_source, split.y_target, minimum_gap)
    if not kept:
        raise ValueError(f"task {task}: no pair of the fitting split has a gap of {minimum_gap:g} logits on {lm.name}")
    gated = split.take(kept)
    return FittedDirections(mean_contrast(gated.contrasts, support), gated.pairs)


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
