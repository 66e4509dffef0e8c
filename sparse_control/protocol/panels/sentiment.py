"""Sentiment: a short review whose two adjectives turn from negative to positive (source document: Sentiment)."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from sparse_control.protocol.panels.draw import Plan
from sparse_control.protocol.panels.pair import Draft, Pair, fill

TASK = "sentiment"

# (negative, positive) answers, one token each with a leading space; those of the reuse split are none of the others'.
LABELS = {
    "fit": (("negative", "positive"), ("bad", "good")),
    "evaluate": (("negative", "positive"), ("bad", "good")),
    "reuse": (("worse", "better"), ("awful", "wonderful")),
}

TEMPLATES = {
    "fit": (
        "I watched the movie last night and it was {one} and {two}. Sentiment:",
        "The food at the new place was {one} and the service was {two}. In short, my review is",
        "Everyone agreed that the concert was {one} and {two}. The overall tone of this comment is",
        "We stayed two nights and found the hotel {one} and the breakfast {two}. Overall, the experience was",
        "The first chapter of the novel is {one}, and the ending is {two}. All in all, my opinion of it was",
        "My sister called the lecture {one} and the speaker {two}. Her feedback was",
    ),
    "evaluate": (
        "The game was {one} and its story was {two}. The tone of the critic was",
        "Our guide was {one}, and the whole tour felt {two}. The rating we left was",
        "His new album sounds {one} and its lyrics are {two}. The sentiment of this post is",
        "The actors were {one} and the script was {two}. My impression of the play was",
        "People say the museum is {one} and the staff are {two}. Their reaction is",
        "To me the lamp looks {one} and feels {two}. My view of the product is",
    ),
    "reuse": (
        "The flight was {one} and the crew seemed {two}. Our feelings about the trip were",
        "Her painting is {one} and the colours are {two}. The tone of these remarks is",
        "That class was {one} and the homework was {two}. The student's evaluation was",
        "This phone has a {one} screen and a {two} camera. The customer's attitude is",
        "We thought the festival was {one} and the music {two}. The mood of this message is",
        "The apartment is {one} and the kitchen is {two}. On the whole, our impression was",
    ),
}

# (negative, positive), one token each with a leading space.
ADJECTIVES = {
    "fit": (
        ("terrible", "wonderful"), ("horrible", "excellent"), ("boring", "exciting"), ("dull", "brilliant"),
        ("poor", "superb"), ("nasty", "lovely"), ("weak", "strong"), ("sad", "happy"),
    ),
    "evaluate": (
        ("awful", "great"), ("dreadful", "fantastic"), ("disappointing", "delightful"), ("ugly", "beautiful"),
        ("tedious", "engaging"), ("rude", "kind"), ("annoying", "charming"), ("useless", "useful"),
    ),
    "reuse": (
        ("bad", "good"), ("unpleasant", "enjoyable"), ("stupid", "clever"), ("miserable", "joyful"),
        ("unbearable", "impressive"), ("ridiculous", "remarkable"), ("broken", "perfect"), ("bitter", "sweet"),
    ),
}  # fmt: skip


def plan(split: str, n: int, generator: np.random.Generator) -> Plan:
    """Templates in turn, each with every label in turn; no two adjectives in the same order twice."""
    couples = list(permutations(ADJECTIVES[split], 2))
    chosen = generator.permutation(len(couples))
    templates, labels = generator.permutation(len(TEMPLATES[split])), LABELS[split]

    def drafts(pairs: Sequence[Pair], couple: tuple[tuple[str, str], tuple[str, str]]) -> tuple[Draft, ...]:
        turn, place = divmod(len(pairs), len(templates))
        return (_draft(split, int(templates[place]), couple, labels[(turn + place) % len(labels)]),)

    return Plan(candidates=[couples[couple] for couple in chosen], drafts=drafts)


def units(split: str) -> dict[str, tuple[str, ...]]:
    """What no other split may hold; of labels, those of reuse are none of the fitting split's."""
    labels = () if split == "evaluate" else tuple(" and ".join(label) for label in LABELS[split])
    words = tuple(word for couple in ADJECTIVES[split] for word in couple)
    return {"template": TEMPLATES[split], "word": words, "label": labels}


def _draft(split: str, template: int, couple: tuple[tuple[str, str], tuple[str, str]], label: tuple[str, str]) -> Draft:
    (bad_one, good_one), (bad_two, good_two) = couple
    return Draft(
        id=f"{TASK}/{split}/{template}/{bad_one}-{bad_two}/{'-'.join(label)}",
        task=TASK,
        split=split,
        orientation="negative-positive",
        pieces=fill(TEMPLATES[split][template], one=(bad_one, good_one), two=(bad_two, good_two)),
        source_answers=(f" {label[0]}",),
        target_answers=(f" {label[1]}",),
    )
