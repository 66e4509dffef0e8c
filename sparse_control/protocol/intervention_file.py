"""An intervention as a JSON file.

{
  "schema": "intervention/1",
  "name": "what it is for",                     free text, optional
  "support": ["L29.head.0@-1", ...],            sites; positions count from the end of the prompt where negative
  "strengths": [1.0, ...],                      beta, one per site
  "directions": [[...], ...]                    per site: head_dim numbers for a head, else the model width
}
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from sparse_control.records.base import Record, same_length
from sparse_control.records.six_axis import SiteName

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.protocol import Intervention


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

    def intervention(self, lm: "LanguageModel") -> "Intervention":
        """The intervention, checked against a model.

        Raises:
            ValueError: a site twice or outside the model, or a direction of another width than its site.
        """
        import torch

        from sparse_control.models.sites import parse_site
        from sparse_control.protocol import Intervention

        made = Intervention(
            tuple(parse_site(name) for name in self.support),
            tuple(self.strengths),
            tuple(torch.tensor(direction, dtype=torch.float64) for direction in self.directions),
        )
        made.check(lm)
        return made
