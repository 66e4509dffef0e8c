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
from sparse_control.models.sites import Site, check_site, site_width
from sparse_control.protocol.intervention_file import read_intervention
from sparse_control.tensors import as_float64


@dataclass(frozen=True, eq=False)
class Intervention:
    """A support, base strengths and a direction rule: at each site `a <- a + dose * strength * direction`.

    Attributes:
        support: the sites, each once.
        strengths: beta, one per site.
        directions: one vector (site width,) per site, the same for every prompt (F, the mean contrast of the
            fitting split, or any vectors of your own); None: each pair's own contrast (P).
        oriented: whether a pair has the directions times its orientation sign (O).

    Raises:
        ValueError: lengths that disagree, a site twice, a strength or direction that is not finite.
    """

    support: tuple[Site, ...]
    strengths: tuple[float, ...]
    directions: tuple[Tensor, ...] | None = None
    oriented: bool = False

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
        if self.directions is None:
            return
        given = self.directions
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
        object.__setattr__(self, "directions", tuple(directions))

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

    def additions(
        self, doses: Sequence[float], contrasts: Mapping[Site, Tensor], n: int, signs: Sequence[int] = ()
    ) -> dict[Site, Tensor]:
        """What is added at each site for `n` prompts and R doses: (n, R, site width), float64.

        Args:
            doses: (R,).
            contrasts: per site (n, site width), used where the intervention has no directions of its own.
            n: number of prompts.
            signs: (n,) orientation signs, used where the intervention is oriented.
        """
        scale = torch.tensor(list(doses), dtype=torch.float64)[None, :, None]
        added = {}
        for index, (site, strength) in enumerate(zip(self.support, self.strengths, strict=True)):
            fixed = self.directions is not None
            direction = self.directions[index].expand(n, -1) if fixed else contrasts[site].double()
            if self.oriented:
                direction = direction * direction.new_tensor(list(signs))[:, None]
            added[site] = scale.to(direction.device) * strength * direction[:, None]  # (n, R, width)
        return added
