"""The tokens a text is where it follows a prompt, which are not those it is by itself."""

from collections.abc import Callable, Iterable, Sequence


def continuation(
    encode: Callable[[str], Iterable[int]], prompt: str, prompt_ids: Sequence[int], text: str
) -> tuple[int, ...] | None:
    """Token ids of `text` after `prompt`; None where the tokenizer merges across the seam.

    By itself a text may begin with a token of its own: SentencePiece tokenizers write a space before it, so that the
    " Paris" of an answer is two tokens alone and one after its prompt.

    Args:
        encode: text -> token ids, as the prompt was encoded.
        prompt: as the model reads it.
        prompt_ids: its token ids.
        text: what follows, with its leading space where it has one.
    """
    ids = tuple(int(token) for token in encode(prompt + text))
    before = tuple(int(token) for token in prompt_ids)
    return ids[len(before) :] if ids[: len(before)] == before and len(ids) > len(before) else None
