"""`run six-axis --dry-run`: what would be measured, how much work it is, and about how long it takes here."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparse_control.commands.text import aligned
from sparse_control.errors import InputError
from sparse_control.notes import note

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.protocol.given import GivenFile
    from sparse_control.protocol.panels import Pair, PanelSources
    from sparse_control.protocol.work import Item, Rates, Work
    from sparse_control.settings import Settings


def plan_lines(
    settings: "Settings", sources: "PanelSources", given: Sequence["GivenFile"] = (), timed: bool = False
) -> list[str]:
    """The plan of a six-axis run as a table: its counts are of the pairs of each task's first seed.

    Args:
        settings: what is asked for.
        sources: files in place of the project's own texts, and pairs from a file.
        given: interventions from files; each is read and held against the model.
        timed: whether the model is loaded and timed on a few prompts; else tokenizer and structure are read alone.

    Raises:
        InputError: the model cannot be read, a panel has too few pairs, or no task is supported by the model.
    """
    from sparse_control.commands.unloaded import unloaded_model
    from sparse_control.protocol.panels import build_pairs, off_target_panel
    from sparse_control.protocol.work import build_all_pairs, planned
    from sparse_control.threads import pin_threads

    protocol = settings.protocol
    pin_threads(settings.threads)
    lm = _loaded(settings) if timed else unloaded_model(settings)
    for file in given:
        file.intervention(lm)
    first = {task: protocol.seeds_of(task)[0] for task in protocol.tasks}
    built = build_all_pairs(
        lm,
        protocol.model_copy(update={"task_seeds": {task: [seed] for task, seed in first.items()}}),
        lambda task, encoder, split, n, seed: build_pairs(task, encoder, split, n, seed, sources),
    )
    pairs = {(task, seed): built[task, first[task]] for task in protocol.tasks for seed in protocol.seeds_of(task)}
    supported = [splits for splits in built.values() if splits is not None]
    if not supported:
        raise InputError(f"{settings.model}: none of the tasks is supported by this model: {', '.join(protocol.tasks)}")
    try:
        items = planned(lm, protocol, pairs, off_target_panel(sources=sources), sources.pairs)
        rates = _rates(lm, settings, supported[0]["fit"]) if timed else None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"protocol.positions: {error}") from error
    records = sum(len(item.seeds) for item in items if item.selector != "shared")
    return [
        f"six-axis at preset {settings.preset} on {lm.name}: {records} records; nothing has been measured",
        "",
        *aligned([
            ("task", "selector", "direction", "seeds", "sites", "forwards", "patched", "tokens", *(["time"] * timed)),
            *(_row(item, rates) for item in items),
            _total(items, rates),
        ]),
        "",
        "patched: readouts of one prompt under one patch. Counts are upper bounds, from the pairs of the first seed: "
        "pairs that fail the gate, selectors and feedback loops that end early, and records that are there already "
        "cost less or nothing." + ("" if timed else " With --timed the model is loaded and timed on a few prompts."),
    ]  # fmt: skip


def _loaded(settings: "Settings") -> "LanguageModel":
    from sparse_control.models import load_model

    note(f"loading {settings.model} ...")
    lm = load_model(settings.model, dtype=settings.dtype)
    return lm.with_template_arguments(settings.protocol.template_arguments)


def _rates(lm: "LanguageModel", settings: "Settings", pairs: Sequence["Pair"]) -> "Rates":
    from sparse_control.protocol.work import measured_rates

    note("timing a few prompts ...")
    return measured_rates(lm, settings.protocol, pairs)


def _row(item: "Item", rates: "Rates | None") -> tuple[str, ...]:
    counts = _counts(item.work, rates)
    if item.task == "all":
        return ("all", "off-target panel", "", "", "", *counts)
    if not item.seeds:
        return (item.task, item.selector, item.condition, "not supported by this model", "", *("" for _ in counts))
    selector = "pairs and effects" if item.selector == "shared" else item.selector
    seeds = ", ".join(map(str, item.seeds))
    return (item.task, selector, item.condition, seeds, str(item.sites), *counts)


def _counts(work: "Work", rates: "Rates | None") -> tuple[str, ...]:
    counts = tuple(f"{number:,}" for number in (work.forwards, work.readouts, work.tokens))
    return counts if rates is None else (*counts, _spoken(rates.seconds(work)))


def _total(items: Iterable["Item"], rates: "Rates | None") -> tuple[str, ...]:
    works = [item.work for item in items]
    return ("total", "", "", "", "", *_counts(sum(works[1:], works[0]), rates))


def _spoken(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
