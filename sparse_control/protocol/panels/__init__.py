"""The project's own prompts: minimal-edit pairs per task, and the off-target panel."""

from typing import Any

from sparse_control.errors import InputError
from sparse_control.protocol.panels import ioi, sentiment
from sparse_control.protocol.panels.offtarget import OFF_TARGET, OffTargetPrompt
from sparse_control.protocol.panels.pair import Draft, Pair, build_pair
from sparse_control.seeds import stream

__all__ = ["OFF_TARGET", "SPLITS", "TASKS", "Draft", "OffTargetPrompt", "Pair", "build_pair", "build_pairs"]

TASKS = {ioi.TASK: ioi, sentiment.TASK: sentiment}
SPLITS = ("fit", "evaluate", "reuse")


def build_pairs(task: str, encoder: Any, split: str, n: int, seed: int) -> tuple[Pair, ...]:
    """Draw and check `n` pairs of one split; the splits of a task share no template and no word that is edited.

    Args:
        task: a key of `TASKS`.
        encoder: a `LanguageModel` or tokenizer.
        split: `fit`, `evaluate` or `reuse`.
        n: number of pairs.
        seed: the draw uses the stream (seed, task, split, "pairs").

    Raises:
        InputError: unknown task or split, more pairs than the panel has, or a pair the tokenizer breaks.
    """
    if task not in TASKS:
        raise InputError(f"unknown task {task!r}; there are: {', '.join(TASKS)}")
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; there are: {', '.join(SPLITS)}")
    drafts = TASKS[task].drafts(split, n, stream(seed, task, split, "pairs"))
    return tuple(build_pair(encoder, draft) for draft in drafts)
