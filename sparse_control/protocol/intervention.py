"""An intervention: where it acts, how strongly, and in which direction (source document, "What every axis needs")."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparse_control.arguments import brief, elements, instance, real_number, whole_number
from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Addition, Site, check_site, site_width
from sparse_control.protocol.intervention_file import read_intervention
from sparse_control.tensors import as_float64


@dataclass(frozen=True, eq=False)
class Intervention:
    """A support, base strengths and a direction rule: at each site `a <- a + dose * strength * direction`.

    With a level it replaces in place of adding: `a <- a + dose * strength * (level - <a, u>) u`, where u is the unit
    vector of the direction, so that at dose times strength 1 the activation's component along u is the level.

    Attributes:
        support: the sites, each once.
        strengths: beta, one per site.
        directions: one vector (site width,) per site, the same for every prompt (F, the mean contrast of the
            fitting split, or any vectors of your own); None: each pair's own contrast (P).
        oriented: whether a pair has the directions times its orientation sign (O).
        levels: of an intervention that replaces, one; it acts at one site, as a patch before another site would change
            what is replaced there. None: it adds.

    Raises:
        ValueError: lengths that disagree, a site twice, a strength, direction or level that is not finite, levels
            without directions, for several sites, oriented, or along a direction that is zero.
    """

    support: tuple[Site, ...]
    strengths: tuple[float, ...]
    directions: tuple[Tensor, ...] | None = None
    oriented: bool = False
    levels: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if instance("oriented", self.oriented, bool) and self.directions is None:
            raise ValueError("directions are missing: an oriented intervention turns those it has")
        if isinstance(self.support, Site):
            raise ValueError(f"support must be a sequence of sites, got one site; use ({self.support.name},)")
        support = tuple(elements("support", self.support))
        for site in support:
            if not isinstance(site, Site):
                raise ValueError(f"support must hold Site objects, got {brief(site)}; parse names with parse_site")
        if len(set(support)) != len(support):
            twice = next(site for site in support if support.count(site) > 1)
            raise ValueError(f"support holds site {twice.name} twice")
        strengths = [
            real_number(f"strengths[{i}]", value) for i, value in enumerate(elements("strengths", self.strengths))
        ]
        if len(strengths) != len(support):
            raise ValueError(f"strengths has length {len(strengths)}, support has {len(support)} sites")
        object.__setattr__(self, "support", support)
        object.__setattr__(self, "strengths", tuple(strengths))
        if self.directions is not None:
            object.__setattr__(self, "directions", self._checked_directions(self.directions))
        if self.levels is not None:
            object.__setattr__(self, "levels", self._checked_levels(self.levels))

    def _checked_directions(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        support = self.support
        if not isinstance(given, (Sequence, np.ndarray, Tensor)) or isinstance(given, (str, bytes)):
            raise ValueError(f"directions must be a sequence of vectors, got {brief(given)}")
        if getattr(given, "ndim", 1) == 0 or len(given) != len(support):
            found = "none" if getattr(given, "ndim", 1) == 0 else len(given)
            raise ValueError(f"directions has length {found}, support has {len(support)} sites")
        directions = []
        for index, site in enumerate(support):
            vector = as_float64(f"directions[{index}] of site {site.name}", given[index])
            if vector.ndim != 1:
                shape = tuple(vector.shape)
                raise ValueError(f"directions[{index}] of site {site.name} must have one dimension, got shape {shape}")
            directions.append(vector)
        return tuple(directions)

    def _checked_levels(self, given: Sequence[float]) -> tuple[float, ...]:
        levels = tuple(real_number(f"levels[{i}]", value) for i, value in enumerate(elements("levels", given)))
        if len(levels) != 1 or len(self.support) != 1:
            raise ValueError(
                f"levels has length {len(levels)}, support has {len(self.support)} sites; give one of each"
            )
        if self.directions is None or self.oriented:
            raise ValueError("levels go with directions of the intervention's own that no pair turns")
        if not self.directions[0].any():
            raise ValueError(f"directions[0] of site {self.support[0].name} is zero: nothing lies along it to replace")
        return levels

    @classmethod
    def from_file(
        cls, path: str | Path, lm: LanguageModel, layer: int | None = None, row: int | None = None
    ) -> "Intervention":
        """The intervention that a file holds, checked against a model (source document, "Score your own intervention").

        A vector of layer l is added as it is, with strength 1, to the output of block l, counted from 0, at the last
        token; `sparse_control.protocol.direction_files` says what layer l is in each format.

        Args:
            path: repeng or llama.cpp control vector (.gguf), .safetensors, .npz or weights-only .pt with a vector per
                layer, one vector, or the decoder of a sparse autoencoder; or `intervention/1` as .json.
            lm: the model; the vectors have its width and layers.
            layer: of one vector or a decoder's row; of a file with several layers, the only one taken.
            row: feature of a sparse autoencoder's decoder.

        Raises:
            InputError: one line: a file that is damaged, ambiguous or does not fit the model, or what names no layer
                or row.
            UnsupportedModel: a submodule in training mode.
        """
        if not isinstance(path, (str, Path)):
            raise InputError(f"path must be a text or a Path, got {brief(path)}")
        instance("lm", lm, LanguageModel)
        for name, value in (("layer", layer), ("row", row)):
            if value is not None:
                whole_number(name, value, 0)
        support, strengths, directions = read_intervention(Path(path), lm, layer, row)
        try:
            made = cls(support, strengths, directions)
            made.check(lm)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
        return made

    def check(self, lm: LanguageModel) -> None:
        """Refuse a site outside the model, a direction of another width than its site, or a model in training mode.

        Raises:
            ValueError: names the site.
            UnsupportedModel: a submodule in training mode; its dropout would draw anew in every forward.
        """
        instance("lm", lm, LanguageModel).check_evaluation_mode()
        for index, site in enumerate(self.support):
            check_site(lm, site)
            if self.directions is not None and len(self.directions[index]) != site_width(lm, site):
                raise ValueError(
                    f"site {site.name}: direction has width {len(self.directions[index])}, "
                    f"the site has {site_width(lm, site)}"
                )

    def replacement(self, index: int, activations: Tensor) -> Tensor:
        """What takes the component of activations (..., width) along the direction to the level, float64.

        Args:
            index: of the site in the support.
            activations: as they are before the patch.
        """
        exact = activations.double()
        unit = (self.directions[index] / self.directions[index].norm()).to(exact.device)
        return (self.levels[index] - exact @ unit)[..., None] * unit

    def additions(
        self,
        doses: Sequence[float],
        contrasts: Mapping[Site, Tensor],
        n: int,
        signs: Sequence[int] = (),
        activations: Mapping[Site, Tensor] | None = None,
    ) -> dict[Site, Tensor]:
        """What is added at each site for `n` prompts and R doses: (n, R, site width), float64.

        Args:
            doses: (R,).
            contrasts: per site (n, site width), used where the intervention has no directions of its own.
            n: number of prompts.
            signs: (n,) orientation signs, used where the intervention is oriented.
            activations: per site (n, site width) of the prompts unpatched, used where the intervention replaces.

        Raises:
            ValueError: the intervention replaces, and the activations of its site are not there.
        """
        scale = torch.tensor(list(doses), dtype=torch.float64)[None, :, None]
        added = {}
        for index, (site, strength) in enumerate(zip(self.support, self.strengths, strict=True)):
            if self.levels is not None:
                if activations is None or site not in activations:
                    raise ValueError(f"site {site.name}: the prompts were not read there, so nothing can be replaced")
                direction = self.replacement(index, activations[site])
            elif self.directions is not None:
                direction = self.directions[index].expand(n, -1)
            else:
                direction = contrasts[site].double()
            if self.oriented:
                direction = direction * direction.new_tensor(list(signs))[:, None]
            added[site] = scale.to(direction.device) * strength * direction[:, None]  # (n, R, width)
        return added

    def acting(
        self, doses: Sequence[float], contrasts: Mapping[Site, Tensor], signs: Sequence[int] = ()
    ) -> dict[Site, Addition]:
        """What is added at each site of one prompt under R doses, for hooks: (R, site width), or a function of it.

        Args:
            doses, signs: as in `additions`.
            contrasts: per site (1, site width).
        """
        if self.levels is None:
            return {site: value[0] for site, value in self.additions(doses, contrasts, 1, signs).items()}
        scale = torch.tensor(list(doses), dtype=torch.float64)[:, None] * self.strengths[0]
        return {self.support[0]: lambda activation: scale.to(activation.device) * self.replacement(0, activation)}
