"""Tokenizers of whole words, for panels without a model."""

import re


class WordTokenizer:
    """One token per word with its leading space; words in `long` are two tokens."""

    chat_template = None

    def __init__(self, long: tuple[str, ...] = (), bos: bool = False) -> None:
        self.long, self.bos_token_id, self.bos = long, 0, bos
        self.pad_token_id, self.eos_token_id = 1, 2
        self.vocabulary = {"<bos>": 0, "<pad>": 1, "<eos>": 2}

    def encode(self, text: str) -> list[int]:
        return [0] * self.bos + self.ids(text)

    def ids(self, text: str) -> list[int]:
        pieces = []
        for word in re.findall(r"<\w+>| ?\w+| ?[^\w\s]|\n", text):
            pieces += [word[:2], word[2:]] if word.strip() in self.long else [word]
        return [self.vocabulary.setdefault(piece, len(self.vocabulary)) for piece in pieces]


class MergingTokenizer(WordTokenizer):
    """Also makes one token of the word "red" and the word that follows it."""

    def ids(self, text: str) -> list[int]:
        return super().ids(re.sub(r"red (\w+)", r"red\1", text))


class ChatTokenizer(WordTokenizer):
    """Turns end with `<eos>`; the template writes its own `<bos>`."""

    chat_template = "a template"

    def apply_chat_template(self, messages: list[dict], *, add_generation_prompt: bool, tokenize: bool) -> str:
        assert add_generation_prompt and not tokenize
        return "<bos>" + "".join(f"<{m['role']}>{m['content']}<eos>" for m in messages) + "<assistant>"

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text) if add_special_tokens else self.ids(text)}
