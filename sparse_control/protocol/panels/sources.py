"""Where the texts of panels come from: the project's own, or files of the reader's."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparse_control.files import sha256_file
from sparse_control.protocol.panels import own_humanities, own_stem
from sparse_control.protocol.panels.draw import SPLITS, normalised
from sparse_control.protocol.panels.given_pairs import PairFile
from sparse_control.protocol.panels.loaders import FIELDS, Mmlu, XsTest, load_mmlu, load_xstest
from sparse_control.protocol.panels.questions import Question

OWN = "own"
EVERY = 4  # so many subjects of MMLU to one of the off-target panel, as there are three splits beside it
OWN_QUESTIONS = {"humanities": own_humanities.QUESTIONS, "stem": own_stem.QUESTIONS}


@dataclass(frozen=True)
class PanelSources:
    """Files that stand in for the project's own texts; each is read once, when a panel first needs it.

    Attributes:
        mmlu: folder of `load_mmlu`, for multiple choice and the off-target panel; None: the project's own questions.
        xstest: file of `load_xstest`, for refusal; None: the project's own requests.
        pairs: pairs that are a task beside the project's own.
        off_target: file of `read_prompts_file`, for the off-target panel; None: MMLU's questions or the project's own.
    """

    mmlu: Path | None = None
    xstest: Path | None = None
    pairs: PairFile | None = None
    off_target: Path | None = None

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "PanelSources":
        """What `dataclasses.asdict` made plain."""
        pairs = values["pairs"]
        return cls(**{**values, "pairs": None if pairs is None else PairFile(**pairs)})

    def pairs_of(self, task: str) -> PairFile | None:
        """The file that is a task; None of the project's own tasks."""
        return self.pairs if self.pairs is not None and self.pairs.name == task else None

    @cached_property
    def off_target_sha256(self) -> str | None:
        """Of the bytes of the file of off-target prompts, when first asked."""
        return None if self.off_target is None else sha256_file(self.off_target)

    @cached_property
    def mmlu_questions(self) -> Mmlu | None:
        return None if self.mmlu is None else load_mmlu(self.mmlu)

    @cached_property
    def xstest_prompts(self) -> XsTest | None:
        return None if self.xstest is None else load_xstest(self.xstest)


def field_questions(field: str, part: str, sources: PanelSources) -> tuple[Question, ...]:
    """Questions of one field for a split, or of MMLU for the off-target panel (part `off_target`).

    The off-target panel has the subjects of `off_target_subjects` to itself. A question of another subject belongs to
    one of the three splits by the hash of its text, whatever the seed.
    """
    if sources.mmlu_questions is None:
        rows = OWN_QUESTIONS[field][part]
        return tuple(_own(f"{field}-{number:02d}", number % 4, *row) for number, row in enumerate(rows))
    apart = off_target_subjects(field, sources.mmlu_questions)
    questions = getattr(sources.mmlu_questions, field)
    if part == "off_target":
        return tuple(question for question in questions if question.subject in apart)
    return tuple(question for question in questions if question.subject not in apart and _split(question.text) == part)


def off_target_subjects(field: str, mmlu: Mmlu) -> tuple[str, ...]:
    """Subjects of a field that no task uses: in alphabetical order every fourth, or the last of less than four.

    Neither a seed nor the questions decide. A subject of both fields is left to the tasks, and so is one that is alone.
    """
    names = {name: {question.subject for question in getattr(mmlu, name)} for name in FIELDS}
    if len(names[field]) < 2:
        return ()
    ordered = sorted(names[field] - set.intersection(*names.values()))
    return tuple(ordered[EVERY - 1 :: EVERY] or ordered[-1:])


def _split(text: str) -> str:
    return SPLITS[int.from_bytes(hashlib.sha256(normalised(text).encode()).digest(), "big") % len(SPLITS)]


def _own(name: str, answer: int, text: str, right: str, *wrong: str) -> Question:
    options = list(wrong)
    options.insert(answer, right)
    return Question(name, text, tuple(options), answer)
