"""Off-target prompts of the reader's own: a .jsonl with a `prompt` a line, or a .txt with a prompt a line."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import read_json_lines, read_text
from sparse_control.protocol.panels.draw import normalised

FIELD = "given"  # of the prompts of a file, as of the project's own it is humanities or stem


@dataclass(frozen=True)
class PromptsReport:
    """What became of the prompts of a file.

    Attributes:
        name: of the file.
        read: prompts in it.
        used: of these.
        repeated: left out, as they were in the file before.
        in_pairs: left out, as they are a prompt of the pairs that are measured.
    """

    name: str
    read: int
    used: int
    repeated: int
    in_pairs: int

    def __str__(self) -> str:
        left = [(self.repeated, "repeated"), (self.in_pairs, "also in the pairs")]
        told = ", ".join(f"{count} {why}" for count, why in left if count)
        return f"{self.name}: {self.used} of {self.read} off-target prompts used" + (
            f"; dropped: {told}" if told else ""
        )


def read_prompts_file(path: Path, pairs: Collection[str] = ()) -> tuple[tuple[tuple[str, str], ...], PromptsReport]:
    """The prompts of a file as (id, text), in its order, and a report; an id has the line and the hash of the text.

    Args:
        path: a .jsonl with the field `prompt`, or a .txt.
        pairs: prompts of pairs, which are no off-target prompts.

    Raises:
        InputError: one line with file, line and value: a file of another form, or no prompt that can be used.
    """
    taken = {normalised(prompt) for prompt in pairs}
    kept: list[tuple[str, str]] = []
    seen: set[str] = set()
    read = repeated = in_pairs = 0
    for number, text in _lines(path):
        read += 1
        if (plain := normalised(text)) in seen:
            repeated += 1
        elif plain in taken:
            in_pairs += 1
        else:
            kept.append((f"{path.stem}/{number} sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}", text))
        seen.add(plain)
    report = PromptsReport(path.name, read, len(kept), repeated, in_pairs)
    if not kept:
        raise InputError(f"{path}: {report}; give at least one prompt that has nothing to do with the task")
    return tuple(kept), report


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".txt":
        rows = enumerate(read_text(path).splitlines(), start=1)
        yield from ((number, line.rstrip()) for number, line in rows if line.strip())
        return
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: off-target prompts are read from .txt, a prompt a line, or .jsonl")
    for number, row in enumerate(read_json_lines(path), start=1):
        if not isinstance(row, dict) or set(row) != {"prompt"}:
            raise InputError(f"{path}:{number}: expected an object with prompt and nothing else")
        text = row["prompt"]
        if not isinstance(text, str) or not text.strip() or text != text.rstrip():
            raise InputError(f"{path}:{number}: prompt: {text!r:.80} must be text that does not end with white space")
        yield number, text
