"""Source and target prompts as minimal edits of each other, checked against the tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from sparse_control.arguments import brief, elements, instance, whole_number
from sparse_control.errors import InputError
from sparse_control.models.chat import chat_text
from sparse_control.models.continuation import continuation

Piece = str | tuple[str, str]


class UnequalLength(InputError):
    """Prompts, or the two texts of an edit, that are not of equal token length."""


class BrokenAnswer(InputError):
    """An answer that is not one token after its prompt."""


@dataclass(frozen=True)
class Draft:
    """A pair before it is tokenised.

    Attributes:
        id: unique within a panel; says template, words and orientation.
        task, split: where the pair belongs.
        orientation: which of the two readings is the source.
        sign: +1 or -1 by the orientation, where it is drawn at random; else +1.
        pieces: the prompt in order: a text that source and target share, or an edit (source text, target text).
        source_answers, target_answers: what each prompt calls for, with its leading space; one answer, or the first
            words of several answers that count alike.
        system: None: the pieces are the prompt. A text: they are the user's turn under this system prompt, in the
            model's chat template.
    """

    id: str
    task: str
    split: str
    orientation: str
    pieces: tuple[Piece, ...]
    source_answers: tuple[str, ...]
    target_answers: tuple[str, ...]
    system: str | None = None
    sign: int = 1

    @property
    def source(self) -> str:
        return "".join(piece if isinstance(piece, str) else piece[0] for piece in self.pieces)

    @property
    def target(self) -> str:
        return "".join(piece if isinstance(piece, str) else piece[1] for piece in self.pieces)


@dataclass(frozen=True)
class Pair:
    """A checked pair: two prompts of equal token length that differ only at `positions`, or are read at the end alone.

    Attributes:
        id, task, split, orientation, source_answers, target_answers, sign: as in `Draft`.
        source, target: the prompts as they are tokenised, with the chat template's text where there is one.
        source_ids, target_ids: token ids (T,).
        source_answer_ids, target_answer_ids: the tokens the answers are in context. The readout is the logsumexp of the
            logits of the target's less that of the source's: with one answer each, the logit difference.
        positions: where the two prompts differ, 0..T-1; none where they are read at the end alone.
        last_token_only: whether the two are no minimal edits of each other, so that only their last tokens may be
            compared and patched; the lengths may differ then.

    Raises:
        ValueError: a field of the wrong type.
        InputError: the pair is none: names what.
    """

    id: str
    task: str
    split: str
    orientation: str
    source: str
    target: str
    source_answers: tuple[str, ...]
    target_answers: tuple[str, ...]
    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    source_answer_ids: tuple[int, ...]
    target_answer_ids: tuple[int, ...]
    positions: tuple[int, ...]
    sign: int = 1
    last_token_only: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sign, bool) or not isinstance(self.sign, int) or self.sign not in (1, -1):
            raise InputError(f"pair {self.id}: sign must be 1 or -1, got {brief(self.sign)}")
        for name in ("id", "task", "split", "orientation", "source", "target"):
            instance(name, getattr(self, name), str)
        for name in ("source_ids", "target_ids", "source_answer_ids", "target_answer_ids", "positions"):
            ids = enumerate(elements(name, getattr(self, name)))
            object.__setattr__(self, name, tuple(whole_number(f"{name}[{index}]", value, 0) for index, value in ids))
        for name in ("source_answers", "target_answers"):
            answers = tuple(instance(name, answer, str) for answer in elements(name, getattr(self, name)))
            object.__setattr__(self, name, answers)
        if not instance("last_token_only", self.last_token_only, bool):
            _check_lengths(self.id, self.source_ids, self.target_ids)
        if (shorter := min(len(self.source_ids), len(self.target_ids))) < 2:
            raise InputError(f"pair {self.id}: a prompt needs at least two tokens, got {shorter}")
        found = () if self.last_token_only else differences(self.source_ids, self.target_ids)
        if self.last_token_only and self.positions:
            raise InputError(f"pair {self.id}: last_token_only: has no positions, declared {self.positions}")
        if found != tuple(self.positions):
            raise InputError(f"pair {self.id}: prompts differ at positions {found}, declared {tuple(self.positions)}")
        if self.source_ids == self.target_ids:
            raise InputError(f"pair {self.id}: source and target are the same prompt")
        for side, ids in (("source", self.source_answer_ids), ("target", self.target_answer_ids)):
            if len(ids) == 0 or len(set(ids)) < len(ids):
                raise InputError(f"pair {self.id}: {side}_answer_ids must be distinct tokens, at least one, got {ids}")
        both = sorted(set(self.source_answer_ids) & set(self.target_answer_ids))
        if both:
            raise InputError(f"pair {self.id}: both answers are token {both[0]}")


def differences(source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Where two prompts of equal length differ."""
    return tuple(i for i, (a, b) in enumerate(zip(source, target, strict=True)) if a != b)


