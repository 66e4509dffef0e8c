"""The pairs of one split with everything the unpatched model says about them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.directions import contrasts
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.prompts import Prompts, read_prompts

Reader = Callable[[LanguageModel, Sequence[Sequence[int]], Sequence[Site]], Prompts]


@dataclass(frozen=True, eq=False)
class Split:
    """N pairs, read at a set of sites.

    Attributes:
        pairs: the pairs.
        source, target: their prompts, unpatched.
        y_source, y_target: (N,) margins in logits, float64.
        contrasts: site -> (N, site width), `a_s(x_tar) - a_s(x_src)`.
    """

    pairs: tuple[Pair, ...]
    source: Prompts
    target: Prompts
    y_source: np.ndarray
    y_target: np.ndarray
    contrasts: Mapping[Site, Tensor]

    @classmethod
    def read(
        cls, lm: LanguageModel, pairs: Sequence[Pair], sites: Sequence[Site], reader: Reader = read_prompts
    ) -> "Split":
        """Run source and target prompts unpatched.

        Raises:
            ValueError: no pairs, a site outside the model or a prompt.
            InputError: the model's logits are not finite.
        """
        if len(pairs) == 0:
            raise ValueError("pairs: none given; every pair was dropped, or the split is empty")
        source = reader(lm, [pair.source_ids for pair in pairs], sites)
        target = reader(lm, [pair.target_ids for pair in pairs], sites)
        return cls(
            pairs=tuple(pairs),
            source=source,
            target=target,
            y_source=margins(source.logits[:, None], pairs)[:, 0],
            y_target=margins(target.logits[:, None], pairs)[:, 0],
            contrasts=contrasts(source, target),
        )

    def take(self, indices: Sequence[int]) -> "Split":
        """The split of some of its pairs, without running the model again; may be empty."""
        index = torch.as_tensor(list(indices), dtype=torch.long, device=self.source.logits.device)
        return Split(
            pairs=tuple(self.pairs[i] for i in indices),
            source=self.source.take(index),
            target=self.target.take(index),
            y_source=self.y_source[list(indices)],
            y_target=self.y_target[list(indices)],
            contrasts={site: value[index] for site, value in self.contrasts.items()},
        )

    @property
    def gap(self) -> np.ndarray:
        """(N,) wanted change, `y_tar - y_src`."""
        return self.y_target - self.y_source

    def __len__(self) -> int:
        return len(self.pairs)


def margins(logits: Tensor, pairs: Sequence[Pair]) -> np.ndarray:
    """The readout: logit of the target answer minus logit of the source answer.

    Args:
        logits: (N, R, V) at the last token.
        pairs: N pairs.

    Returns:
        (N, R) float64.

    Raises:
        InputError: a margin is not finite; names the pair.
    """
    answers = torch.tensor([[pair.target_answer_id, pair.source_answer_id] for pair in pairs], device=logits.device)
    index = answers[:, None].expand(-1, logits.shape[1], -1)
    chosen = logits.gather(2, index).double()  # (N, R, 2)
    values = (chosen[..., 0] - chosen[..., 1]).cpu().numpy()
    if not np.isfinite(values).all():
        bad = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise InputError(f"pair {pairs[bad].id}: the readout is not finite; use a smaller dose or a wider dtype")
    return values
