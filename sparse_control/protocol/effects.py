"""Effect columns: how much each site alone changes each pair's readout at unit strength."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from sparse_control.models.sites import Site
from sparse_control.protocol.prompts import MAXIMUM_ROWS
from sparse_control.protocol.splits import Split, margin_gradients, margins


@dataclass(frozen=True, eq=False)
class Effects:
    """Effect columns of one split.

    Attributes:
        columns: (N, S) logits.
        kind: `first_order` or `measured`.
        check_sites: how many sites were both patched and differentiated.
        check_pearson: correlation of the two over those sites and all pairs; None where one side is constant.
    """

    columns: np.ndarray
    kind: str
    check_sites: int
    check_pearson: float | None


def measured_effects(
    split: Split, sites: Sequence[Site], support: Sequence[Site] = (), strengths: Sequence[float] = ()
) -> np.ndarray:
    """(N, S): true change of y when site s of pair i is patched with the pair's own contrast at strength 1.

    Args:
        split: the pairs.
        sites: S sites, each once.
        support, strengths: patched in every forward; the change is that beside them, and a site of the support gets
            one unit more. None: the change is from the unpatched model.
    """
    base = split.y_source if not support else joint_readouts(split, support, strengths)
    per_forward = max(1, MAXIMUM_ROWS // len(split))
    columns = []
    for start in range(0, len(sites), per_forward):
        chunk = sites[start : start + per_forward]
        additions = {}
        for site in dict.fromkeys([*support, *chunk]):
            contrast = split.contrasts[site]  # (N, width)
            shape = len(split), len(chunk), contrast.shape[1]
            additions[site] = torch.zeros(shape, dtype=torch.float64, device=contrast.device)
        for site, strength in zip(support, strengths, strict=True):
            additions[site] += strength * split.contrasts[site].double()[:, None]
        for row, site in enumerate(chunk):
            additions[site][:, row] += split.contrasts[site].double()
        columns.append(margins(split.source.patched_logits(additions), split.pairs) - base[:, None])
    return np.concatenate(columns, axis=1) if columns else np.zeros((len(split), 0))


def joint_readouts(split: Split, support: Sequence[Site], strengths: Sequence[float]) -> np.ndarray:
    """(N,): y under a joint patch with each pair's own contrasts."""
    additions = {
        site: strength * split.contrasts[site].double()[:, None]
        for site, strength in zip(support, strengths, strict=True)
    }
    return margins(split.source.patched_logits(additions), split.pairs)[:, 0]


def first_order_effects(split: Split, sites: Sequence[Site]) -> np.ndarray:
    """(N, S): `<dy/da_s, a_s(x_tar) - a_s(x_src)>` on the source input, from one backward pass."""
    gradients = split.source.gradients(sites, margin_gradients(split.source.logits, split.pairs))
    products = [(gradients[site].double() * split.contrasts[site].double()).sum(-1) for site in sites]
    return torch.stack(products, dim=1).cpu().numpy()


EFFECTS = {"first_order": first_order_effects, "measured": measured_effects}


def effect_columns(
    split: Split,
    sites: Sequence[Site],
    kind: Literal["first_order", "measured"],
    n_check: int,
    generator: np.random.Generator,
) -> Effects:
    """Effect columns of all `sites`, with `n_check` randomly drawn ones computed both ways.

    Args:
        split: the fitting split.
        sites: candidates, S of them.
        kind: which of the two fills the columns.
        n_check: sites of the comparison; at most S are used.
        generator: draws them.
    """
    compute = EFFECTS[kind]
    (other,) = (function for function in EFFECTS.values() if function is not compute)
    columns = compute(split, sites)
    checked = np.sort(generator.choice(len(sites), size=min(n_check, len(sites)), replace=False))
    ours, theirs = columns[:, checked].ravel(), other(split, [sites[i] for i in checked]).ravel()
    constant = ours.std() == 0 or theirs.std() == 0
    pearson = None if constant else float(np.corrcoef(ours, theirs)[0, 1])
    return Effects(columns=columns, kind=kind, check_sites=len(checked), check_pearson=pearson)