def _check_lengths(pair: str, source: Sequence[int], target: Sequence[int]) -> None:
    if len(source) != len(target):
        raise UnequalLength(
            f"pair {pair}: source has {len(source)} tokens and target {len(target)}; use words of equal token length"
        )


def fill(template: str, **words: Piece) -> tuple[Piece, ...]:
    """The pieces of a template: a text fills its field, an edit takes the space before its field with it.

    Raises:
        KeyError: a field without a word.
    """
    pieces: list[Piece] = [""]
    for text, field, _, _ in Formatter().parse(template):
        pieces[-1] += text  # the last piece is always shared text here
        if field is None:
            continue
        word = words[field]
        if isinstance(word, str):
            pieces[-1] += word
            continue
        space = " " if pieces[-1].endswith(" ") else ""
        pieces[-1] = pieces[-1].removesuffix(" ")
        pieces += [(space + word[0], space + word[1]), ""]
    return tuple(piece for piece in pieces if piece)


@dataclass(frozen=True)
class _Text:
    """One side of a draft as it is tokenised, and where its edits begin and end in it, in characters."""

    text: str
    spans: tuple[tuple[int, int], ...]


def _side(encoder: Any, draft: Draft, side: int) -> _Text:
    spans, prompt = [], ""
    for piece in draft.pieces:
        if isinstance(piece, str):
            prompt += piece
            continue
        spans.append((len(prompt), len(prompt) + len(piece[side])))
        prompt += piece[side]
    if draft.system is None:
        return _Text(prompt, tuple(spans))
    text = chat_text(_tokenizer(encoder), prompt, draft.system, getattr(encoder, "template_arguments", None))
    if text.count(prompt) != 1:
        raise InputError(f"pair {draft.id}: the chat template holds the prompt {text.count(prompt)} times, not once")
    shift = text.index(prompt)
    return _Text(text, tuple((start + shift, end + shift) for start, end in spans))


def _tokenizer(encoder: Any) -> Any:
    return getattr(encoder, "tokenizer", encoder)


def _ids(encoder: Any, draft: Draft, text: str) -> tuple[int, ...]:
    if draft.system is None:
        return tuple(int(token) for token in encoder.encode(text))
    return tuple(_tokenizer(encoder)(text, add_special_tokens=False)["input_ids"])  # the template wrote them


def _answer_ids(
    encoder: Any, draft: Draft, prompt: str, prompt_ids: tuple[int, ...], words: Sequence[str]
) -> tuple[int, ...]:
    """The tokens some words are when they follow a prompt.

    Of several words those the tokenizer breaks are left out, as a fragment begins many other words too. A reply begins
    with a space where a chat template does not end in one, so the words count with and without it there.
    """
    forms = list(words)
    if draft.system is not None and not prompt[-1:].isspace():
        forms += [f" {word}" for word in words]
    tails = [continuation(lambda text: _ids(encoder, draft, text), prompt, prompt_ids, form) for form in forms]
    found = [tail[0] for tail in tails if tail is not None and len(tail) == 1]
    if not found:
        length = None if tails[0] is None else len(tails[0])
        as_it_is = "merges with its prompt" if length is None else f"is {length} tokens after its prompt, not one"
        raise BrokenAnswer(
            f"pair {draft.id}: answer {words[0]!r} {as_it_is}; answers need a leading space and a one-token word"
            if len(words) == 1
            else f"pair {draft.id}: none of the answers {tuple(words)} is one token after its prompt"
        )
    return tuple(dict.fromkeys(found))


