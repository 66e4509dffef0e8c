"""An intervention as vectors of the residual stream, one per layer, which is what other tools add."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site, capture_sites
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.patching import patched
from sparse_control.protocol.readouts import dose_readouts
from sparse_control.protocol.splits import Split


@dataclass(frozen=True, eq=False)
class Exported:
    """Vectors per layer, and how near they come to the intervention.

    Attributes:
        by_layer: block index -> (d,) float64, added to the output of that block.
        measured: the layers of heads, whose vectors are means over prompts; the others are exact.
        moved: mean change of the pairs' readouts under the intervention, in logits.
        moved_by_vectors: the same under the vectors, at the last token.
        gap: mean of what it takes to reach the targets.
    """

    by_layer: Mapping[int, np.ndarray]
    measured: tuple[int, ...]
    moved: float
    moved_by_vectors: float
    gap: float


def exported(lm: LanguageModel, intervention: Intervention, pairs: Sequence[Pair]) -> Exported:
    """The vectors per layer that stand for an intervention (source document, "What every axis needs").

    What is added at `resid` and `mlp` sites is added to the block's output as it is, strength times direction. What is
    added to a head goes through the projection of its attention and the MLP of its block; the vector is the mean over
    the pairs' source prompts of the change at the block's output, of each layer by itself.

    Args:
        lm: the model.
        intervention: with directions of its own, the same for every pair, at the last token.
        pairs: one or more; their source prompts are patched.

    Raises:
        InputError: a site that is not at the last token, or directions that differ by pair.
    """
    if intervention.directions is None or intervention.oriented:
        raise InputError("directions differ by pair; only those of rule F can be exported")
    for site in intervention.support:
        if site.position != -1:
            raise InputError(f"site {site.name}: other tools know no position; only sites at -1 can be exported")
    added: dict[int, Tensor] = {}
    heads: dict[int, list[int]] = {}
    for index, site in enumerate(intervention.support):
        if site.component == "head":
            heads.setdefault(site.layer, []).append(index)
            continue
        vector = intervention.strengths[index] * intervention.directions[index].double().cpu()
        added[site.layer] = added.get(site.layer, 0.0) + vector
    for layer, indices in heads.items():
        chosen = Intervention(
            tuple(intervention.support[index] for index in indices),
            tuple(intervention.strengths[index] for index in indices),
            tuple(intervention.directions[index] for index in indices),
        )
        added[layer] = added.get(layer, 0.0) + _change(lm, chosen, layer, pairs)
    by_layer = {layer: vector.numpy() for layer, vector in sorted(added.items())}
    vectors = Intervention(
        tuple(Site("resid", layer) for layer in by_layer), (1.0,) * len(by_layer), tuple(by_layer.values())
    )
    split = Split.read(lm, pairs, (*intervention.support, *vectors.support))
    moved, by_vectors = (_moved(split, each) for each in (intervention, vectors))
    return Exported(by_layer, tuple(sorted(heads)), moved, by_vectors, float(split.gap.mean()))


@torch.no_grad()
def _change(lm: LanguageModel, heads: Intervention, layer: int, pairs: Sequence[Pair]) -> Tensor:
    """Mean change (d,) of a block's output at the last token of the pairs' source prompts, float64."""
    output = Site("resid", layer)
    changes = []
    for pair in pairs:
        ids = torch.tensor([pair.source_ids], device=lm.device)
        before = capture_sites(lm, ids, [output])[output]
        with patched(lm, heads, pair=pair):
            after = capture_sites(lm, ids, [output])[output]
        changes.append((after.double() - before.double())[0].cpu())
    return torch.stack(changes).mean(dim=0)


def _moved(split: Split, intervention: Intervention) -> float:
    values = dose_readouts(split.source, split.pairs, intervention, [1.0], split.contrasts, split.y_source)
    return float((values[:, 0] - split.y_source).mean())
