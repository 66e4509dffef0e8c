"""Drawing pairs from a panel: candidates in a random order, those a tokenizer keeps minimal edits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.protocol.panels.pair import Draft, Pair, build_pair

SPLITS = ("fit", "evaluate", "reuse")


@dataclass(frozen=True)
class Plan:
    """How a panel fills the n places of a split.

    Attributes:
        candidates: words, questions or prompts in the order in which they are tried, each at most once.
        drafts: (pairs so far, candidate) -> drafts of that candidate, of which the first that keeps its token length is
            taken. Templates, orders and orientations are balanced over the places.
        fewer: whether there may be less than n candidates, as files of prompts have as many as they have.
        passed_over: material that is in no candidate, as nothing in its file makes a minimal edit of it.
    """

    candidates: Iterable[Any]
    drafts: Callable[[Sequence[Pair], Any], Sequence[Draft]]
    fewer: bool = False
    passed_over: int = 0


@dataclass(frozen=True)
class Draw:
    """Pairs of one split, and the candidates that were tried in vain.

    Attributes:
        pairs: the pairs.
        source: where their texts come from: `own`, or a file's name and SHA-256.
        dropped: candidates without a draft that the tokenizer keeps a minimal edit, and material in no candidate.
    """

    pairs: tuple[Pair, ...]
    source: str
    dropped: int


def draw(encoder: Any, task: str, split: str, n: int, plan: Plan, source: str) -> Draw:
    """Fill a plan; there are fewer than n pairs where the tokenizer breaks so many candidates.

    Raises:
        InputError: too few candidates, whatever the tokenizer, or none that it keeps; gives the first reason.
        UnsupportedModel: the panel asks for a chat template the model does not have.
    """
    pairs: list[Pair] = []
    reasons: list[str] = []
    for candidate in plan.candidates:
        if len(pairs) == n:
            break
        built = _first(encoder, plan.drafts(pairs, candidate))
        if isinstance(built, Pair):
            pairs.append(built)
        else:
            reasons.append(built)
    tried = len(pairs) + len(reasons)
    if tried < n and not (plan.fewer and tried):
        raise InputError(f"{task}: split {split} has {tried} pairs ({source}), {n} were asked for")
    if not pairs:
        raise InputError(
            f"{task}: split {split}: the tokenizer breaks all {tried} pairs ({source}), first: {reasons[0]}"
        )
    check_pairs(pairs)
    return Draw(tuple(pairs), source, len(reasons) + plan.passed_over)


def _first(encoder: Any, drafts: Sequence[Draft]) -> Pair | str:
    reason = "no draft"
    for draft in drafts:
        try:
            return build_pair(encoder, draft)
        except UnsupportedModel:
            raise
        except InputError as error:
            reason = str(error)
    return reason


def check_pairs(pairs: Sequence[Pair]) -> None:
    """No id and no pair of prompts twice, and no pair beside its mirror, which would cancel it in a mean contrast.

    Raises:
        InputError: names the pair.
    """
    seen: dict[tuple[Any, Any], str] = {}
    ids: set[str] = set()
    for pair in pairs:
        prompts = (pair.source_ids, pair.target_ids)
        if pair.id in ids or prompts in seen:
            raise InputError(f"pair {pair.id}: stands twice in a split")
        if prompts[::-1] in seen:
            raise InputError(f"pair {pair.id}: is the mirror of {seen[prompts[::-1]]}; keep one of them in a split")
        seen[prompts] = pair.id
        ids.add(pair.id)


def check_disjoint(task: str, units: Mapping[str, Mapping[str, Iterable[str]]]) -> None:
    """The splits of a task share no template, word, question or prompt.

    Args:
        units: split -> kind of unit -> the units of that split.

    Raises:
        InputError: names the unit and the two splits; or a unit that stands twice in one split.
    """
    owner: dict[tuple[str, str], str] = {}
    for split, kinds in units.items():
        for kind, members in kinds.items():
            for member in members:
                key = (kind, normalised(member))
                if key in owner:
                    raise InputError(f"{task}: {kind} {member!r} stands in splits {owner[key]} and {split}")
                owner[key] = split


def normalised(text: str) -> str:
    """A text without case and runs of white space, as texts are compared."""
    return " ".join(text.casefold().split())
