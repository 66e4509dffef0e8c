"""`run six-axis --dry-run`: what would be measured, how much work it is, and about how long it takes here."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sparse_control.commands.text import aligned
from sparse_control.errors import InputError
from sparse_control.notes import note

if TYPE_CHECKING:
    from sparse_control.protocol.given import GivenFile
    from sparse_control.protocol.panels import PanelSources
    from sparse_control.protocol.work import Item, Rates
    from sparse_control.settings import Settings


def plan_lines(settings: "Settings", sources: "PanelSources", given: Sequence["GivenFile"] = ()) -> list[str]:
    """The plan of a six-axis run as a table; the model is loaded, and timed on a few prompts.

    Args:
        settings: what is asked for.
        sources: files in place of the project's own texts, and pairs from a file.
        given: interventions from files; each is read and held against the model.

    Raises:
        InputError: the model cannot be loaded, a panel has too few pairs, or no task is supported by the model.
    """
    from sparse_control.models import load_model
    from sparse_control.protocol.panels import build_pairs, off_target_panel
    from sparse_control.protocol.work import build_all_pairs, measured_rates, planned
    from sparse_control.threads import pin_threads

    protocol = settings.protocol
    pin_threads(settings.threads)
    note(f"loading {settings.model} ...")
    lm = load_model(settings.model, dtype=settings.dtype).with_template_arguments(protocol.template_arguments)
    for file in given:
        file.intervention(lm)
    pairs = build_all_pairs(
        lm, protocol, lambda task, encoder, split, n, seed: build_pairs(task, encoder, split, n, seed, sources)
    )
    supported = [splits for splits in pairs.values() if splits is not None]
    if not supported:
        raise InputError(f"{settings.model}: none of the tasks is supported by this model: {', '.join(protocol.tasks)}")
    try:
        items = planned(lm, protocol, pairs, off_target_panel(sources=sources), sources.pairs)
        note("timing a few prompts ...")
        rates = measured_rates(lm, protocol, supported[0]["fit"])
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"protocol.positions: {error}") from error
    records = sum(len(item.seeds) for item in items if item.selector != "shared")
    return [
        f"six-axis at preset {settings.preset} on {lm.name}: {records} records; nothing has been measured",
        "",
        *aligned([
            ("task", "selector", "direction", "seeds", "sites", "forwards", "patched", "tokens", "time"),
            *(_row(item, rates) for item in items),
            _total(items, rates),
        ]),
        "",
        "patched: readouts of one prompt under one patch. Counts are upper bounds: pairs that fail the gate, selectors "
        "and feedback loops that end early, and records that stand already cost less or nothing.",
    ]  # fmt: skip


def _row(item: "Item", rates: "Rates") -> tuple[str, ...]:
    numbers = (item.work.forwards, item.work.readouts, item.work.tokens)
    if item.task == "all":
        return ("all", "off-target panel", "", "", "", *(f"{n:,}" for n in numbers), _spoken(rates.seconds(item.work)))
    if not item.seeds:
        return (item.task, item.selector, item.condition, "not supported by this model", "", "", "", "", "")
    selector = "pairs and effects" if item.selector == "shared" else item.selector
    seeds = ", ".join(map(str, item.seeds))
    counts = (f"{number:,}" for number in numbers)
    return (item.task, selector, item.condition, seeds, str(item.sites), *counts, _spoken(rates.seconds(item.work)))


def _total(items: Iterable["Item"], rates: "Rates") -> tuple[str, ...]:
    works = [item.work for item in items]
    whole = sum(works[1:], works[0])
    numbers = (whole.forwards, whole.readouts, whole.tokens)
    return ("total", "", "", "", "", *(f"{number:,}" for number in numbers), _spoken(rates.seconds(whole)))


def _spoken(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
