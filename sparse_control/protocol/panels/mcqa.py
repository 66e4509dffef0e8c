"""Multiple-choice answering: the right option moves between two letters (source document: MCQA Humanities, STEM).

Source and target are one question with the texts of two options swapped, of which one is the right one. The two texts
have equal token length, so that only they differ; a question whose right option has no such partner is passed over.
All splits put their questions in the same plain format; they share no question.
"""

from collections.abc import Sequence

import numpy as np

from sparse_control.protocol.panels.draw import Plan
from sparse_control.protocol.panels.pair import Draft, Piece
from sparse_control.protocol.panels.questions import LETTERS, Question


def plan(task: str, split: str, questions: Sequence[Question], n: int, generator: np.random.Generator) -> Plan:
    """Questions in a random order; their own order of options is the source of one half of the pairs."""
    own_is_source = generator.permutation([i % 2 == 0 for i in range(n)])
    wrong = [generator.permutation([i for i in range(4) if i != question.answer]) for question in questions]
    return Plan(
        candidates=[(questions[i], wrong[i]) for i in generator.permutation(len(questions))],
        drafts=lambda pairs, candidate: tuple(
            _draft(task, split, candidate[0], int(other), bool(own_is_source[len(pairs)])) for other in candidate[1]
        ),
    )


def _draft(task: str, split: str, question: Question, other: int, own_is_source: bool) -> Draft:
    """The question with its right option at its own letter, and moved to the letter of option `other`."""
    right = question.answer
    pieces: list[Piece] = [question.text]
    for place, letter in enumerate(LETTERS):
        pieces.append(f"\n{letter}.")
        own = f" {question.options[place]}"
        if place not in (right, other):
            pieces.append(own)
            continue
        moved = f" {question.options[other if place == right else right]}"
        pieces.append((own, moved) if own_is_source else (moved, own))
    source, target = (LETTERS[i] for i in ((right, other) if own_is_source else (other, right)))
    return Draft(
        id=f"{task}/{split}/{question.id}/{source}-{target}",
        task=task,
        split=split,
        orientation=f"{source}-{target}",
        pieces=(*pieces, "\nAnswer:"),
        source_answers=(f" {source}",),
        target_answers=(f" {target}",),
        sign=1 if source < target else -1,
    )
