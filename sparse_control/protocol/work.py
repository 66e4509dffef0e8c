"""The dry run: how much work a six-axis run is, counted from its settings and the prompts it will read.

All counts are upper bounds: the gate may drop pairs, a selector may stop early, and the feedback loop ends when it
hits. A patched readout is one prompt under one patch; with keys and values of the tokens before the earliest candidate
position at hand it passes only the tokens from there on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from sparse_control.errors import UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.protocol.effects import first_order_effects, measured_effects
from sparse_control.protocol.gate import candidate_sites, stream_sites
from sparse_control.protocol.given_record import SHARES
from sparse_control.protocol.grid import studies
from sparse_control.protocol.panels import SPLITS, PairFile, drawn_from
from sparse_control.protocol.panels.offtarget import OffTargetPrompt
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.prompts import MAXIMUM_ROWS
from sparse_control.protocol.selectors.baselines import strengths_within
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.protocol.splits import Split
from sparse_control.records.given import is_control
from sparse_control.settings import ProtocolSettings

BuildPairs = Callable[[str, LanguageModel, str, int, int], tuple[Pair, ...]]
SplitPairs = Mapping[str, Sequence[Pair]]

PROBED_SITES = 32  # patched readouts per pair of the timing probe


@dataclass(frozen=True)
class Work:
    """Passes through the model.

    Attributes:
        forwards: calls of the model.
        readouts: patched readouts, one prompt under one patch each.
        read: tokens of prompts read unpatched.
        patched: tokens that pass in patched readouts.
        differentiated: tokens that pass forwards and backwards in first-order effects.
    """

    forwards: int = 0
    readouts: int = 0
    read: int = 0
    patched: int = 0
    differentiated: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + theirs for mine, theirs in zip(self._values, other._values, strict=True)))

    @property
    def _values(self) -> tuple[int, ...]:
        return self.forwards, self.readouts, self.read, self.patched, self.differentiated

    @property
    def tokens(self) -> int:
        """All tokens that pass the model."""
        return self.read + self.patched + self.differentiated


@dataclass(frozen=True)
class Rates:
    """Seconds per token of each kind of `Work`, measured on this machine."""

    read: float
    patched: float
    differentiated: float

    def seconds(self, work: Work) -> float:
        """How long some work takes at these rates."""
        return work.read * self.read + work.patched * self.patched + work.differentiated * self.differentiated


@dataclass(frozen=True)
class Batch:
    """Prompts that are read and patched together.

    Attributes:
        lengths: tokens of each prompt.
        tails: of these, how many from the earliest candidate position on.
        kinds: which prompts share a patched forward; those whose candidate positions count alike.
    """

    lengths: tuple[int, ...]
    tails: tuple[int, ...]
    kinds: tuple[tuple[int, int | None], ...]

    @classmethod
    def of(cls, lengths: Sequence[int], positions: Sequence[int]) -> "Batch":
        """Prompts of these lengths with candidate sites at these positions."""
        first = [min(position % length for position in positions) for length in lengths]
        tails = tuple(length - place for length, place in zip(lengths, first, strict=True))
        from_start = any(position >= 0 for position in positions)
        kinds = tuple((tail, place if from_start else None) for tail, place in zip(tails, first, strict=True))
        return cls(tuple(lengths), tails, kinds)

    def reading(self) -> Work:
        """Each prompt once, unpatched: what lies before the candidates by length, then the rest by kind."""
        pairs = zip(self.kinds, self.lengths, self.tails, strict=True)
        before = {(kind, length) for kind, length, tail in pairs if length > tail}
        return Work(forwards=len(before) + len(set(self.kinds)), read=sum(self.lengths))

    def patching(self, patches: int) -> Work:
        """Each prompt under some patches."""
        together = max(1, MAXIMUM_ROWS // len(self.lengths))
        forwards = ceil(patches / together) * len(set(self.kinds))
        return Work(forwards=forwards, readouts=patches * len(self.lengths), patched=patches * sum(self.tails))

    def differentiating(self) -> Work:
        """Each prompt's gradient once."""
        return Work(forwards=len(set(self.kinds)), differentiated=sum(self.tails))