def build_pair(encoder: Any, draft: Draft, last_token_only: bool = False) -> Pair:
    """Tokenise a draft and check it.

    Args:
        encoder: a `LanguageModel` or tokenizer; its `encode(text)` gives token ids with the BOS policy. A chat draft
            needs a Hugging Face tokenizer.
        draft: the texts.
        last_token_only: whether the prompts need be no minimal edits of equal token length, as in `Pair`.

    Raises:
        InputError: names the pair and what is wrong: token lengths, a difference outside the declared edits, an
            answer that is not one token in context, a doubled BOS, padding or an end of text in the prompt.
        UnsupportedModel: a chat draft, and no chat template that takes a system prompt.
    """
    if not any(isinstance(piece, tuple) for piece in draft.pieces):
        raise InputError(f"pair {draft.id}: no edit is declared")
    texts = [_side(encoder, draft, side) for side in (0, 1)]
    source, target = (_ids(encoder, draft, side.text) for side in texts)
    for name, ids in (("source", source), ("target", target)):
        _check_special(encoder, draft, name, ids)
    positions: tuple[int, ...] = ()
    if not last_token_only:
        _check_lengths(draft.id, source, target)
        positions = differences(source, target)
        _check_edits(encoder, draft, texts, positions)
    return Pair(
        id=draft.id,
        task=draft.task,
        split=draft.split,
        orientation=draft.orientation,
        source=texts[0].text,
        target=texts[1].text,
        source_answers=draft.source_answers,
        target_answers=draft.target_answers,
        source_ids=source,
        target_ids=target,
        source_answer_ids=_answer_ids(encoder, draft, texts[0].text, source, draft.source_answers),
        target_answer_ids=_answer_ids(encoder, draft, texts[1].text, target, draft.target_answers),
        positions=positions,
        sign=draft.sign,
        last_token_only=last_token_only,
    )


def _check_special(encoder: Any, draft: Draft, name: str, ids: tuple[int, ...]) -> None:
    tokenizer = _tokenizer(encoder)
    special = {kind: getattr(tokenizer, f"{kind}_token_id", None) for kind in ("bos", "pad", "eos")}
    if special["bos"] is not None and ids[:2] == (special["bos"],) * 2:
        raise InputError(f"pair {draft.id}: {name} begins with two BOS tokens; leave the BOS out of the text")
    # A chat template ends its turns with such tokens; only the end of the prompt, where the reply begins, is looked at.
    begin = bool(ids) and ids[0] == special["bos"]
    looked_at = ids[begin:] if draft.system is None else ids[-1:]
    for kind in ("pad", "eos"):
        if special[kind] in looked_at:
            raise InputError(f"pair {draft.id}: {name} holds the {kind.upper()} token; prompts are unpadded and open")


def _check_edits(encoder: Any, draft: Draft, texts: Sequence[_Text], positions: tuple[int, ...]) -> None:
    """The k-th edits take the same tokens of source and target, and nothing differs outside of them."""
    allowed: set[int] = set()
    for edits in zip(texts[0].spans, texts[1].spans, strict=True):
        places = [
            tuple(len(_ids(encoder, draft, side.text[:end])) for end in span)
            for side, span in zip(texts, edits, strict=True)
        ]
        if places[0] != places[1]:
            pieces = tuple(side.text[start:end] for side, (start, end) in zip(texts, edits, strict=True))
            raise UnequalLength(f"pair {draft.id}: the two texts of edit {pieces} are not of equal token length")
        allowed |= set(range(*places[0]))
    outside = [position for position in positions if position not in allowed]
    if outside:
        raise InputError(f"pair {draft.id}: prompts differ at token {outside[0]}, outside of the declared edits")
