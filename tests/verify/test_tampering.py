"""Numbers that contradict each other are never believed, whatever hashes are renewed: all of docs/reliability.md."""

import re
import shutil
from pathlib import Path

import pytest

from sparse_control.records.paths import NULL_NAMES, ModelPaths
from sparse_control.verify import verify
from tests.support.measured_root import MEDIUM, MODEL
from tests.verify.tampering import OF_A_STUDY, OF_RECORDS, table

PROJECT = Path(__file__).parent.parent.parent
DOCS = PROJECT / "docs" / "reliability.md"


def report(root, project=PROJECT):
    return [check for check in verify(root, project) if check.status in ("FAIL", "warn")]


def caught(tampering, study):
    """The lines that say so; none is about a hash that was not renewed."""
    tampering.change(study)
    tampering.hide(study.root)
    found = report(study.root)
    assert not [check for check in found if check.name.startswith("manifest ") and "paper/" not in check.name]
    return [str(check) for check in found if tampering.says in check.detail]


@pytest.mark.parametrize("tampering", OF_A_STUDY, ids=lambda one: one.what)
def test_numbers_of_iss(whole_root, tampering):
    assert caught(tampering, ModelPaths(whole_root, MODEL))


@pytest.mark.slow
@pytest.mark.parametrize("paths", [(MODEL, NULL_NAMES[0]), (MODEL, NULL_NAMES[1]), (MEDIUM, "none")], ids=str)
def test_numbers_of_iss_in_every_study(built_whole_root, tmp_path, paths):
    model, null = paths
    for index, tampering in enumerate(OF_A_STUDY):
        root = Path(shutil.copytree(built_whole_root, tmp_path / str(index)))
        study = ModelPaths(root, model, null)
        lines = caught(tampering, study)
        averaged = "sketch seeds" in tampering.what and "5/seed_1" not in str(list(study.base.rglob("seed_*")))
        assert lines or averaged, tampering.what
        assert averaged or any(study.base.relative_to(root).as_posix() in line for line in lines), lines


@pytest.mark.parametrize("tampering", OF_RECORDS, ids=lambda one: one.what)
def test_numbers_of_six_axis_records(root, tampering):
    (line,) = caught(tampering, ModelPaths(root, MODEL))
    assert line.startswith("FAIL") or "is missing" in line


def test_figures_of_the_source_document(root, tmp_path):
    (tmp_path / "paper").mkdir()
    shutil.copytree(PROJECT / "paper" / "templates", tmp_path / "paper" / "templates")
    text = (PROJECT / "paper" / "published.yaml").read_text()
    (tmp_path / "paper" / "published.yaml").write_text(text)
    name = "paper/published.yaml"
    assert not [check for check in report(root, tmp_path) if check.name == name]
    (tmp_path / "paper" / "published.yaml").write_text(text.replace('"0.294"', '"0.394"', 1))
    (check,) = [check for check in report(root, tmp_path) if check.name == name]
    assert check.status == "FAIL" and check.detail.startswith("a figure or a word of it changed")


def test_a_whole_root_is_believed(built_whole_root):
    assert {check.status for check in report(built_whole_root)} <= {"warn"}
    assert all("code" in check.name for check in report(built_whole_root))


def test_the_table_of_the_docs_is_this_one():
    assert table() in DOCS.read_text()
    assert not re.search(r"issue|session", DOCS.read_text())
