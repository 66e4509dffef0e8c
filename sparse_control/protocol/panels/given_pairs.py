"""A file of the reader's pairs as a task of the six axes: its name, its splits, and where its pairs come from."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.protocol.panels.draw import SPLITS, Draw, check_pairs
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.panels.pair_files import PairsReport, Row, orientation_signs, read_pairs, read_rows

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{,39}"  # of a task, as files are called after it


@dataclass(frozen=True)
class PairFile:
    """A file of pairs that is a task; made by `of`, which looks at it first.

    Attributes:
        path: of this machine; never saved.
        name: of the task.
        last_token_only: as of `read_pairs`.
    """

    path: Path
    name: str
    last_token_only: bool = False

    @classmethod
    def of(cls, path: Path, name: str | None = None, last_token_only: bool = False) -> "PairFile":
        """The file, where it holds pairs and has a name that records can be called after.

        Raises:
            InputError: one line that names the file and what is wrong.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file; give pairs")
        called = path.stem if name is None else name
        if not re.fullmatch(NAME, called):
            raise InputError(
                f"{path}: {called!r:.80}: is no name for a task (letters, digits, _ and -, 40 at most); give --name"
            )
        file = cls(path, called, last_token_only)
        file.most()  # reads the file
        return file

    @cached_property
    def sha256(self) -> str:
        """Of the file's bytes, when first asked."""
        return sha256_file(self.path)

    @property
    def source(self) -> str:
        """What records say of where their pairs come from."""
        return f"{self.path.name} sha256:{self.sha256}"

    @cached_property
    def _rows(self) -> list[Row]:
        return read_rows(self.path)

    @property
    def oriented(self) -> bool:
        """Whether its pairs have two orientations."""
        return len(orientation_signs(self._rows)) == 2

    def prompts(self) -> tuple[str, ...]:
        """Both prompts of every pair."""
        return tuple(row[side] for _, row in self._rows for side in ("source", "target"))

    def most(self) -> dict[str, int]:
        """How many pairs each split has at most, before a tokenizer sees them."""
        given = Counter(row.get("split", SPLITS[turn % len(SPLITS)]) for turn, (_, row) in enumerate(self._rows))
        return {split: given[split] for split in SPLITS}

    def checked(self, encoder: Any, seed: int, fewest: int) -> PairsReport:
        """What becomes of the file's pairs.

        Raises:
            InputError: as `read_pairs`, or fewer than `fewest` are left for a split.
        """
        pairs, report = self._read(encoder, seed)
        left = Counter(pair.split for pair in pairs)
        split = min(SPLITS, key=lambda name: left[name])
        if left[split] < fewest:
            raise InputError(
                f"{self.path}: split {split} is left with {left[split]} pairs, each of {', '.join(SPLITS)} needs "
                f"{fewest}; {report}"
            )
        return report

    def draw(self, encoder: Any, split: str, n: int, seed: int) -> Draw:
        """The first n pairs of a split, or as many as there are.

        Raises:
            InputError: as `read_pairs`, none is left for the split, or the file became another.
        """
        pairs, report = self._read(encoder, seed)
        own = tuple(pair for pair in pairs if pair.split == split)[:n]
        if not own:
            raise InputError(f"{self.path}: no pair is left for split {split}; {report}")
        check_pairs(own)
        return Draw(own, self.source, report.by_split[split])

    def _read(self, encoder: Any, seed: int) -> tuple[tuple[Pair, ...], PairsReport]:
        pairs, report = read_pairs(self.path, encoder, seed, name=self.name, last_token_only=self.last_token_only)
        if report.source != self.source:
            raise InputError(f"{self.path}: became another file while it was measured; run it again")
        return pairs, report
