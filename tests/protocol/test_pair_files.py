"""Pairs of one's own from a file: what is used, what is dropped and why, and what is refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.protocol import read_pairs
from sparse_control.protocol.panels.draw import SPLITS
from sparse_control.protocol.panels.pair import Draft, build_pair
from tests.support.words import MergingTokenizer, WordTokenizer

GOOD = {
    "source": "The film was bad and the crew was rude. Tone:",
    "target": "The film was good and the crew was kind. Tone:",
    "source_answer": " negative",
    "target_answer": " positive",
}


def subject(word: str, **fields: str) -> dict[str, str]:
    """`GOOD` about something else."""
    return {name: text.replace("film", word) for name, text in GOOD.items()} | fields


def lines(folder: Path, *rows: object, name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_pair_of_a_file_is_the_pair_built_by_hand(tmp_path):
    """Each run of words that differ is an edit of its own, so that a shift between two edits is seen."""
    tokenizer, path = WordTokenizer(), lines(tmp_path, GOOD | {"split": "evaluate"})
    (pair,), report = read_pairs(path, tokenizer)
    pieces = ("The film was", (" bad", " good"), " and the crew was", (" rude.", " kind."), " Tone:")
    draft = Draft("mine/1", "mine", "evaluate", "source-target", pieces, (" negative",), (" positive",))
    assert pair == build_pair(tokenizer, draft)
    assert pair.positions == (3, 8)
    assert report.read == 1 and report.dropped == {} and report.task == "mine"
    assert report.source == f"mine.jsonl sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_what_cannot_be_used_is_dropped_with_its_reason_and_first_line(tmp_path):
    path = lines(
        tmp_path,
        GOOD,
        GOOD,  # again
        subject("play", target=GOOD["source"]),  # its target is the source of the first
        subject("book", target="All in all it is a fine and happy thing. Tone:"),
        subject("song", target="The song was bad and the whole crew was rude. Tone:"),
        subject("tour", target="The tour was marvellous and the crew was kind. Tone:"),
        subject("game", source_answer=" dreadful"),
        subject("show", target_answer=" negative"),
        subject("walk"),
    )
    pairs, report = read_pairs(path, WordTokenizer(long=("marvellous", "dreadful")))
    assert [pair.id for pair in pairs] == ["mine/1", "mine/9"]
    wanted = {"repeated prompt": 2, "no minimal edit": 1, "token lengths": 2, "answer": 1, "other": 1}
    assert report.dropped == wanted and list(report.dropped) == list(wanted)
    assert report.read == len(pairs) + sum(report.dropped.values())
    numbers = {"repeated prompt": 2, "no minimal edit": 4, "token lengths": 5, "answer": 7, "other": 8}
    for reason, number in numbers.items():
        assert report.first[reason].startswith(f"{path}:{number}: "), reason
    assert "2 of 9 pairs used; dropped: 2 repeated prompt" in str(report)


def test_tokens_that_differ_outside_of_the_edits_are_dropped(tmp_path):
    """The tokenizer joins "red" to the word behind it, so that an edit reaches over its end."""
    row = {**GOOD, "source": "A red coat and a blue hat. It is", "target": "A big coat and a blue hat. It is"}
    with pytest.raises(InputError, match="0 of 1 pairs used; dropped: 1 token lengths"):
        read_pairs(lines(tmp_path, row), MergingTokenizer())


def test_a_shift_between_two_edits_of_the_same_total_length_is_seen(tmp_path):
    """One edit is a token longer and the other a token shorter, so that all prompts have one length."""
    row = {**GOOD, "target": "The film was marvellous and the crew was kind. Tone:", "source": GOOD["source"]}
    row["source"] = row["source"].replace("rude", "dreadful")
    tokenizer = WordTokenizer(long=("marvellous", "dreadful"))
    assert len(tokenizer.encode(row["source"])) == len(tokenizer.encode(row["target"]))
    with pytest.raises(InputError, match="0 of 1 pairs used; dropped: 1 token lengths .*of edit"):
        read_pairs(lines(tmp_path, row), tokenizer)
    (pair,), _ = read_pairs(lines(tmp_path, row), tokenizer, last_token_only=True)
    assert pair.last_token_only and pair.positions == ()


def test_splits_are_dealt_by_their_stream_and_no_prompt_meets_itself(tmp_path):
    words = [f"thing{chr(97 + i)}" for i in range(10)]
    path = lines(tmp_path, *map(subject, words))
    pairs, _ = read_pairs(path, WordTokenizer(), seed=3)
    splits = [pair.split for pair in pairs]
    assert [splits.count(split) for split in SPLITS] == [4, 3, 3]
    assert pairs == read_pairs(path, WordTokenizer(), seed=3)[0]
    other, _ = read_pairs(path, WordTokenizer(), seed=4)
    assert [pair.split for pair in other] != splits
    assert [replace(pair, split="fit") for pair in other] == [replace(pair, split="fit") for pair in pairs]
    given = lines(tmp_path, *(subject(word, split="reuse") for word in words), name="given.jsonl")
    assert {pair.split for pair in read_pairs(given, WordTokenizer())[0]} == {"reuse"}


def test_two_orientations_have_two_signs(tmp_path):
    rows = (subject(word, orientation=turn) for word, turn in (("a", "up"), ("b", "down"), ("c", "up")))
    assert [pair.sign for pair in read_pairs(lines(tmp_path, *rows), WordTokenizer())[0]] == [1, -1, 1]


def test_contrast_lists_are_the_same_pairs(tmp_path):
    rows = [subject(word, orientation="negative-positive") for word in ("film", "play", "song")]
    path = tmp_path / "mine.json"
    lists = {"negative": [row["source"] for row in rows], "positive": [row["target"] for row in rows]}
    path.write_text(json.dumps(lists | {"negative_answer": " negative", "positive_answer": " positive"}))
    assert read_pairs(path, WordTokenizer())[0] == read_pairs(lines(tmp_path, *rows), WordTokenizer())[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "mine.jsonl: holds no pairs"),
        ([["a"]], ":1: expected an object with source, target, source_answer, target_answer, got list"),
        ([GOOD, {"source": "a"}], ":2: target: the field is missing"),
        ([GOOD | {"sauce": "a"}], ":1: sauce: unknown field"),
        ([GOOD | {"source": 3}], ":1: source: 3 must be text"),
        ([GOOD | {"target": "It is "}], ":1: target: 'It is ' must be text that does not end with white space"),
        ([GOOD | {"split": "test"}], ":1: split: must be one of fit, evaluate, reuse, got 'test'"),
        ([GOOD | {"split": "fit"}, GOOD], ":2: split: must be in every line or in none"),
        ([GOOD | {"orientation": turn} for turn in "abc"], ":3: orientation: 'c' is the third; the others are a, b"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(tmp_path, rows, message):
    with pytest.raises(InputError) as caught:
        read_pairs(lines(tmp_path, *rows), WordTokenizer())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_contrast_lists_of_unequal_length_and_other_suffixes_are_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps({"negative": ["a"], "positive": [], "negative_answer": " no", "positive_answer": " yes"})
    )
    with pytest.raises(InputError, match="negative has 1 prompts and positive 0"):
        read_pairs(path, WordTokenizer())
    with pytest.raises(InputError, match="pairs are read from .jsonl"):
        read_pairs(lines(tmp_path, GOOD, name="mine.txt"), WordTokenizer())
