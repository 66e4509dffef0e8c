"""Rounding, escaping, CSV and files."""

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sparse_control.errors import InputError
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import Records, read_records
from sparse_control.records.readouts import score_file
from sparse_control.tables.columns import fixed, significant
from sparse_control.tables.parts import all_tables, parts
from sparse_control.tables.registry import TABLES
from sparse_control.tables.render import csv_text, render
from sparse_control.tables.score import score_rows
from sparse_control.tables.shown import shown
from sparse_control.tables.terminal import plain_text
from sparse_control.tables.typeset import escape_tex, typeset_html, typeset_tex
from tests.support.measured_root import MODEL, build_root, measurement, reproduce, write_lines

LATEX = "pdflatex -interaction=nonstopmode -halt-on-error"
PAPER = [f"{LATEX} supplement", f"{LATEX} main", "bibtex main", *[f"{LATEX} supplement", f"{LATEX} main"] * 2]
PROJECT = Path(__file__).parent.parent.parent
NASTY = r"a_b&c%$#{}~^\<script>"


def printed(name, records, frame=None):
    part = parts(records)[0]
    return shown(TABLES[name], TABLES[name].frame(records) if frame is None else frame, part)


@pytest.fixture(scope="module")
def records(built_root):
    return read_records(built_root, PROJECT)


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
    path = ModelPaths(root, MODEL).six_axis("ioi", "coverage_driver", "P")
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


def test_print_has_the_main_ranks_and_the_figures_we_have(records):
    row = TABLES["rank_curve"].frame(records).to_dict("records")[0]
    grid = [
        row | {"layer": layer, "k": k, "p": p, "q": q, "r": min(k + p, 576), "r_is_d": k + p >= 576}
        for layer in (6, 15) for p in (32, 64) for q in (0, 1, 2) for k in (32, 64, 128, 256, 512)
    ]  # fmt: skip
    table = printed("rank_curve", records, pd.DataFrame(grid, dtype=object))
    assert len(table.rows) == 2 * 11 and sum("576, exact" in cells for cells in table.rows) == 2
    figures = printed("published", records).rows
    assert 0 < len(figures) < len(TABLES["published"].frame(records)) and all(cells[-1] != "—" for cells in figures)
    assert any("(3/3)" in cells[-1] and cells[1] == "IOI" for cells in figures)


def test_an_unsupported_task_stands_once_in_print(tmp_path):
    root = build_root(tmp_path, tables=False)
    rows = [measurement("refusal", "driver_omp", "F", seed, supported=False) for seed in range(3)]
    write_lines(ModelPaths(root, MODEL).six_axis("refusal", "driver_omp", "F"), rows)
    records = read_records(root, PROJECT)
    assert sum(TABLES["reuse"].frame(records)["task"] == "refusal") == 2
    cells = [cells for cells in printed("reuse", records).rows if cells[0] == "Refusal"]
    assert [cells[:4] for cells in cells] == [("Refusal", "—", "—", "not supported by this model")]


def test_names_are_words_and_the_csv_keeps_identifiers(records):
    assert ("IOI", "Coverage-Driver", "P") in {cells[:3] for cells in printed("reuse", records).rows}
    assert "ioi,coverage_driver,P" in csv_text(TABLES["reuse"].frame(records))


def test_csv_is_unrounded_and_reads_back(records):
    for frame in all_tables(records).values():
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


def test_rendering_is_the_same_twice(records):
    assert render(records, PROJECT) == render(records, PROJECT)


def test_captions_say_what_they_must(built_whole_root):
    for part in parts(read_records(built_whole_root, PROJECT)):
        for table in part.tables:
            caption = shown(table, table.frame(part.records), part).caption
            assert "Model: " in caption and "none measured" not in caption and "Source document: " in caption, table
            assert "{" not in caption, table
            assert ("Null: " in caption) == bool(part.folder), table
            assert ("Seeds: 0, 1, 2." in caption) == (table.group in ("protocol", "published")), table


def test_captions_name_the_frozen_thresholds(records):
    assert "(≥ 0.99)" in printed("estimator_validation", records).caption
    assert "difference ≤ 0.01" in printed("corpus_convergence", records).caption
    assert "difference ≤ —" in printed("corpus_convergence", Records()).caption
    unfrozen = printed("estimator_validation", Records()).caption
    assert "Median cosine and median" in unfrozen and "≥" not in unfrozen
    (toy,) = records.models
    settings = toy.iss.freeze.settings
    other = settings.model_copy(update={"validation": settings.validation.model_copy(update={"median_cosine": 0.9})})
    iss = replace(toy.iss, freeze=toy.iss.freeze.model_copy(update={"settings": other}))
    two = Records(models=(toy, replace(toy, name="other", iss=iss)))
    assert "(≥ 0.99 or 0.9)" in printed("estimator_validation", two).caption


