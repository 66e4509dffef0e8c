"""Source and target prompts as minimal edits of each other, checked against the tokenizer."""

from dataclasses import dataclass
from typing import Any

from sparse_control.errors import InputError


@dataclass(frozen=True)
class Draft:
    """A pair before it is tokenised.

    Attributes:
        id: unique within a panel; says template, words and orientation.
        task, split: where the pair belongs.
        orientation: which of the two readings is the source.
        source, target: the prompts.
        source_answer, target_answer: what each prompt calls for, as a token string with its leading space.
        edits: (source word, target word) with leading spaces, in order of position; nothing else may differ.
    """

    id: str
    task: str
    split: str
    orientation: str
    source: str
    target: str
    source_answer: str
    target_answer: str
    edits: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pair:
    """A checked pair: two prompts of equal token length that differ only at `positions`.

    Attributes:
        id, task, split, orientation, source, target, source_answer, target_answer: as in `Draft`.
        source_ids, target_ids: token ids (T,) with the model's BOS policy.
        source_answer_id, target_answer_id: the one token each answer is in context.
        positions: where the two prompts differ, 0..T-1.
    """

    id: str
    task: str
    split: str
    orientation: str
    source: str
    target: str
    source_answer: str
    target_answer: str
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    source_answer_id: int
    target_answer_id: int
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.source_ids) != len(self.target_ids):
            raise InputError(
                f"pair {self.id}: source has {len(self.source_ids)} tokens and target {len(self.target_ids)}; "
                "use words of equal token length"
            )
        if len(self.source_ids) < 2:
            raise InputError(f"pair {self.id}: a prompt needs at least two tokens, got {len(self.source_ids)}")
        found = tuple(i for i, (a, b) in enumerate(zip(self.source_ids, self.target_ids)) if a != b)
        if found != tuple(self.positions):
            raise InputError(f"pair {self.id}: prompts differ at positions {found}, declared {tuple(self.positions)}")
        if not found:
            raise InputError(f"pair {self.id}: source and target are the same prompt")
        if self.source_answer_id == self.target_answer_id:
            raise InputError(f"pair {self.id}: both answers are token {self.source_answer_id}")


def _ids(encoder: Any, text: str) -> tuple[int, ...]:
    return tuple(int(token) for token in encoder.encode(text))


def _one_token(encoder: Any, pair: str, prompt: str, prompt_ids: tuple[int, ...], word: str) -> int:
    """The token a word is when it follows a prompt; tokenisers may merge across the seam."""
    ids = _ids(encoder, prompt + word)
    if ids[: len(prompt_ids)] != prompt_ids or len(ids) != len(prompt_ids) + 1:
        raise InputError(
            f"pair {pair}: answer {word!r} is {len(ids) - len(prompt_ids)} tokens after its prompt, not one; "
            "answers need a leading space and a one-token word"
        )
    return ids[-1]


def build_pair(encoder: Any, draft: Draft) -> Pair:
    """Tokenise a draft and check it.

    Args:
        encoder: a `LanguageModel` or tokenizer; its `encode(text)` gives token ids with the BOS policy.
        draft: the texts.

    Raises:
        InputError: names the pair and what is wrong: token lengths, a difference that is not a declared
            edit, an answer that is not one token in context, or a doubled BOS.
    """
    source, target = _ids(encoder, draft.source), _ids(encoder, draft.target)
    bos = getattr(getattr(encoder, "tokenizer", encoder), "bos_token_id", None)
    for name, ids in (("source", source), ("target", target)):
        if bos is not None and ids[:2] == (bos, bos):
            raise InputError(f"pair {draft.id}: {name} begins with two BOS tokens; leave the BOS out of the text")
    positions = tuple(i for i, (a, b) in enumerate(zip(source, target)) if a != b)
    if len(source) == len(target):  # else `Pair` says so
        _check_edits(encoder, draft, [(source[i], target[i]) for i in positions])
    return Pair(
        id=draft.id,
        task=draft.task,
        split=draft.split,
        orientation=draft.orientation,
        source=draft.source,
        target=draft.target,
        source_answer=draft.source_answer,
        target_answer=draft.target_answer,
        source_ids=source,
        target_ids=target,
        source_answer_id=_one_token(encoder, draft.id, draft.source, source, draft.source_answer),
        target_answer_id=_one_token(encoder, draft.id, draft.target, target, draft.target_answer),
        positions=positions,
    )


def _check_edits(encoder: Any, draft: Draft, found: list[tuple[int, int]]) -> None:
    bare = len(_ids(encoder, ""))  # special tokens alone
    for place, edit in enumerate(draft.edits):
        declared = tuple(_ids(encoder, word)[bare:] for word in edit)
        if any(len(ids) != 1 for ids in declared):
            raise InputError(f"pair {draft.id}: edit {edit} is not one token for one token")
        if place >= len(found) or found[place] != (declared[0][0], declared[1][0]):
            raise InputError(f"pair {draft.id}: declared edit {edit} is not difference {place} of the token sequences")
    if len(found) != len(draft.edits):
        declared_count = len(draft.edits)
        raise InputError(f"pair {draft.id}: prompts differ at {len(found)} tokens, {declared_count} edits are declared")
