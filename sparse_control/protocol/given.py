"""An intervention that somebody gives as a file, and what of it is measured: itself, and its controls at equal size."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparse_control.errors import InputError
from sparse_control.files import check_size, sha256_file
from sparse_control.records.base import read_record
from sparse_control.records.given import CONTROLS, FORMATS, GivenOrigin, given_name

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.protocol.intervention import Intervention

RULES = ("F", "O")  # one vector for every pair, as it is or times the pair's orientation


@dataclass(frozen=True)
class GivenFile:
    """A file with an intervention; made by `of`, which looks at it first.

    Attributes:
        path: of this machine; never saved.
        layer, row: as of `Intervention.from_file`.
        strength: a factor on what the file holds; None: fitted on the fitting split.
    """

    path: Path
    layer: int | None = None
    row: int | None = None
    strength: float | None = 1.0

    @classmethod
    def of(
        cls, path: Path, *, layer: int | None = None, row: int | None = None, strength: float | None = 1.0
    ) -> "GivenFile":
        """The file, where it is one and has a name that records can be called after.

        Raises:
            InputError: one line that names the file and what is wrong.
        """
        from sparse_control.protocol.intervention_file import InterventionFile

        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path}: no such file; give an intervention")
        if path.suffix.removeprefix(".") not in FORMATS:
            ending = path.suffix or "no ending"
            raise InputError(f"{path}: {ending}: is not read; use {', '.join(f'.{each}' for each in FORMATS)}")
        if strength is not None and (strength == 0 or not np.isfinite(strength)):
            raise InputError(f"strength must be a number other than 0, or fit, got {strength}")
        if path.suffix == ".json":
            check_size(path, 1 << 28)
            read_record(InterventionFile, path)
        given_name(path.name, layer, row)
        return cls(path, layer, row, strength)

    @cached_property
    def sha256(self) -> str:
        """Of the file's bytes, when first asked."""
        return sha256_file(self.path)

    def name(self, control: str | None = None) -> str:
        """What stands for it, or for one of its controls, in the place of a selector."""
        return given_name(self.path.name, self.layer, self.row, control)

    @property
    def names(self) -> tuple[str, ...]:
        """Its own name, then those of its controls."""
        return tuple(self.name(control) for control in (None, *CONTROLS))

    def origin(self, selector: str) -> dict[str, Any]:
        """The section `origin` of the records of one of its names."""
        control = next((each for each in CONTROLS if self.name(each) == selector), None)
        return GivenOrigin(
            file=self.path.name, sha256=self.sha256, format=self.path.suffix[1:], layer=self.layer, row=self.row,
            strength=self.strength, control=control,
        ).model_dump(mode="json")  # fmt: skip

    def intervention(self, lm: "LanguageModel") -> "Intervention":
        """What the file holds, times the strength where that is a number.

        Raises:
            InputError: as `Intervention.from_file`, or the file became another.
        """
        from sparse_control.protocol.intervention import Intervention

        if sha256_file(self.path) != self.sha256:
            raise InputError(f"{self.path}: became another file while it was measured; run it again")
        read = Intervention.from_file(self.path, lm, self.layer, self.row)
        factor = 1.0 if self.strength is None else self.strength
        return replace(read, strengths=tuple(factor * strength for strength in read.strengths))


def check_several(files: tuple[GivenFile, ...]) -> None:
    """Refuse two files of one name, whose records would be each other's.

    Raises:
        InputError: names the file.
    """
    names = [given.name() for given in files]
    for given in files:
        if names.count(given.name()) > 1:
            raise InputError(f"{given.path}: two interventions are called {given.name()}; rename one, or give one")