@dataclass(frozen=True)
class Item:
    """One line of the dry run.

    Attributes:
        task, selector, condition: whose work it is; "shared" for what the records of a task have in common.
        seeds: over which it is summed.
        sites: candidate sites.
        work: at most.
    """

    task: str
    selector: str
    condition: str
    seeds: tuple[int, ...]
    sites: int
    work: Work


def reading_work(task: str, splits: Mapping[str, Batch]) -> Work:
    """Both sides of every pair of one (task, seed), read once for all its records."""
    work = Work()
    for name, split in splits.items():
        if drawn_from(task, name)[1] == name:
            work += split.reading() + split.reading()  # source and target
    return work


def effects_work(protocol: ProtocolSettings, fit: Batch, n_sites: int) -> Work:
    """The effect columns of one fitting split, which all records of it share."""
    checked = n_sites if protocol.effects == "measured" else min(protocol.effects_check, n_sites)
    return fit.differentiating() + fit.patching(checked)


def choosing_work(
    protocol: ProtocolSettings, selector: str, splits: Mapping[str, Batch], n_sites: int, n_stream: int
) -> Work:
    """What both direction rules of one (task, selector, seed) share: selection, joint patch and refitted strengths."""
    fit, reuse = splits["fit"], splits["reuse"]
    if selector not in SELECTORS:  # given: its fit of one factor, twice, and its unit push
        return fit.patching(2 * len(SHARES)) + fit.patching(1) + reuse.patching(2 * len(SHARES))
    if SELECTORS[selector].baseline:
        return _searching(protocol, selector, fit, reuse, n_stream)
    k = min(SELECTORS[selector].support_size or protocol.support_size, n_sites)
    size = n_sites if SELECTORS[selector].all_sites else k
    refitting = reuse.patching(size) if protocol.effects == "measured" else reuse.differentiating()
    work = fit.patching(1) + refitting
    if SELECTORS[selector].remeasures:
        work += _remeasuring(fit, k, n_sites) + _remeasuring(reuse, k, k)
    return work


def _searching(protocol: ProtocolSettings, selector: str, fit: Batch, reuse: Batch, n_stream: int) -> Work:
    """The grid of strengths at every site of the residual stream, the joint patch, and the strength of the reuse split.

    A replacement has one strength, and none to fit anew.
    """
    tried = len(strengths_within(protocol.maximum_strength))
    grid, again = (1, Work()) if SELECTORS[selector].replaces else (tried, reuse.patching(tried))
    work = fit.patching(1) + again
    for _ in range(n_stream):
        work += fit.patching(grid)
    return work


def _remeasuring(batch: Batch, rounds: int, n_sites: int) -> Work:
    """The joint patch twice in each round, and all candidates beside it in each but the last."""
    work = Work()
    for place in range(rounds):
        work += batch.patching(1) + batch.patching(1)
        if place < rounds - 1:
            work += batch.patching(n_sites)
    return work


def record_work(
    protocol: ProtocolSettings, task: str, selector: str, splits: Mapping[str, Batch], off_target: Batch
) -> Work:
    """The six axes of one record."""
    evaluate, reuse = splits["evaluate"], splits["reuse"]
    work = evaluate.patching(sum(dose != 0 for dose in protocol.doses)) + evaluate.patching(1)  # axes 1 to 3
    for _ in range(protocol.feedback.readouts - 1):  # the zero-dose readout is known
        work += evaluate.patching(protocol.feedback.targets[task])
    work += off_target.patching(sum(dose != 0 for dose in protocol.doses)) + reuse.patching(1) + reuse.patching(1)
    if is_control(selector) or (selector in SELECTORS and SELECTORS[selector].draws):
        further = protocol.random_supports - 1
        work += evaluate.patching(further) + evaluate.patching(further)
    return work


