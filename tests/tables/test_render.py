"""Rounding, escaping, CSV and files."""

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from sparse_control.errors import InputError
from sparse_control.records.readouts import score_file
from sparse_control.tables import TABLES, Records, all_tables, read_records
from sparse_control.tables.layout import LAYOUTS, score_rows, shown
from sparse_control.tables.layout.columns import fixed, significant
from sparse_control.tables.render import (
    csv_text,
    escape_tex,
    plain_text,
    render,
    reproduce,
    typeset_html,
    typeset_tex,
)
from tests.support.measured_root import build_root, measurement, write_lines

PROJECT = Path(__file__).parent.parent.parent
NASTY = r"a_b&c%$#{}~^\<script>"


@pytest.mark.parametrize(
    "value, text",
    [
        (0.125, "0.13"),
        (2.675, "2.68"),
        (-0.004, "0.00"),
        (-1.5, "−1.50"),
        (1e22, "1.00e+22"),
        (None, "—"),
    ],
)
def test_fixed_rounds_half_away_from_zero(value, text):
    assert fixed(value, 2) == text


@pytest.mark.parametrize(
    "value, text",
    [(1e300, "1.000e+300"), (-1.5e25, "−1.500e+25"), (1e15, "1.000e+15"), (1e14, "100000000000000.000")],
)
def test_fixed_of_large_numbers(value, text):
    assert fixed(value, 3) == text
    assert significant(value)


def test_large_numbers_are_powers_of_ten():
    assert typeset_tex(fixed(1e300, 3)) == r"1.000\ensuremath{\cdot10^{300}}"
    assert typeset_html(fixed(1e300, 3)) == "1.000·10<sup>300</sup>"


def test_score_with_large_readouts(tmp_path):
    end = {"target": 1e300, "initial_margin": 0.0, "terminal_margin": 0.0}
    content = {"schema": "score/1", "tolerance": 0.3, "seeds": [{"seed": 0, "kl": [1e300], "feedback": [end]}]}
    (tmp_path / "score.json").write_text(json.dumps(content))
    rows = score_rows(score_file(tmp_path / "score.json")[1])
    assert {row[2] for row in rows} >= {"1.000e+300", "1.00e+300"}


def test_reproduce_with_large_readouts(root):
    path = root / "measurements/toy-model/ioi.coverage_driver.P.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["preservation"]["kl"][0] = 1e300
        row["feedback"]["endpoints"][0]["target"] = 1e300
    write_lines(path, rows)
    reproduce(root)
    assert "1e+300" in (root / "paper/tables/preservation.csv").read_text()


@pytest.mark.parametrize(
    "value, text",
    [(0.00017, "0.000170"), (0.0000999999, "1.00e−4"), (3.14159e-9, "3.14e−9"), (123.456, "123"), (12345.0, "12300"),
     (0.9999, "1.00"), (0.0, "0"), (-0.0021, "−0.00210"), (None, "—")],
)  # fmt: skip
def test_significant(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    "text, tex",
    [
        (NASTY, r"a\_b\&c\%\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}script\textgreater{}"),
        ("a--b---c", "a-{}-b-{}-{}-c"),
        ("[x]*", "{[}x{]}{*}"),
        ("line\nbreak\ttab\x00nul", "line break tab{}nul"),
        ("é≤—−", r"é\ensuremath{\le}---\ensuremath{-}"),
        ("模", "{[}U+6A21{]}"),
        (3, "3"),
    ],
)
def test_escape_tex(text, tex):
    assert escape_tex(text) == tex


def test_symbols_are_mathematics_and_the_rest_is_escaped():
    assert typeset_tex("E_vec & 3.00e−5") == r"\ensuremath{E_{\mathrm{vec}}} \& 3.00\ensuremath{\cdot10^{-5}}"
    assert typeset_tex("E_F, Rel_tar") == r"\ensuremath{E_{F}}, \ensuremath{\mathrm{Rel}_{\mathrm{tar}}}"
    assert typeset_html("C_vec <b> 1.20e−9") == "<i>C</i><sub>vec</sub> &lt;b&gt; 1.20·10<sup>−9</sup>"
    assert typeset_tex(NASTY) == escape_tex(NASTY) and typeset_tex("MORE_F") == r"MORE\_F"


def test_print_has_the_main_ranks_and_the_figures_we_have(built_root):
    records = read_records(built_root, PROJECT)
    frames = all_tables(records)
    row = frames["rank_curve"].to_dict("records")[0]
    grid = [
        row | {"layer": layer, "k": k, "p": p, "q": q, "r": min(k + p, 576), "r_is_d": k + p >= 576}
        for layer in (6, 15) for p in (32, 64) for q in (0, 1, 2) for k in (32, 64, 128, 256, 512)
    ]  # fmt: skip
    table = shown("rank_curve", pd.DataFrame(grid, dtype=object), records)
    assert len(table.rows) == 2 * 11 and sum("576, exact" in cells for cells in table.rows) == 2
    figures = shown("published", frames["published"], records).rows
    assert 0 < len(figures) < len(frames["published"]) and all(cells[-1] != "—" for cells in figures)
    assert any("(3/3)" in cells[-1] and cells[1] == "IOI" for cells in figures)


def test_an_unsupported_task_stands_once_in_print(tmp_path):
    root = build_root(tmp_path, tables=False)
    rows = [measurement("refusal", "driver_omp", "F", seed, supported=False) for seed in range(3)]
    write_lines(root / "measurements/toy-model/refusal.driver_omp.F.jsonl", rows)
    records = read_records(root, PROJECT)
    frame = all_tables(records)["reuse"]
    assert sum(frame["task"] == "refusal") == 2
    cells = [cells for cells in shown("reuse", frame, records).rows if cells[0] == "Refusal"]
    assert [cells[:4] for cells in cells] == [("Refusal", "—", "—", "not supported by this model")]


