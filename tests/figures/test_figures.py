"""Figures: the numbers behind them are those of the records, and what is drawn is drawn of them alone."""

import statistics
import subprocess
import sys

import pytest

from sparse_control.errors import InputError
from sparse_control.figures import FIGURES, image, save
from sparse_control.figures.six_axis import SELECTOR
from sparse_control.project import project_folder
from sparse_control.records.read import ModelRecords, Records, read_records


@pytest.fixture(scope="module")
def records(built_whole_root):
    return read_records(built_whole_root, project_folder())


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_of_its_frame_in_every_format_and_twice_alike(records, name):
    pytest.importorskip("matplotlib")
    figure = FIGURES[name]
    frame = figure.frame(records)
    assert list(frame.columns) == list(dict.fromkeys(("model", *figure.fields))) and len(frame)
    before = frame.copy()
    canvas = figure.canvas(frame)
    for suffix, start in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".png", b"\x89PNG")):
        assert image(canvas, suffix).startswith(start)
    assert image(figure.canvas(frame), ".svg") == image(figure.canvas(frame), ".svg")
    assert frame.equals(before)


def test_progress_at_dose_1_is_what_the_readouts_give(records):
    model = next(model for model in records.models if model.six_axis)
    record = next(record for record in model.six_axis if record.supported and record.selector == SELECTOR)
    read = record.evaluate
    gap = [t - s for s, t in zip(read.source, read.target)]
    moved = [y - s for s, y in zip(read.source, read.at_dose(1.0))]
    expected = sum(a * b for a, b in zip(moved, gap)) / sum(a * a for a in gap)
    key = {name: getattr(record, name) for name in ("task", "selector", "condition", "seed")}
    assert record.selector == SELECTOR
    (row,) = [
        row for row in FIGURES["dose"].rows(model) if row["dose"] == 1.0 and all(row[name] == key[name] for name in key)
    ]
    assert row["progress"] == pytest.approx(expected, rel=1e-12)
    (cost,) = [row for row in FIGURES["cost"].rows(model) if all(row[name] == key[name] for name in key)]
    assert cost["progress"] == pytest.approx(expected, rel=1e-12)
    assert cost["kl"] == pytest.approx(statistics.fmean(record.preservation.kl), rel=1e-12)


def test_supports_and_trajectories_are_counted_one_by_one(records):
    model = next(model for model in records.models if model.six_axis)
    supported = [record for record in model.six_axis if record.supported and record.selector == SELECTOR]
    rows = list(FIGURES["support"].rows(model))
    assert len(rows) == sum(len(record.support) for record in supported)
    first, name = rows[0], supported[0].support[0]
    head = "" if first["head"] is None else f".{first['head']}"
    assert name.startswith(f"L{first['layer']:02d}.{first['component']}{head}@")
    paths = [endpoint.trajectory for record in supported for endpoint in record.feedback.endpoints]
    assert len(list(FIGURES["feedback"].rows(model))) == sum(map(len, paths))


def test_several_models_are_panels_of_one_figure(records):
    pytest.importorskip("matplotlib")
    first = next(model for model in records.models if model.six_axis)
    twice = Records(models=(first, ModelRecords(name="another model", six_axis=first.six_axis)))
    titles = [axis.get_title() for axis in FIGURES["dose"].canvas(FIGURES["dose"].frame(twice)).axes]
    assert any("another model" in title for title in titles)


def test_nothing_to_draw_and_a_bad_ending_are_one_line(records, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="figure dose: the records hold nothing to draw; it reads six_axis"):
        FIGURES["dose"].canvas(FIGURES["dose"].frame(Records()))
    canvas = FIGURES["dose"].canvas(FIGURES["dose"].frame(records))
    with pytest.raises(InputError, match=".txt: figures are written as .pdf, .svg, .png"):
        save(canvas, tmp_path / "dose.txt")
    assert not list(tmp_path.iterdir())


def test_figures_are_drawn_without_torch():
    code = "import sys, sparse_control.figures; print([name for name in ('torch', 'prefect') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_numbers_behind_figures_of_iss_are_those_of_the_facts(records):
    model = next(model for model in records.models if model.nulls)
    for row in FIGURES["layers"].rows(model):
        iss = model.iss if row["study"] == "official" else model.nulls[row["study"]]
        values = [fact.iss for fact in iss.fact_layers if (fact.layer, fact.metric) == (row["layer"], row["metric"])]
        assert row["mean"] == pytest.approx(statistics.fmean(value for value in values if value is not None), rel=1e-12)
        assert row["bca_low"] <= row["mean"] <= row["bca_high"]
    facts = {(fact.fact, fact.layer, fact.metric): fact.iss for fact in model.iss.fact_layers}
    rows = list(FIGURES["facts"].rows(model))
    assert len({row["layer"] for row in rows}) == 2
    for row in rows:
        assert row["iss"] == facts[row["fact"], row["layer"], "ISS"]
        assert row["raw_iss"] == facts[row["fact"], row["layer"], "Raw-ISS"]
