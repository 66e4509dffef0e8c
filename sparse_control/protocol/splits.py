"""The pairs of one split with everything the unpatched model says about them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparse_control.errors import InputError
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.directions import contrasts
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.prompts import Prompts, read_prompts
from sparse_control.protocol.readable import check_readable, check_sites

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
            ValueError: as `check_readable`, a site outside the model or a prompt, two names of one site.
            InputError: the model's logits are not finite.
        """
        check_readable(lm, pairs)
        check_sites(sites, pairs)
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

    def with_contrasts(self, changed: Mapping[Site, Tensor]) -> "Split":
        """The same pairs with other directions (N, site width) at some sites."""
        return replace(self, contrasts={**self.contrasts, **changed})

    @property
    def gap(self) -> np.ndarray:
        """(N,) wanted change, `y_tar - y_src`."""
        return self.y_target - self.y_source

    @property
    def signs(self) -> list[int]:
        """Orientation signs of the pairs (N,)."""
        return [pair.sign for pair in self.pairs]

    def __len__(self) -> int:
        return len(self.pairs)


def _answer_logits(logits: Tensor, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Tokens (N, 2, K) of the target's and the source's answers, and their logits (N, R, 2, K), float64.

    Smaller sets are filled up with token 0 at a logit of -inf, which takes no part in a logsumexp or a softmax.

    Args:
        logits: (N, R, V).
    """
    sets = [(pair.target_answer_ids, pair.source_answer_ids) for pair in pairs]
    widest = max(len(ids) for both in sets for ids in both)
    tokens = [[[*ids, *[0] * (widest - len(ids))] for ids in both] for both in sets]
    filled = [[[False] * len(ids) + [True] * (widest - len(ids)) for ids in both] for both in sets]
    index = torch.tensor(tokens, device=logits.device)  # (N, 2, K)
    flat = index.flatten(1)[:, None].expand(-1, logits.shape[1], -1)
    chosen = logits.gather(2, flat).double().unflatten(2, (2, widest))  # (N, R, 2, K)
    return index, chosen.masked_fill(torch.tensor(filled, device=logits.device)[:, None], -torch.inf)


def margins(logits: Tensor, pairs: Sequence[Pair]) -> np.ndarray:
    """The readout: logsumexp of the target answers' logits minus that of the source answers'.

    With one token each it is the logit difference, bit for bit.

    Args:
        logits: (N, R, V) at the last token.
        pairs: N pairs.

    Returns:
        (N, R) float64.

    Raises:
        InputError: a margin is not finite; names the pair.
    """
    _, chosen = _answer_logits(logits, pairs)
    sides = chosen.logsumexp(-1)  # (N, R, 2)
    values = (sides[..., 0] - sides[..., 1]).cpu().numpy()
    if not np.isfinite(values).all():
        bad = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise InputError(f"pair {pairs[bad].id}: the readout is not finite; use a smaller dose or a wider dtype")
    return values


def margin_gradients(logits: Tensor, pairs: Sequence[Pair]) -> Tensor:
    """Derivative (N, V) of each pair's readout with respect to its logits (N, V); +1 and -1 with one token each."""
    index, chosen = _answer_logits(logits[:, None], pairs)
    shares = chosen[:, 0].softmax(-1)  # (N, 2, K)
    shares[:, 1] *= -1
    gradient = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device)
    return gradient.scatter_add(1, index.flatten(1), shares.flatten(1)).to(logits.dtype)
