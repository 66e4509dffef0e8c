"""An intervention as a file: JSON as below, or vectors that other tools wrote (`direction_files`).

{
  "schema": "intervention/1",
  "name": "what it is for",                     free text, optional
  "support": ["L29.head.0@-1", ...],            sites; positions count from the end of the prompt where negative
  "strengths": [1.0, ...],                      beta, one per site
  "directions": [[...], ...]                    per site: head_dim numbers for a head, else the model width
}
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from sparse_control.errors import InputError
from sparse_control.models.sites import Site, parse_site
from sparse_control.protocol.direction_files import read_directions
from sparse_control.records.base import Record, read_record, same_length
from sparse_control.records.six_axis import SiteName

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel


class InterventionFile(Record):
    """One intervention with directions of its own."""

    schema_: Literal["intervention/1"] = Field(alias="schema")
    name: str = ""  # free text
    support: Annotated[list[SiteName], Field(min_length=1)]  # S
    strengths: list[float]  # beta, per site
    directions: list[Annotated[list[float], Field(min_length=1)]]  # per site

    @model_validator(mode="after")
    def _shapes(self) -> "InterventionFile":
        same_length("support", len(self.support), strengths=self.strengths, directions=self.directions)
        return self


def read_intervention(
    path: Path, lm: "LanguageModel", layer: int | None = None, row: int | None = None
) -> tuple[tuple[Site, ...], tuple[float, ...], tuple[np.ndarray, ...]]:
    """Support, strengths and directions of a file: this one's, or vectors as other tools write them.

    Vectors are added as they are, with strength 1, to the output of their blocks at the last token of a prompt.

    Args:
        path: .json, or as of `read_directions`.
        lm, layer, row: as of `read_directions`; a .json says both itself.

    Raises:
        InputError: as `read_directions`, or names the field of a .json.
    """
    path = Path(path)
    if path.suffix == ".json":
        if layer is not None or row is not None:
            raise InputError(f"{path}: has its sites itself; leave out {'layer' if row is None else 'row'}")
        content = read_record(InterventionFile, path)
        directions = tuple(np.array(direction) for direction in content.directions)
        return tuple(parse_site(name) for name in content.support), tuple(content.strengths), directions
    found = read_directions(path, lm, layer, row).by_layer
    return tuple(Site("resid", number) for number in found), (1.0,) * len(found), tuple(found.values())