def test_names_are_words_and_the_csv_keeps_identifiers(built_root):
    records = read_records(built_root, PROJECT)
    frames = all_tables(records)
    assert ("IOI", "Coverage-Driver", "P") in {cells[:3] for cells in shown("reuse", frames["reuse"], records).rows}
    assert "ioi,coverage_driver,P" in csv_text(frames["reuse"])


def test_every_table_has_a_layout():
    assert set(LAYOUTS) == set(TABLES)


def test_csv_is_unrounded_and_reads_back(built_root):
    for frame in all_tables(read_records(built_root, PROJECT)).values():
        text = csv_text(frame)
        assert "\r" not in text and text.endswith("\n")
        rows = list(csv.reader(io.StringIO(text)))
        assert rows[0] == list(frame.columns)
        for cells, values in zip(rows[1:], frame.itertuples(index=False), strict=True):
            for cell, value in zip(cells, values, strict=True):
                assert (
                    (cell == "")
                    if value is None
                    else (float(cell) == value if isinstance(value, float) else cell == str(value))
                )


def test_rendering_is_the_same_twice(built_root):
    records = read_records(built_root, PROJECT)
    assert render(records, PROJECT) == render(records, PROJECT)


def test_captions_say_what_they_must(built_whole_root):
    records = read_records(built_whole_root, PROJECT)
    for name, frame in all_tables(records).items():
        caption = shown(name, frame, records).caption
        assert "Model: " in caption and "none measured" not in caption and "Source document: " in caption, name
        assert "{" not in caption, name
        if name.startswith("nulls/"):
            assert "Null: " in caption, name
        if LAYOUTS[name.rpartition("/")[2]].group == "protocol":
            assert "Seeds: 0, 1, 2." in caption


def test_captions_name_the_frozen_thresholds(built_root):
    records = read_records(built_root, PROJECT)
    frames = all_tables(records)
    assert "(≥ 0.99)" in shown("estimator_validation", frames["estimator_validation"], records).caption
    assert "difference ≤ 0.01" in shown("corpus_convergence", frames["corpus_convergence"], records).caption
    empty = shown("corpus_convergence", all_tables(Records())["corpus_convergence"], Records())
    assert "difference ≤ —" in empty.caption
    unfrozen = shown("estimator_validation", all_tables(Records())["estimator_validation"], Records())
    assert "Median cosine and median" in unfrozen.caption and "≥" not in unfrozen.caption


def test_published_column_is_marked(built_root):
    records = read_records(built_root, PROJECT)
    table = shown("published", all_tables(records)["published"], records)
    assert any("Source document" in heading and "another model" in heading for heading in table.headings)


def test_nothing_unescaped_reaches_latex_or_html(tmp_path):
    root = build_root(tmp_path, model=NASTY, subroots=True)
    tables = root / "paper" / "tables"
    assert (tables / "nulls" / "redrawn_weights" / "official_iss.tex").is_file()
    for path in tables.rglob("*.tex"):
        text = path.read_text()
        assert "<script>" not in text and NASTY not in text, path
        without = re.sub(r"\\[&%$#_{}\\]|\\[a-zA-Z]+", "", text)
        assert "&c" not in without and "$" not in without and "#" not in without and "~" not in without, path
    pages = list(tables.rglob("index.html"))
    assert len(pages) == 4
    for page in pages:
        text = page.read_text()
        assert "<script>" not in text and ("&lt;script&gt;" in text or "experiment_b" in page.parts), page
        assert not re.search(r"(src|href)=.(https?:)?//", text)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_paper_compiles_even_with_a_nasty_name(tmp_path):
    root = build_root(tmp_path / "root", model=NASTY, subroots=True)
    shutil.copy(PROJECT / "paper" / "main.tex", root / "paper")
    shutil.copytree(PROJECT / "paper" / "sections", root / "paper" / "sections")
    for _ in range(2):
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"],
            cwd=root / "paper",
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    log = (root / "paper" / "main.log").read_text(errors="replace")
    assert "multiply defined" not in log and "undefined references" not in log


def test_two_models_get_a_model_column(tmp_path):
    build_root(tmp_path, model="one")
    build_root(tmp_path, model="two")
    records = read_records(tmp_path, PROJECT)
    table = shown("reachability", all_tables(records)["reachability"], records)
    assert table.headings[0] == "Model" and "Model: one, two." in table.caption


def test_terminal_text_is_aligned_and_free_of_control_characters(built_root):
    records = read_records(built_root, PROJECT)
    text = plain_text(shown("reachability", all_tables(records)["reachability"], records))
    assert "not supported by this model" in text
    empty = plain_text(shown("summary", all_tables(Records())["summary"], Records()))
    assert "(no records)" in empty and "none measured" in empty


def test_reproduce_elsewhere_leaves_the_root_alone(root, tmp_path):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    paths = reproduce(root, tmp_path / "elsewhere")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert {path.name: path.read_bytes() for path in paths} == {
        path.name: path.read_bytes() for path in (root / "paper" / "tables").iterdir() if path.is_file()
    }


def test_reproduce_of_nothing_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no measurements|no such folder"):
            reproduce(folder)


def test_reproduce_without_templates_is_one_line(root, tmp_path, monkeypatch):
    monkeypatch.setattr("sparse_control.tables.render.project_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="templates"):
        reproduce(root)
