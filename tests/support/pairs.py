"""Random pairs and splits for tiny models, and prompts run the plain way."""

import torch

from sparse_control.models import LanguageModel
from sparse_control.protocol.panels.pair import Pair
from tests.support.tiny import VOCABULARY


def make_pair(number: int, length: int = 9, positions: tuple[int, ...] = (4,)) -> Pair:
    """A pair of random prompts that differ at `positions`; orientations alternate."""
    generator = torch.Generator().manual_seed(number)
    source = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    target = list(source)
    for position in positions:
        target[position] = 3 + (source[position] - 3 + 17) % (VOCABULARY - 3)
    return Pair(
        id=f"tiny/{number}", task="tiny", split="evaluate", orientation="none", source="", target="",
        source_answers=(), target_answers=(), source_ids=tuple(source), target_ids=tuple(target),
        source_answer_ids=(10 + number,), target_answer_ids=(50 + number,), positions=positions,
        sign=-1 if number % 2 else 1,
    )  # fmt: skip


def make_pairs(n: int = 4, lengths: tuple[int, ...] = (9, 7), first: int = 0) -> tuple[Pair, ...]:
    """Pairs of different lengths, so that batches hold ragged prompts."""
    return tuple(make_pair(first + i, lengths[i % len(lengths)]) for i in range(n))


@torch.no_grad()
def plain_logits(lm: LanguageModel, ids: tuple[int, ...]) -> torch.Tensor:
    """(V,) at the last token, full forward."""
    return lm.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def plain_margin(lm: LanguageModel, pair: Pair, side: str = "source") -> float:
    logits = plain_logits(lm, getattr(pair, f"{side}_ids")).double()
    return float(logits[pair.target_answer_ids[0]] - logits[pair.source_answer_ids[0]])


def hook_count(lm: LanguageModel) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in lm.model.modules())
