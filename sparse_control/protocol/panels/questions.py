"""Multiple-choice questions and how they are put to a model."""

from dataclasses import dataclass

LETTERS = "ABCD"


@dataclass(frozen=True)
class Question:
    """One question with four options.

    Attributes:
        id: unique within its source.
        text: the question.
        options: four distinct texts.
        answer: place of the right one, 0..3.
        subject: of MMLU; empty for the project's own questions.
    """

    id: str
    text: str
    options: tuple[str, str, str, str]
    answer: int
    subject: str = ""


def prompt_text(question: Question) -> str:
    """The question, its four options behind their letters, and `Answer:`."""
    lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, question.options, strict=True)]
    return "\n".join([question.text, *lines, "Answer:"])
