"""The curves that `dvc plots` draws: of one model, of several, and the same on every machine."""

import csv
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.figures.curves import curve_files, curve_text, dose_curves, write_curves
from sparse_control.records.paths import ModelPaths, folder_name
from sparse_control.records.read import read_records
from tests.support.measured_iss import iss_files
from tests.support.measured_root import MODEL, write_iss

PROJECT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def toy(built_root):
    (model,) = read_records(built_root, PROJECT).models
    return model


def test_a_row_for_every_point():
    curves = {"a": {32: 0.5, 64: 0.25}, "b": {64: 1.0}}
    assert curve_text("k", curves) == "k,a,b\n32,0.5,\n64,0.25,1.0\n"


def test_progress_is_the_rational_number_rounded(toy):
    """Whatever the order of the sums on a machine: every share is within a few roundings of the exact one."""
    for name, curve in dose_curves(toy.six_axis, "ioi").items():
        seeds = [
            record for record in toy.six_axis if (record.task, f"{record.selector} {record.condition}") == ("ioi", name)
        ]
        for dose, value in curve.items():
            exact = []
            for record in seeds:
                e = record.evaluate
                source, target, patched = (
                    list(map(Fraction, values)) for values in (e.source, e.target, e.at_dose(dose))
                )
                gap = [t - s for s, t in zip(source, target, strict=True)]
                moved = sum((y - s) * g for s, y, g in zip(source, patched, gap, strict=True))
                exact.append(moved / sum(g * g for g in gap))
            assert len(seeds) == 3 and math.isclose(value, sum(exact) / 3, rel_tol=1e-14, abs_tol=1e-16)


def test_a_seed_without_a_gap_has_no_progress(toy):
    first, *others = [record for record in toy.six_axis if record.selector == "random_support"]
    flat = first.evaluate.model_copy(update={"target": first.evaluate.source})
    whole = dose_curves(others, "ioi")
    assert dose_curves([first.model_copy(update={"evaluate": flat}), *others], "ioi") == whole


def test_every_model_has_files_and_the_first_the_plain_names(toy):
    alone = curve_files([toy])
    assert set(alone) == {"rank.csv", "dose_ioi.csv", "dose_sentiment.csv"}
    axes, iss = (
        replace(toy, name="axes", iss=replace(toy.iss, summary=None)),
        replace(toy, name="owner/iss", six_axis=()),
    )
    files = curve_files([axes, toy, iss])
    assert set(files) == {*alone, f"dose_ioi.{MODEL}.csv", f"dose_sentiment.{MODEL}.csv", "rank.owner--iss.csv"}
    assert all(files[name] == text for name, text in alone.items())
    assert files["rank.owner--iss.csv"] == alone["rank.csv"] and folder_name(iss.name) == "owner--iss"


def test_curves_are_written_beside_the_tables(root):
    write_iss(ModelPaths(root, "zoo-model"), iss_files("zoo-model"))
    paths = write_curves(root)
    assert {path.parent for path in paths} == {root / "paper" / "curves"} and len(paths) == 4
    rows = list(csv.reader((root / "paper/curves/rank.zoo-model.csv").open()))
    assert rows[0][:3] == ["k", "layer 2", "layer 2 best"] and [row[0] for row in rows[1:]] == ["32", "64"]


def test_nothing_to_draw_is_said(tmp_path):
    files = iss_files("toy")
    write_iss(ModelPaths(tmp_path, "toy"), files)
    ModelPaths(tmp_path, "toy").iss_file("comparison").unlink()
    with pytest.raises(InputError, match="no measurements to draw curves of"):
        write_curves(tmp_path)
