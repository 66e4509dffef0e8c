"""Tables in the terminal: nothing is wider than asked for, and nothing is lost but what is cut visibly."""

import pytest

from sparse_control.project import project_folder
from sparse_control.records.read import read_records
from sparse_control.tables.registry import TABLES
from sparse_control.tables.shown import text_of
from sparse_control.tables.terminal import Shown, plain_text


def shown(**change):
    values = {
        "name": "t", "label": "t", "title": "Title", "caption": "word " * 60, "by_model": False,
        "headings": ("Key", "First\nof two", "Second", "Third"), "aligns": ("l", "r", "r", "r"),
        "rows": (("a", "1" * 20, "2" * 20, "3" * 20), ("b" * 70, "4", "5", "—")),
    }  # fmt: skip
    return Shown(**values | change)


@pytest.mark.parametrize("width", [60, 100])
def test_no_line_is_longer_and_every_cell_is_there(width):
    text = plain_text(shown(), width)
    assert max(map(len, text.splitlines())) <= width
    for cell in ("1" * 20, "2" * 20, "3" * 20, "First", "of two", "Second", "Third"):
        assert cell in text
    assert "b…" in text and "b" * 70 not in text
    assert text.count("Key") > 1, "what a row is of is said again in every part"


def test_wide_is_one_line_a_row():
    lines = plain_text(shown()).splitlines()
    assert any("b" * 70 in line and line.endswith("—") for line in lines)
    assert sum("Key" in line for line in lines) == 1 and len(lines[0]) > 300


def test_a_table_of_words_alone_and_an_empty_one():
    words = shown(headings=("A", "B"), aligns=("l", "l"), rows=(("x", "y"),))
    assert plain_text(words, 60).splitlines()[-1] == "x  y"
    assert "(no records)" in plain_text(shown(rows=()), 60)


def test_every_table_fits(built_whole_root):
    records = read_records(built_whole_root, project_folder())
    for name, text in zip(TABLES, text_of(TABLES, records, 100), strict=True):
        assert max(map(len, text.splitlines())) <= 100, name
