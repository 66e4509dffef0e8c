"""Multiple choice with a cue, for models too small to bind options to letters (`mcqa_cue`).

The last line already names the right option; what is asked is the letter that stands behind it in the list. Two solved
examples come first. Options are listed as `- option letter`, so that copying what followed the option is enough. Its
figures stand under its own name and never for multiple-choice answering.
"""

from collections.abc import Sequence

import numpy as np

from sparse_control.protocol.panels.draw import Plan
from sparse_control.protocol.panels.pair import Draft, Pair, Piece

TASK = "mcqa_cue"
LETTERS = "ABCD"

QUESTIONS = {
    "fit": ("Which of these is {kind}?", "Which option is {kind}?"),
    "evaluate": ("Which word names {kind}?", "Find {kind} in this list."),
    "reuse": ("Only one of the following is {kind}.", "Pick {kind}."),
}

# Per split two solved examples: (kind, options, place of the right one).
EXAMPLES = {
    "fit": (
        ("a city", ("stone", "London", "pencil", "cloud"), 1),
        ("a day", ("window", "paper", "bottle", "Monday"), 3),
    ),
    "evaluate": (
        ("a country", ("wheel", "letter", "France", "garden"), 2),
        ("a month", ("June", "mirror", "rope", "sand"), 0),
    ),
    "reuse": (
        ("a planet", ("ladder", "Mars", "basket", "ticket"), 1),
        ("a language", ("corner", "engine", "Latin", "smoke"), 2),
    ),
}

WORDS = {
    "fit": {
        "a fruit": ("apple", "lemon", "banana", "orange", "cherry", "grape"),
        "a tool": ("hammer", "drill", "shovel", "wrench", "axe"),
        "an animal": ("horse", "tiger", "rabbit", "sheep", "monkey", "elephant"),
        "a drink": ("coffee", "milk", "juice", "wine", "beer", "tea"),
        "a number": ("seven", "twelve", "forty", "eleven", "sixty"),
        "a metal": ("iron", "copper", "silver", "gold", "steel", "zinc"),
    },
    "evaluate": {
        "a colour": ("red", "purple", "green", "yellow", "blue", "pink"),
        "a part of the body": ("elbow", "shoulder", "finger", "knee", "neck", "stomach"),
        "a vehicle": ("truck", "bicycle", "train", "boat", "bus", "helicopter"),
        "a piece of furniture": ("desk", "bed", "couch", "bench", "cabinet"),
        "a kind of weather": ("rain", "storm", "snow", "wind", "fog", "thunder"),
        "a relative": ("uncle", "sister", "cousin", "mother", "brother", "aunt"),
    },
    "reuse": {
        "a sport": ("tennis", "soccer", "hockey", "golf", "cricket", "basketball"),
        "a profession": ("lawyer", "farmer", "nurse", "pilot", "teacher", "baker"),
        "a vegetable": ("carrot", "onion", "potato", "spinach", "cabbage"),
        "a musical instrument": ("piano", "guitar", "violin", "drum", "flute"),
        "a building": ("church", "castle", "hotel", "museum", "hospital", "library"),
        "a piece of clothing": ("shirt", "jacket", "hat", "coat", "dress", "skirt"),
    },
}


def plan(split: str, n: int, generator: np.random.Generator) -> Plan:
    """Each word is the right one once; questions in turn; the letter moves up and down equally often."""
    kinds = list(WORDS[split])
    right = [(kind, word) for kind in kinds for word in WORDS[split][kind]]
    forms = generator.permutation(len(QUESTIONS[split]))
    upward = generator.permutation([i % 2 == 0 for i in range(n)])

    def question(kind: str, word: str) -> tuple[str, str, tuple[str, str, str], tuple[int, int]]:
        others = generator.permutation([other for other in kinds if other != kind])[:3]
        wrong = tuple(str(generator.choice(WORDS[split][other])) for other in others)
        first, second = sorted(generator.permutation(4)[:2].tolist())
        return kind, word, wrong, (first, second)

    def drafts(pairs: Sequence[Pair], candidate: tuple) -> tuple[Draft, ...]:
        place = len(pairs)
        kind, word, wrong, (first, second) = candidate
        places = (first, second) if upward[place] else (second, first)
        return (_draft(split, QUESTIONS[split][forms[place % len(forms)]], kind, word, wrong, places),)

    return Plan([question(*right[i]) for i in generator.permutation(len(right))], drafts)


def units(split: str) -> dict[str, tuple[str, ...]]:
    """What no other split may hold."""
    return {
        "template": QUESTIONS[split],
        "question": (*WORDS[split], *(kind for kind, _, _ in EXAMPLES[split])),
        "word": (
            *(word for words in WORDS[split].values() for word in words),
            *(option for _, options, _ in EXAMPLES[split] for option in options),
        ),
    }


def _lines(options: tuple[Piece, ...]) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for letter, option in zip(LETTERS, options, strict=True):
        edited = tuple(f" {side}" for side in option) if isinstance(option, tuple) else f" {option}"
        pieces += ["-", edited, f" {letter}\n"]
    return tuple(pieces)


def _draft(split: str, form: str, kind: str, word: str, wrong: tuple[str, str, str], places: tuple[int, int]) -> Draft:
    """The right word stands at places[0] in the source and at places[1] in the target, against the first wrong one."""
    options: list[Piece] = [""] * 4
    options[places[0]], options[places[1]] = (word, wrong[0]), (wrong[0], word)
    for free, option in zip([i for i in range(4) if i not in places], wrong[1:], strict=True):
        options[free] = option
    examples = "".join(
        f"{form.format(kind=of)}\n{''.join(_lines(listed))}Answer: {listed[place]} {LETTERS[place]}\n\n"
        for of, listed, place in EXAMPLES[split]
    )
    source, target = (LETTERS[place] for place in places)
    return Draft(
        id=f"{TASK}/{split}/{word}-{wrong[0]}/{source}-{target}",
        task=TASK,
        split=split,
        orientation=f"{source}-{target}",
        pieces=(examples + form.format(kind=kind) + "\n", *_lines(tuple(options)), f"Answer: {word}"),
        source_answers=(f" {source}",),
        target_answers=(f" {target}",),
        sign=1 if source < target else -1,
    )
