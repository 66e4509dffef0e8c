"""Corpus building on a small archive of its own; one token per word."""

import bz2
import json

import numpy as np
import pytest

from sparse_control import corpus, files
from sparse_control.corpus import build_corpus, load_corpus
from sparse_control.errors import InputError
from sparse_control.settings import CorpusSettings


def _words(count, tag):
    return " ".join(f"{tag}{number}" for number in range(count))


PAGES = [
    ("1", "Long", "0", False, f"{_words(60, 'a')}\n\n{_words(45, 'b')}"),
    ("2", "Short", "0", False, _words(9, "c")),
    ("3", "Moved", "0", True, _words(50, "d")),
    ("4", "Talk", "1", False, _words(50, "e")),
    ("5", "The Benchmark", "0", False, _words(50, "f")),
    ("6", "Other", "0", False, _words(50, "g")),
]


def _archive(path, pages=PAGES):
    def page(number, title, namespace, redirect, text):
        moved = '<redirect title="x" />' if redirect else ""
        return (
            f"<page><title>{title}</title><ns>{namespace}</ns><id>{number}</id>{moved}"
            f"<revision><id>9</id><text>{text}</text></revision></page>"
        )

    body = "".join(page(*entry) for entry in pages)
    path.write_bytes(
        bz2.compress(f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{body}</mediawiki>'.encode())
    )
    return path


class Words:
    """A tokenizer that numbers words as they come."""

    def __init__(self):
        self.words = {}

    def encode(self, text):
        return [self.words.setdefault(word, len(self.words)) for word in text.split()]

    def decode(self, ids):
        names = list(self.words)
        return " ".join(names[index] for index in ids)


def _build(tmp_path, out="out", archive=None, excluded=("benchmark",), **settings):
    words = Words()
    values = {"sequence_length": 10, "windows_per_article": 3, "minimum_paragraph_characters": 20, "seed": 0} | settings
    metadata = build_corpus(
        archive or _archive(tmp_path / "pages.bz2"), tmp_path / out, encode=words.encode, decode=words.decode,
        tokenizer_sha256="a" * 64, settings=CorpusSettings(**values), excluded=frozenset(excluded),
    )  # fmt: skip
    return metadata, load_corpus(tmp_path / out), words


def test_windows_are_exact_disjoint_and_capped(tmp_path):
    metadata, built, words = _build(tmp_path)
    assert metadata["counts"] == {
        "articles": 4, "excluded": 1, "short": 1, "used": 2, "windows_available": 15, "windows": 6,
    }  # fmt: skip
    assert metadata["left_out"] == ["The Benchmark"]
    assert built.input_ids.shape == (6, 10)
    assert len(set(built.input_ids.ravel().tolist())) == 60  # every word once: no overlap
    assert set(built.articles) == {"Long", "Other"}
    for name, ids, text in zip(built.ids, built.input_ids, built.texts, strict=True):
        window = int(name.split(":")[1])
        assert text == words.decode(ids.tolist()) and len(text.split()) == 10
        if name.startswith("6:"):
            assert text.split()[0] == f"g{10 * window}"


def test_a_window_may_cross_paragraphs_but_not_articles(tmp_path):
    _, built, _ = _build(tmp_path, windows_per_article=100, sequence_length=8)
    starts = [{word[0] for word in text.split()} for text in built.texts]
    assert {"a", "b"} in starts and all(kinds <= {"a", "b"} or len(kinds) == 1 for kinds in starts)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_order(tmp_path):
    for out, seed in (("one", 0), ("two", 0), ("three", 1)):
        _build(tmp_path, out, seed=seed)
    one, two, three = ((tmp_path / out) for out in ("one", "two", "three"))
    for name in ("windows.jsonl", "corpus.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "windows.jsonl").read_bytes() != (three / "windows.jsonl").read_bytes()


def test_first_n_is_a_prefix_and_more_than_there_is_is_refused(tmp_path):
    _, built, _ = _build(tmp_path)
    head = built.first(2)
    assert head.ids == built.ids[:2] and np.array_equal(head.input_ids, built.input_ids[:2])
    assert len(head) == len(head.texts) == 2
    for n in (0, 7):
        with pytest.raises(InputError, match=f"{n} windows asked for, there are 6"):
            built.first(n)


def test_tampered_windows_are_refused(tmp_path):
    _build(tmp_path)
    path = tmp_path / "out" / "windows.jsonl"
    path.write_text(path.read_text().replace("g1", "g2", 1))
    with pytest.raises(InputError, match="windows.jsonl: SHA-256 .* build it again"):
        load_corpus(tmp_path / "out")


def test_missing_corpus_is_one_line(tmp_path):
    with pytest.raises(InputError, match="corpus.json: cannot be read"):
        load_corpus(tmp_path)


def test_nothing_long_enough_is_refused(tmp_path):
    with pytest.raises(InputError, match="sequence_length = 5000"):
        _build(tmp_path, sequence_length=5000)


@pytest.mark.parametrize("content", [b"not bz2", bz2.compress(b"<mediawiki><page>"), bz2.compress(b"<m/>" * 99)[:-9]])
def test_a_damaged_archive_is_refused(tmp_path, content):
    path = tmp_path / "bad.bz2"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bad.bz2: not a readable MediaWiki export"):
        _build(tmp_path, archive=path)


def test_metadata_records_source_seed_and_every_id(tmp_path):
    metadata, built, _ = _build(tmp_path)
    assert metadata == json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert metadata["ids"] == list(built.ids)
    assert metadata["source"]["archive_sha256"] == files.sha256_file(tmp_path / "pages.bz2")
    assert metadata["stream"]["seed"] == 0 and metadata["windows_sha256"] == built.sha256


def test_an_archive_in_the_cache_is_not_fetched_again(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    folder.mkdir()
    made = _archive(folder / "kept.bz2")
    monkeypatch.setattr(corpus, "MEMBER", "somewhere/kept.bz2")
    monkeypatch.setattr(corpus, "ARCHIVE_SHA256", files.sha256_file(made))
    monkeypatch.setattr(corpus, "download", None)
    assert corpus.fetch_archive(tmp_path) == made
