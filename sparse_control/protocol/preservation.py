"""Axis 5: what a patch does to prompts it is not meant for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_control.metrics.preservation import kl_divergences
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
    panel: OffTargetPanel,
    intervention: Intervention,
    doses: Sequence[float],
    contrasts: Mapping[Site, Tensor],
    signs: Sequence[int],
) -> dict[str, Any]:
    """KL(unpatched || patched) per prompt at dose 1, and per dose and prompt, as in a measurement record.

    Args:
        panel: P prompts.
        intervention: what is applied.
        doses: (R,), 1 among them; at dose 0 the model is the unpatched one.
        contrasts, signs: of the evaluation pairs (N). A rule that needs a pair has none of its own here: prompt j takes
            that of pair j mod N.
    """
    n = len(panel.ids)
    pairs = torch.arange(n) % max(1, len(signs))
    borrowed = {site: value[pairs] for site, value in contrasts.items()}
    live = [dose for dose in doses if dose != 0 and intervention.support]
    rows = {dose: [0.0] * n for dose in doses}
    if live:
        turned = [signs[index] for index in pairs.tolist()] if signs else []
        additions = intervention.additions(live, borrowed, n, turned, panel.prompts.activations)
        patched = panel.prompts.patched_logits(additions)  # (P, R, V)
        plain = _float64(panel.prompts.logits)
        by_prompt = [kl_divergences(p, _float64(under)) for p, under in zip(plain, patched, strict=True)]
        rows |= dict(zip(live, map(list, zip(*by_prompt, strict=True)), strict=True))
    return {"prompts": list(panel.ids), "kl": rows[1.0], "kl_by_dose": [rows[dose] for dose in doses]}


def _float64(logits: Tensor) -> np.ndarray:
    return logits.double().cpu().numpy()
