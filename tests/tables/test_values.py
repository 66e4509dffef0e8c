"""Numbers of the prose are cells; a section that quotes some writes none by hand."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.records.paths import committed_root
from sparse_control.records.read import read_records
from sparse_control.tables.parts import all_tables
from sparse_control.tables.render import values_tex
from sparse_control.tables.values import Value, misquotes, read_values, value_text
from sparse_control.verify.prose import value_checks
from tests.support.measured_root import MODEL

PROJECT = Path(__file__).parent.parent.parent
FRAMES = {
    "t": pd.DataFrame(
        [["a", -0.12345, 7, None], ["b", 0.5, 0, "x & y_1"]], columns=["key", "x", "n", "words"], dtype=object
    )
}
CHOICES = {"negative": "less", "zero": "nothing", "positive": "more", "missing": "unknown"}


WHERE = {"first": {"key": "a"}, "second": {"key": "a", "model": "n"}}


def write_values(project, entries):
    (project / "paper").mkdir(exist_ok=True)
    (project / "paper" / "values.yaml").write_text(yaml.safe_dump({"model": "m", "values": entries}))


def value(key, column, format="text", **more):
    return Value(name="v", table="t", where={"key": key}, column=column, format=format, **more)


@pytest.mark.parametrize(
    "given, text",
    [
        (value("a", "x", "decimal 3"), "−0.123"),
        (value("b", "x", "signed 2"), "+0.50"),
        (value("a", "x", "signed 2"), "−0.12"),
        (value("b", "x", "signed 0"), "+1"),
        (value("b", "n", "signed 2"), "0.00"),
        (value("a", "x", "significant 2"), "−0.12"),
        (value("a", "n", "whole"), "7"),
        (value("b", "words"), "x & y_1"),
        (value("b", "words", "words"), "x & y 1"),
        (value("a", "words"), "—"),
        (value("a", "x", choices=CHOICES), "less"),
        (value("b", "n", choices=CHOICES), "nothing"),
        (value("b", "x", choices=CHOICES), "more"),
        (value("a", "words", choices=CHOICES), "unknown"),
    ],
)
def test_formats(given, text):
    assert value_text(given, FRAMES) == text


@pytest.mark.parametrize(
    "given, message",
    [
        (value("c", "x"), "0 rows"),
        (value("a", "y"), "no column 'y'"),
        (value("b", "words", "decimal 2"), "cannot be shown"),
        (Value(name="v", table="u", where={}, column="x"), "no table 'u'"),
        (Value(name="v", table="t", where={}, column="x"), "2 rows"),
    ],
)
def test_a_value_without_its_cell(given, message):
    with pytest.raises(InputError, match=message):
        value_text(given, FRAMES)


def test_values_are_escaped_and_missing_ones_are_dashes():
    text = values_tex([value("b", "words"), value("c", "x").model_copy(update={"name": "w"})], FRAMES)
    assert r"\csname value@v\endcsname{x \& y\_1}" in text and r"\csname value@w\endcsname{---}" in text


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "Two"}, "name"),
        ({"format": "decimal"}, "format"),
        ({"choices": {"negative": "less"}}, "choices must have"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_bad_value_is_named(tmp_path, change, message):
    entry = {"name": "v", "table": "t", "where": {"key": "a"}, "column": "x"} | change
    write_values(tmp_path, [entry])
    with pytest.raises(InputError, match=f"value 1: .*{message}"):
        read_values(tmp_path)


def test_a_name_is_there_once(tmp_path):
    write_values(tmp_path, [{"name": "v", "table": "t", "where": {"key": key}, "column": "x"} for key in "ab"])
    with pytest.raises(InputError, match="name: is there twice, got 'v'"):
        read_values(tmp_path)


def test_the_model_of_the_paper_is_that_of_a_cell_that_names_none(tmp_path):
    entries = [{"name": name, "table": "t", "where": where, "column": "x"} for name, where in WHERE.items()]
    write_values(tmp_path, entries)
    assert [value.where for value in read_values(tmp_path)] == [{"model": "m", "key": "a"}, {"model": "n", "key": "a"}]
    frame = pd.DataFrame([["m", "a", 1], ["n", "a", 2]], columns=["model", "key", "x"], dtype=object)
    assert [value_text(value, {"t": frame}) for value in read_values(tmp_path)] == ["1", "2"]


@pytest.mark.parametrize("content", ["- {name: v}\n", "values: []\n", "{model: m, values: {}}\n"])
def test_a_file_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "values.yaml").write_text(content)
    with pytest.raises(InputError, match=r"values\.yaml: "):
        read_values(tmp_path)


@pytest.mark.parametrize(
    "text, wrong",
    [
        (r"It is \val{v}, see Table~\ref{tab:a1}. % 95 of them", []),
        (r"It is \val{v} of 12.", ["'12.' is written by hand"]),
        (r"It is \val{w}.", ["no value 'w'"]),
        (r"About 30\% of \val{v}", ["'30'"]),
        ("A section that quotes nothing may have 3 numbers.", []),
    ],
)
def test_sections(tmp_path, text, wrong):
    (tmp_path / "s.tex").write_text("First line.\n" + text)
    found = list(misquotes(tmp_path / "s.tex", {"v"}))
    assert len(found) == len(wrong)
    assert all(line.startswith("s.tex:2: ") and part in line for line, part in zip(found, wrong, strict=True))


def test_the_texts_of_the_paper_quote_what_there_is():
    values = read_values(PROJECT)
    names = {entry.name for entry in values}
    quoted = set()
    for path in [*(PROJECT / "paper" / "results").glob("*.tex"), *(PROJECT / "paper" / "sections").glob("*.tex")]:
        assert list(misquotes(path, names)) == []
        quoted |= set(re.findall(r"\\val\{([^{}]*)\}", path.read_text()))
    assert quoted == names


def test_the_sections_of_a_project_are_held_to_their_cells(built_root, tmp_path):
    entry = {"name": "good", "table": "findings", "column": "value", "format": "whole"}
    cells = [entry | {"where": {"finding": "common k", "model": MODEL}}, entry | {"name": "bad", "where": {}}]
    write_values(tmp_path, cells)
    (tmp_path / "paper" / "sections").mkdir()
    (tmp_path / "paper" / "sections" / "s.tex").write_text(r"\val{good}, \val{other}, 7")
    frames = all_tables(read_records(built_root, tmp_path))
    found = {check.name: check for check in value_checks(committed_root(tmp_path), tmp_path, frames, ())}
    assert found["value good"].detail == "64" and "0 rows" in found["value bad"].detail
    assert {name for name, check in found.items() if check.status == "FAIL"} == {
        "value bad",
        "section paper/sections/s.tex",
    }
    assert list(value_checks(built_root, tmp_path, frames, ())) == []