def planned(
    lm: LanguageModel,
    protocol: ProtocolSettings,
    pairs: Mapping[tuple[str, int], SplitPairs | None],
    off_target: Sequence[OffTargetPrompt],
    given_pairs: PairFile | None = None,
) -> list[Item]:
    """The work of every study of the settings, as the run does it: what records share is counted once.

    Args:
        lm: the model; it is not run.
        protocol: the settings.
        pairs: per (task, seed) the pairs of each split, as `build_all_pairs` gives them; None where the model does not
            support the task.
        off_target: prompts of axis 5.
        given_pairs: pairs given as a file, which are a task too.
    """
    n_sites, n_stream = len(candidate_sites(lm, protocol)), len(stream_sites(lm, protocol))
    others = Batch.of([len(lm.encode(prompt.text)) for prompt in off_target], protocol.positions)
    items, grid = [Item("all", "shared", "", (), n_sites, others.reading())], studies(protocol, given_pairs)
    chosen: set[tuple[str, int, str]] = set()  # (task of the fitting pairs, seed, selector) whose choice is counted
    for task in protocol.tasks:
        seeds = tuple(seed for seed in protocol.seeds_of(task) if pairs[task, seed] is not None)
        of = drawn_from(task, "fit")[0]
        batches = [_batches(pairs[task, seed], protocol.positions) for seed in seeds]

        def item(selector: str, condition: str, works: list[Work]) -> Item:
            return Item(task, selector, condition, seeds, n_sites, sum(works, Work()))

        shared = []
        for seed, splits in zip(seeds, batches, strict=True):
            if (of, seed, "shared") not in chosen:
                shared += [reading_work(task, splits), effects_work(protocol, splits["fit"], n_sites)]
                chosen.add((of, seed, "shared"))
        items.append(item("shared", "", shared))
        for selector in protocol.selectors:
            basis = (selector in SELECTORS and SELECTORS[selector].choice_of) or selector
            for condition in (named[2] for named in grid if named[:2] == (task, selector)):
                works = [record_work(protocol, task, selector, splits, others) for splits in batches]
                for seed, splits in zip(seeds, batches, strict=True):
                    if (of, seed, basis) not in chosen:
                        works.append(choosing_work(protocol, basis, splits, n_sites, n_stream))
                        chosen.add((of, seed, basis))
                items.append(item(selector, condition, works))
    return items


def _batches(splits: SplitPairs, positions: Sequence[int]) -> dict[str, Batch]:
    return {name: Batch.of([len(pair.source_ids) for pair in splits[name]], positions) for name in SPLITS}


def build_all_pairs(
    lm: LanguageModel, protocol: ProtocolSettings, build: BuildPairs
) -> dict[tuple[str, int], dict[str, tuple[Pair, ...]] | None]:
    """Every pair the settings ask for, per (task, seed) and split; None where the model does not support the task.

    Args:
        lm: its tokenizer is used.
        protocol: the settings.
        build: (task, lm, split, n, seed) -> pairs.

    Raises:
        InputError: a panel has too few pairs, or the tokenizer breaks one.
    """
    built = {}
    for task in protocol.tasks:
        for seed in protocol.seeds_of(task):
            try:
                built[task, seed] = {
                    name: build(task, lm, name, getattr(protocol.pairs, drawn_from(task, name)[1]), seed)
                    for name in SPLITS
                }
            except UnsupportedModel:
                built[task, seed] = None
    return built


def measured_rates(lm: LanguageModel, protocol: ProtocolSettings, pairs: Sequence[Pair]) -> Rates:
    """Seconds per token on this machine, from reading some pairs, a few patches of each, and one backward pass.

    Args:
        lm: the model.
        protocol: the settings, for the candidate sites.
        pairs: a fitting split.
    """
    sites = candidate_sites(lm, protocol)
    probed = sites[:: max(1, len(sites) // PROBED_SITES)]  # early and late, as a forward starts at its first patch
    batch = Batch.of([len(pair.source_ids) for pair in pairs], protocol.positions)
    Split.read(lm, pairs[:1], sites)  # the first pass of a process is slower than any later one
    start = time.perf_counter()
    split = Split.read(lm, pairs, sites)
    read = time.perf_counter()
    measured_effects(split, probed)
    patched = time.perf_counter()
    first_order_effects(split, sites)
    end = time.perf_counter()
    patches = batch.patching(len(probed))
    return Rates(
        read=(read - start) / (2 * sum(batch.lengths)),
        patched=(patched - read) / patches.patched,
        differentiated=(end - patched) / sum(batch.tails),
    )