def test_published_column_is_marked(records):
    headings = printed("published", records).headings
    assert any("Source document" in heading and "another model" in heading for heading in headings)


def test_nothing_unescaped_reaches_latex_or_html(tmp_path):
    root = build_root(tmp_path, model=NASTY, whole=True)
    tables = root / "paper" / "tables"
    assert (tables / "nulls" / "redrawn_weights" / "official_iss.tex").is_file()
    for path in tables.rglob("*.tex"):
        text = path.read_text()
        assert "<script>" not in text and NASTY not in text, path
        without = re.sub(r"\\[&%$#_{}\\]|\\[a-zA-Z]+", "", text)
        assert "&c" not in without and "$" not in without and "#" not in without and "~" not in without, path
    pages = list(tables.rglob("index.html"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        assert "<script>" not in text and "&lt;script&gt;" in text, page
        assert not re.search(r"(src|href)=.(https?:)?//", text)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_paper_compiles_even_with_a_nasty_name(tmp_path):
    root = build_root(tmp_path / "root", model=NASTY, whole=True)
    for path in (PROJECT / "paper").iterdir():
        if path.suffix in (".tex", ".bib"):
            shutil.copy(path, root / "paper")
    for folder in ("sections", "results"):
        shutil.copytree(PROJECT / "paper" / folder, root / "paper" / folder)
    for log in compiled(root / "paper").values():
        assert "multiply defined" not in log


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_paper_and_its_supplement_are_the_same_bytes_twice_and_leave_nothing_open(tmp_path):
    folders = [tmp_path / name for name in ("once", "again")]
    for folder in folders:
        shutil.copytree(PROJECT / "paper", folder)
        for log in compiled(folder).values():
            assert "undefined" not in log and "multiply defined" not in log
            wide = [float(points) for points in re.findall(r"Overfull .hbox .([0-9.]+)pt", log)]
            assert max(wide, default=0) < 1
    for name in ("main.pdf", "supplement.pdf"):
        assert len({(folder / name).read_bytes() for folder in folders}) == 1


def compiled(folder):
    """Name -> log of the paper and its supplement, which refer to each other."""
    for step in PAPER:
        done = subprocess.run(step.split(), cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    return {name: (folder / f"{name}.log").read_text(errors="replace") for name in ("main", "supplement")}


def test_two_models_get_a_model_column(records):
    (toy,) = records.models
    two = Records(models=(replace(toy, name="two"), toy), published=records.published)
    for name in TABLES:
        alone, text = printed(name, records), printed(name, two)
        if name in ("rank_transfer", "nulls"):  # a row is of both; the root has no nulls
            continue
        assert text.headings == ("Model", *alone.headings) and f"Model: two, {MODEL}." in text.caption, name
        assert tuple(cells[1:] for cells in text.rows if cells[0] == MODEL) == alone.rows, name
        assert text.rows[0][0] == "two", name
    assert f"Model: two, {MODEL}." in printed("rank_transfer", two).caption


def test_latex_has_the_name_of_a_model_above_its_rows(records):
    (toy,) = records.models
    both = Records(models=(replace(toy, name="first_one"), replace(toy, name="second")), published=records.published)
    alone, text = (render(each, PROJECT)["per_relation.tex"] for each in (records, both))
    rows = alone[alone.index(r"\endlastfoot") :].splitlines()[1:-1]
    found = text[text.index(r"\endlastfoot") :].splitlines()[1:-1]
    first, second = (rf"\multicolumn{{5}}{{@{{}}l@{{}}}}{{\itshape {name}}} \\*" for name in (r"first\_one", "second"))
    assert found == [first, *rows, r"\addlinespace", second, *rows] and "Model" not in text.partition(r"\toprule")[2]


def test_terminal_text_is_aligned_and_free_of_control_characters(records):
    assert "not supported by this model" in plain_text(printed("reachability", records))
    empty = plain_text(printed("summary", Records()))
    assert "(no records)" in empty and "none measured" in empty


def test_reproduce_elsewhere_leaves_the_root_alone(root, tmp_path):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    paths = reproduce(root, tmp_path / "elsewhere")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    for folder, elsewhere in (
        (root / "paper/tables", tmp_path / "elsewhere"),
        (root / "paper/figures", tmp_path / "elsewhere/figures"),
    ):
        files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert {name: (elsewhere / name).read_bytes() for name in files} == files
    assert len(paths) == sum(path.is_file() and path.name != "MANIFEST.json" for path in (root / "paper").rglob("*"))


def test_reproduce_of_nothing_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no measurements|no such folder"):
            reproduce(folder)


def test_reproduce_without_templates_is_one_line(root, tmp_path, monkeypatch):
    monkeypatch.setattr("sparse_control.paper.project_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="templates"):
        reproduce(root)
