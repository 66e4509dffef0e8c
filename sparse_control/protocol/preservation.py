"""Axis 5: what a patch does to prompts it is not meant for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_control.metrics.preservation import kl_divergence
from sparse_control.models import LanguageModel
from sparse_control.models.decode import as_prompt
from sparse_control.models.sites import Site
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels.offtarget import OffTargetPrompt
from sparse_control.protocol.prompts import Prompts, read_prompts
from sparse_control.protocol.readable import check_positions
from sparse_control.protocol.splits import Reader


@dataclass(frozen=True, eq=False)
class OffTargetPanel:
    """Unrelated prompts, read unpatched once."""

    ids: tuple[str, ...]
    prompts: Prompts

    @classmethod
    def read(
        cls,
        lm: LanguageModel,
        prompts: Sequence[OffTargetPrompt],
        sites: Sequence[Site] = (),
        reader: Reader = read_prompts,
    ) -> "OffTargetPanel":
        """Tokenise and run the prompts; `sites` are those that will be patched.

        Raises:
            ValueError: a site outside the model or a prompt, two names of one site, a prompt longer than the
                model's positions.
        """
        ids = [lm.encode(prompt.text).tolist() for prompt in prompts]
        for prompt, tokens in zip(prompts, ids, strict=True):
            as_prompt(lm, tokens, f"prompt {prompt.id}")
        check_positions(sites, map(len, ids))
        return cls(tuple(prompt.id for prompt in prompts), reader(lm, ids, sites))


def measured_preservation(
    panel: OffTargetPanel, intervention: Intervention, contrasts: Mapping[Site, Tensor]
) -> dict[str, Any]:
    """KL(unpatched || patched) per prompt at dose 1, as in a measurement record."""
    n = len(panel.ids)
    if not intervention.support:
        return {"prompts": list(panel.ids), "kl": [0.0] * n}
    # rule P has no contrast of its own here: prompt j takes that of evaluation pair j mod N
    borrowed = {site: value[torch.arange(n) % len(value)] for site, value in contrasts.items()}
    patched = panel.prompts.patched_logits(intervention.additions([1.0], borrowed, n))[:, 0]
    rows = zip(_float64(panel.prompts.logits), _float64(patched), strict=True)
    return {"prompts": list(panel.ids), "kl": [kl_divergence(p, q) for p, q in rows]}


def _float64(logits: Tensor) -> np.ndarray:
    return logits.double().cpu().numpy()
