"""A root is read by model, in the order of the registry; nothing is read or written through a link out of it."""

import json
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.records import manifest
from sparse_control.records.paths import ModelPaths, paper_folder
from sparse_control.records.read import models_of, read_records
from sparse_control.records.readme import readme
from tests.support.measured_iss import iss_files
from tests.support.measured_root import MEDIUM, MODEL, build_root, write_files, write_six_axis

PROJECT = Path(__file__).parent.parent.parent
NULL = f"{MODEL}/nulls/redrawn_weights/jacobian_iss/iss_model_summary.json"


@pytest.fixture
def root(tmp_path):
    return build_root(tmp_path / "root", whole=True, tables=False)


def test_every_model_with_its_nulls(root):
    medium, toy = read_records(root, PROJECT).models
    assert (medium.name, toy.name) == (MEDIUM, MODEL)
    assert {record.model for record in toy.six_axis} == {MODEL} and len(toy.six_axis) == 33 and medium.six_axis == ()
    assert list(toy.nulls) == ["shuffled_tokens", "redrawn_weights"] and medium.nulls == {}
    assert {name: null.freeze.settings.null for name, null in toy.nulls.items()} == {name: name for name in toy.nulls}
    assert medium.iss.freeze.layers["2"].k == 128


def test_models_of_the_registry_come_first_in_its_order(tmp_path):
    names = ["qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct", "a-model", "owner/name"]
    for name in names:
        write_files(ModelPaths(tmp_path, name).base, iss_files(name))
    (tmp_path / "code").mkdir()
    (tmp_path / "notes").mkdir()
    assert models_of(tmp_path) == [names[1], names[0], "a-model", "owner--name"]
    assert [model.name for model in read_records(tmp_path, PROJECT).models][-1] == "owner/name"


@pytest.mark.parametrize("part", ["six_axis", "jacobian_iss", "nulls/redrawn_weights/jacobian_iss"])
def test_any_part_makes_a_model(tmp_path, part):
    (tmp_path / "one" / part).mkdir(parents=True)
    assert models_of(tmp_path) == ["one"]


@pytest.mark.parametrize("content", [None, "x"])
def test_nothing_to_read(tmp_path, content):
    if content:
        (tmp_path / "file.json").write_text(content)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no measurements of any model|no such folder"):
            read_records(folder, PROJECT)


def test_the_committed_root_is_rendered_into_the_paper(tmp_path):
    assert paper_folder(tmp_path / "measurements", tmp_path) == tmp_path / "paper"
    assert paper_folder(tmp_path / "runs/one", tmp_path) == tmp_path / "runs/one/paper"
    (tmp_path / "link").symlink_to(tmp_path / "measurements")
    assert paper_folder(tmp_path / "link", tmp_path) == tmp_path / "paper"


# --- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        MODEL,
        f"{MODEL}/six_axis",
        f"{MODEL}/jacobian_iss",
        f"{MODEL}/jacobian_iss/validation",
        f"{MODEL}/nulls",
        f"{MODEL}/nulls/redrawn_weights",
    ],
)
def test_a_linked_folder_is_refused(root, tmp_path, name):
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    for action in (lambda: read_records(root, PROJECT), lambda: manifest.write_manifest(root, [NULL])):
        with pytest.raises(InputError, match=f"{name}: is a symbolic link to a folder") as caught:
            action()
        assert "\n" not in str(caught.value)


def test_a_link_within_the_root_is_no_way_round(root):
    (root / "other").mkdir()
    (root / "other" / "six_axis").symlink_to(root / MODEL / "six_axis")
    with pytest.raises(InputError, match="other/six_axis: is a symbolic link"):
        read_records(root, PROJECT)


def test_a_file_that_leads_out_is_refused(root, tmp_path):
    (root / NULL).rename(tmp_path / "summary.json")
    (root / NULL).symlink_to(tmp_path / "summary.json")
    with pytest.raises(InputError, match=f"{NULL}: leads out of .*; put the file itself there"):
        read_records(root, PROJECT)


def test_a_linked_root_is_a_root(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert len(read_records(tmp_path / "link", PROJECT).models) == 2


# --- manifests ------------------------------------------------------------------------------------------------------


def test_two_ledgers_with_one_writer_each(root, tmp_path):
    before = (root / "MANIFEST.json").read_bytes()
    assert set(json.loads(before)["measurements"]) == set(manifest.measured_files(root)) and NULL in str(before)
    paper = tmp_path / "paper"
    for name in ("tables/a.csv", "tables/TOY/b.tex", "figures/c.svg", "tables/notes.txt"):
        (paper / name).parent.mkdir(parents=True, exist_ok=True)
        (paper / name).write_text("x")
    assert manifest.rendered_files(paper) == ["tables/TOY/b.tex", "tables/a.csv", "figures/c.svg"]
    manifest.write_rendered_manifest(paper, ["tables/a.csv"])
    assert list(manifest.read_rendered_manifest(paper).files) == ["tables/a.csv"]
    assert (root / "MANIFEST.json").read_bytes() == before and manifest.changed_measurements(root) == []


def test_a_run_records_what_it_measured_alone(root):
    old = manifest.read_manifest(root).measurements
    write_six_axis(root, "another")
    one = "another/six_axis/ioi.driver_omp.P.jsonl"
    (root / NULL).write_text("{}")
    manifest.write_manifest(root, [one])
    new = manifest.read_manifest(root).measurements
    assert set(new) == {*old, one} and {name: new[name] for name in old} == old
    assert NULL in manifest.changed_measurements(root)


@pytest.mark.parametrize("name", ["code/a.json", "one/other/a.json", "one/nulls/a.json", "../one/six_axis/a.json"])
def test_a_manifest_names_measurements_alone(root, name):
    content = json.loads((root / "MANIFEST.json").read_text())
    content["measurements"][name] = "a" * 64
    (root / "MANIFEST.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="measurements"):
        manifest.read_manifest(root)


def test_a_root_tells_what_was_measured_on_which_model(root):
    text = (root / "README.md").read_text()
    listed = manifest.read_manifest(root)
    assert text == readme(listed.measurements, listed.binaries)
    rows = {
        line.split("|")[1].strip(): line for line in text[text.index(f"## {MODEL}") :].splitlines() if line[:1] == "|"
    }
    assert "tasks ioi, refusal, sentiment;" in rows["`six_axis/`"] and "| 11 | 0 |" in rows["`six_axis/`"]
    assert "official-iss --model toy-model" in rows["`jacobian_iss/`"]
    assert "nulls --model toy-model" in rows["`nulls/redrawn_weights/`"]
    write_six_axis(root, "another")
    manifest.write_manifest(root, ["another/six_axis/ioi.driver_omp.P.jsonl"])
    assert "## another\n" in (root / "README.md").read_text()


def test_the_committed_root_tells_what_it_holds():
    listed = manifest.read_manifest(PROJECT / "measurements")
    assert (PROJECT / "measurements" / "README.md").read_text() == readme(listed.measurements, listed.binaries)
