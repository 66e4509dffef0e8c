"""Prompts of equal token length, which share a forward without padding."""

from collections.abc import Sequence, Sized


def group_by_length(ids: Sequence[Sized]) -> list[list[int]]:
    """Indices of the prompts of each token length, lengths in order of first appearance."""
    groups: dict[int, list[int]] = {}
    for index, prompt in enumerate(ids):
        groups.setdefault(len(prompt), []).append(index)
    return list(groups.values())
