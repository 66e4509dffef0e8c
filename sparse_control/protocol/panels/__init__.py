"""Minimal-edit pairs per task, and the off-target panel: the project's own texts, or files of the reader's."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse_control.errors import InputError
from sparse_control.protocol.panels import cue, ioi, mcqa, refusal, sentiment, xstest
from sparse_control.protocol.panels.draw import SPLITS, Draw, Plan, check_disjoint, check_pairs, draw
from sparse_control.protocol.panels.given_pairs import PairFile
from sparse_control.protocol.panels.loaders import load_mmlu, load_xstest
from sparse_control.protocol.panels.offtarget import OFF_TARGET, OffTargetPrompt, off_target_panel
from sparse_control.protocol.panels.pair import Draft, Pair, build_pair
from sparse_control.protocol.panels.sources import OWN, PanelSources, field_questions
from sparse_control.seeds import stream

__all__ = [
    "OFF_TARGET", "SPLITS", "TASKS", "Draft", "Draw", "OffTargetPrompt", "Pair", "PairFile", "PanelSources",
    "build_pair", "build_pairs", "check_pairs", "check_splits", "draw_pairs", "drawn_from", "load_mmlu", "load_xstest",
    "off_target_panel", "panel_source",
]  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One task's material.

    Attributes:
        plan: (split, n, generator, sources, encoder) -> how its places are filled.
        units: (split, sources, encoder) -> kind -> what no other split may hold.
        file: which of `PanelSources` stands in for the own texts; None: none does.
        oriented: whether the orientation of its pairs is drawn at random; else all have one, and the same sign.
        subjects: (split, sources) -> subjects that the off-target panel may not hold; None: it has none.
        same_panel_as: the task whose pairs it has, and whose fitting pairs are its evaluation pairs too ("same panel"
            in the source document); None: all its splits are apart.
    """

    plan: Callable[[str, int, np.random.Generator, PanelSources, Any], Plan]
    units: Callable[[str, PanelSources, Any], dict[str, tuple[str, ...]]]
    file: str | None = None
    oriented: bool = True
    subjects: Callable[[str, PanelSources], set[str]] | None = None
    same_panel_as: str | None = None


def _own(module: Any, oriented: bool = True) -> Panel:
    return Panel(
        oriented=oriented,
        plan=lambda split, n, generator, sources, encoder: module.plan(split, n, generator),
        units=lambda split, sources, encoder: module.units(split),
    )


def _mcqa(task: str, field: str) -> Panel:
    return Panel(
        plan=lambda split, n, generator, sources, encoder: mcqa.plan(
            task, split, field_questions(field, split, sources), n, generator
        ),
        units=lambda split, sources, encoder: {
            "question": tuple(question.text for question in field_questions(field, split, sources))
        },
        file="mmlu",
        subjects=lambda split, sources: {question.subject for question in field_questions(field, split, sources)},
    )


def _refusal_plan(split: str, n: int, generator: np.random.Generator, sources: PanelSources, encoder: Any) -> Plan:
    data = sources.xstest_prompts
    return refusal.plan(split, n, generator) if data is None else xstest.plan(data, split, generator, encoder)


def _refusal_units(split: str, sources: PanelSources, encoder: Any) -> dict[str, tuple[str, ...]]:
    data = sources.xstest_prompts
    if data is None:
        return refusal.units(split)
    if encoder is None:
        raise InputError("refusal: a tokenizer deals the prompts of XSTest to the splits; give check_splits an encoder")
    return xstest.units(data, split, encoder)


TASKS = {
    "ioi": _own(ioi),
    "ioi_same_panel": replace(_own(ioi), same_panel_as="ioi"),
    "sentiment": _own(sentiment, oriented=False),
    "refusal": Panel(_refusal_plan, _refusal_units, "xstest", oriented=False),
    "mcqa_humanities": _mcqa("mcqa_humanities", "humanities"),
    "mcqa_stem": _mcqa("mcqa_stem", "stem"),
    "mcqa_cue": _own(cue),
}


def _panel(task: str) -> Panel:
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}; there are: {', '.join(TASKS)}")
    return TASKS[task]


