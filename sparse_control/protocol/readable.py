"""What a model can read: pairs of its own tokens, and sites inside their prompts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sparse_control.arguments import whole_number
from sparse_control.models import LanguageModel
from sparse_control.models.decode import as_prompt
from sparse_control.models.sites import Site
from sparse_control.protocol.panels.pair import Pair


def check_positions(sites: Iterable[Site], lengths: Iterable[int]) -> None:
    """Refuse two names of one site, such as positions -1 and 8 in a prompt of nine tokens: it would count twice.

    Args:
        sites: distinct sites.
        lengths: of the prompts, in tokens.

    Raises:
        ValueError: names both sites, or a site outside a prompt.
    """
    for length in sorted(set(lengths)):
        named: dict[Site, Site] = {}
        for site in sites:
            if not -length <= site.position < length:
                raise ValueError(f"site {site.name}: position {site.position} is outside a prompt of {length} tokens")
            first = named.setdefault(replace(site, position=site.position % length), site)
            if first != site:
                raise ValueError(
                    f"sites {first.name} and {site.name} are the same in a prompt of {length} tokens; name it once"
                )


def check_sites(sites: Iterable[Site], pairs: Iterable[Pair]) -> None:
    """Refuse sites at which the prompts of some pairs cannot be patched or compared.

    Raises:
        ValueError: as `check_positions`, or another position than the last of pairs that are no minimal edits.
    """
    sites, pairs = tuple(sites), tuple(pairs)
    check_positions(sites, [len(pair.source_ids) for pair in pairs])
    loose = next((pair.id for pair in pairs if pair.last_token_only), None)
    if loose is not None and (other := next((site.name for site in sites if site.position != -1), None)):
        raise ValueError(f"site {other}: pair {loose} is no minimal edit, so its last token alone is patched; use -1")


def check_readable(lm: LanguageModel, pairs: Any, name: str = "pairs") -> None:
    """Refuse what is no sequence of pairs, and a pair whose tokens are none of the model's.

    Raises:
        ValueError: not a sequence of pairs, none, or token or answer ids outside the vocabulary; names the pair.
    """
    if isinstance(pairs, Pair):
        raise ValueError(f"{name} must be a sequence of pairs, got one pair; use (pair,) with pair {pairs.id}")
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Sequence):
        raise ValueError(f"{name} must be a sequence of pairs, such as a tuple, got {type(pairs).__name__}")
    if len(pairs) == 0:
        raise ValueError(f"{name}: none given; every pair was dropped, or the split is empty")
    outputs = lm.model.get_output_embeddings().weight.shape[0]
    for index, pair in enumerate(pairs):
        if not isinstance(pair, Pair):
            raise ValueError(f"{name}[{index}] must be a Pair, got {type(pair).__name__}")
        for side in ("source", "target"):
            as_prompt(lm, getattr(pair, f"{side}_ids"), f"pair {pair.id}: {side}_ids")
            for token in getattr(pair, f"{side}_answer_ids"):
                whole_number(f"pair {pair.id}: each of {side}_answer_ids", token, 0, outputs - 1)
