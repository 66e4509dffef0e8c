"""What a record says of files that somebody gave: interventions, pairs, prompts; and what such records are called."""

import re
from typing import Literal, get_args

from pydantic import Field, model_validator

from sparse_control.errors import InputError
from sparse_control.records.base import Count, Name, Record, Sha256

Format = Literal["gguf", "safetensors", "npz", "pt", "json"]
FORMATS = get_args(Format)
Control = Literal["random_direction", "random_support"]
CONTROLS = {  # of a given intervention -> what it is, for people
    "random_direction": "random vectors of equal norm at the same sites",
    "random_support": "the same vectors at as many sites of the same kind, in layers drawn at random",
}


class GivenOrigin(Record):
    """The file that an intervention was read from."""

    file: Name  # its name
    sha256: Sha256  # of its bytes
    format: Format
    layer: Count | None = None  # the block that was asked for, where one was
    row: Count | None = None  # the feature of a decoder, where one was asked for
    strength: float | None = None  # the factor on what the file holds; null where it was fitted on the fitting split
    control: Control | None = None  # null in records of the intervention itself

    @model_validator(mode="after")
    def _named(self) -> "GivenOrigin":
        given_name(self.file, self.layer, self.row, self.control)
        if not self.file.endswith(f".{self.format}"):
            raise ValueError(f"format must be the ending of file {self.file!r}, got {self.format!r}")
        return self

    @property
    def selector(self) -> str:
        """What stands for it in the place of a selector."""
        return given_name(self.file, self.layer, self.row, self.control)


def given_name(file: str, layer: int | None = None, row: int | None = None, control: str | None = None) -> str:
    """What records call an intervention that was read from a file: `probe.npz-layer15`, `sae.pt-layer3-row77`.

    It has the ending of the file, so it is never the name of a selector of the project.

    Raises:
        InputError: the name of the file is none that a record's file can have.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", file):
        raise InputError(
            f"intervention {file!r:.150}: records are called after its file, whose name needs 1 to 80 ASCII letters, "
            "digits and ._+- , the first a letter or digit; rename it"
        )
    if any(f"-{each}" in file for each in CONTROLS):
        raise InputError(f"intervention {file!r:.150}: is the name of a control of another file; rename it")
    parts = [file, None if layer is None else f"layer{layer}", None if row is None else f"row{row}", control]
    return "-".join(part for part in parts if part is not None)


def is_given(selector: str) -> bool:
    """Whether a selector's name is that of an intervention that was read from a file."""
    return "." in selector and not is_control(selector)


def is_control(selector: str) -> bool:
    """Whether a selector's name is that of a control of such an intervention."""
    return "." in selector and selector.endswith(tuple(f"-{control}" for control in CONTROLS))


class Panels(Record):
    """Where the prompts come from: `own`, or the name and hash of the data set or file that was given."""

    pairs: Name  # of the task's pairs
    off_target: Name  # of the preservation axis
    # the task whose fitting pairs are fitting and evaluation pairs here; null where the two are apart
    same_panel: Name | None = Field(default=None, exclude_if=lambda task: task is None)
    # true of pairs that are no minimal edits, and are compared and patched at their last tokens alone
    last_token_only: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
