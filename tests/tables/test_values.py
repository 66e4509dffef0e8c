"""Numbers of the prose are cells; a section that quotes some writes none by hand."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.records import manifest
from sparse_control.tables import all_tables, read_records
from sparse_control.tables.render import values_tex
from sparse_control.tables.values import Value, misquotes, read_values, value_text
from sparse_control.verify import verify

PROJECT = Path(__file__).parent.parent.parent
FRAMES = {
    "t": pd.DataFrame(
        [["a", -0.12345, 7, None], ["b", 0.5, 0, "x & y_1"]], columns=["key", "x", "n", "words"], dtype=object
    )
}
CHOICES = {"negative": "less", "zero": "nothing", "positive": "more", "missing": "unknown"}


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
    (tmp_path / "paper").mkdir()
    entry = {"name": "v", "table": "t", "where": {"key": "a"}, "column": "x"} | change
    (tmp_path / "paper" / "values.yaml").write_text(yaml.safe_dump([entry]))
    with pytest.raises(InputError, match=f"value 1: .*{message}"):
        read_values(tmp_path)


def test_a_name_stands_once(tmp_path):
    (tmp_path / "paper").mkdir()
    line = "- {name: v, table: t, where: {key: a}, column: x}\n"
    (tmp_path / "paper" / "values.yaml").write_text(2 * line)
    with pytest.raises(InputError, match="stands twice, got 'v'"):
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


def test_the_sections_of_the_paper_quote_what_there_is(built_whole_root):
    values = read_values(PROJECT)
    frames = all_tables(read_records(built_whole_root, PROJECT))
    names = {entry.name for entry in values}
    quoted = set()
    for path in (PROJECT / "paper" / "sections").glob("*.tex"):
        assert list(misquotes(path, names)) == []
        quoted |= set(re.findall(r"\\val\{([^{}]*)\}", path.read_text()))
    assert quoted == names
    for entry in values:  # the made-up root has no activation probes, and a null that is unresolved at a layer
        if "activation" not in entry.name and entry.name not in ("null-layer-shuffled", "null-share-shuffled"):
            assert value_text(entry, frames) != "—", entry.name


def test_verify_of_a_project_holds_its_sections_to_their_cells(root):
    (root / "paper" / "templates").mkdir()
    for path in (PROJECT / "paper" / "templates").iterdir():
        (root / "paper" / "templates" / path.name).write_bytes(path.read_bytes())
    (root / "paper" / "published.yaml").write_bytes((PROJECT / "paper" / "published.yaml").read_bytes())
    (root / "paper" / "main.tex").write_text("")
    (root / "paper" / "claims.yaml").write_text("[]")
    (root / "paper" / "values.yaml").write_text(
        '- {name: good, table: findings, where: {finding: "common k"}, column: value, format: whole}\n'
        "- {name: bad, table: findings, where: {finding: none}, column: value}\n"
    )
    (root / "paper" / "sections").mkdir()
    (root / "paper" / "sections" / "s.tex").write_text(r"\val{good}, \val{other}, 7")
    frames = all_tables(read_records(root, root))
    (root / "paper/tables/values.tex").write_text(values_tex(read_values(root), frames))
    manifest.write_table_manifest(root)
    found = {check.name: check for check in verify(root, root) if check.status == "FAIL"}
    assert set(found) == {"value bad", "section paper/sections/s.tex"} and "0 rows" in found["value bad"].detail
    ok = {check.name: check.detail for check in verify(root, root) if check.name == "value good"}
    assert ok == {"value good": "64"}