def drawn_from(task: str, split: str) -> tuple[str, str]:
    """The task and split that a split's pairs are of: its own, or of a "same panel" task those it is evaluated on.

    Whatever is decided on the fitting split is the same for a "same panel" task and the task it has its pairs of.
    """
    other = TASKS[task].same_panel_as if task in TASKS else None
    return (task, split) if other is None else (other, "fit" if split == "evaluate" else split)


def panel_source(task: str, sources: PanelSources = PanelSources()) -> str:
    """Where a task's texts come from, also of `off_target`: `own`, `mmlu` or `xstest`, or a file, and its SHA-256.

    Raises:
        InputError: unknown task, or as the loaders.
    """
    if task == "off_target" and sources.off_target is not None:
        return f"{sources.off_target.name} sha256:{sources.off_target_sha256}"
    if (given := sources.pairs_of(task)) is not None:
        return given.source
    file = "mmlu" if task == "off_target" else _panel(task).file
    if file == "mmlu" and sources.mmlu_questions is not None:
        return sources.mmlu_questions.source
    if file == "xstest" and sources.xstest_prompts is not None:
        return sources.xstest_prompts.source
    return OWN


def draw_pairs(task: str, encoder: Any, split: str, n: int, seed: int, sources: PanelSources = PanelSources()) -> Draw:
    """Draw and check pairs of one split; the splits of a task share no template, name, word, question or prompt.

    Of a "same panel" task the evaluation pairs are the fitting pairs, and say so in their ids.

    Args:
        task: a key of `TASKS`, or the file of pairs of `sources`, which has as many of a split as it has.
        encoder: a `LanguageModel` or tokenizer.
        split: `fit`, `evaluate` or `reuse`.
        n: number of pairs; there are fewer where the tokenizer breaks too many, and with XSTest.
        seed: the draw uses the stream (seed, task, split, "pairs"), of the task and split of `drawn_from`.
        sources: files that stand in for the project's own texts.

    Raises:
        InputError: unknown task or split, more pairs than the panel has, none that the tokenizer keeps, or a bad file.
        UnsupportedModel: Refusal, and the model has no chat template that takes a system prompt.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"{task}: split {split}: number of pairs must be a whole number from 1, got {n!r}")
    if (given := sources.pairs_of(task)) is not None:
        return given.draw(encoder, split, n, seed)
    panel = _panel(task)
    task, split = drawn_from(task, split)
    plan = panel.plan(split, n, stream(seed, task, split, "pairs"), sources, encoder)
    return draw(encoder, task, split, n, plan, panel_source(task, sources))


def build_pairs(
    task: str, encoder: Any, split: str, n: int, seed: int, sources: PanelSources = PanelSources()
) -> tuple[Pair, ...]:
    """The pairs of `draw_pairs`."""
    return draw_pairs(task, encoder, split, n, seed, sources).pairs


def check_splits(task: str, sources: PanelSources = PanelSources(), encoder: Any = None) -> None:
    """No template, name, word, question or prompt is in two splits, and none of a task's subjects is off target.

    Args:
        task: a key of `TASKS`, or the file of pairs of `sources`, of which a prompt is read once.
        sources: files that stand in for the project's own texts.
        encoder: a `LanguageModel` or tokenizer; needed for XSTest alone.

    Raises:
        InputError: names what is shared, and the splits.
    """
    if sources.pairs_of(task) is not None:
        return
    material = _panel(task)
    parts = {split: material.units(split, sources, encoder) for split in SPLITS}
    if material.file == "mmlu":
        panel = off_target_panel(sources=sources)
        parts["off_target"] = {"question": tuple(prompt.text.rpartition("\nA. ")[0] for prompt in panel)}
    check_disjoint(task, parts)
    if material.subjects is not None and sources.mmlu_questions is not None:
        subjects = {subject for split in SPLITS for subject in material.subjects(split, sources)}  # splits share them
        apart = {prompt.subject for prompt in panel}
        check_disjoint(task, {"of the task": {"subject": subjects}, "off_target": {"subject": apart}})
