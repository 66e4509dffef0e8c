"""What the stages really write is read, tabled and verified: the official root, its alternatives, both nulls, a copy."""

import json
import shutil
from pathlib import Path

import pytest

from sparse_control.project import project_folder
from sparse_control.provenance import provenance_lines
from sparse_control.records import manifest
from sparse_control.records.read import read_records
from sparse_control.stages import a_reference, alternatives, b_validate, c_freeze, d_official
from sparse_control.tables import TABLES, all_tables
from sparse_control.tables.render import reproduce
from sparse_control.verify import verify

NULLS = ("shuffled_tokens", "redrawn_weights")


def measure(root, corpus, settings, *stages):
    for stage in stages:
        receipt = stage.run(corpus=corpus, root=root, settings=settings)
        manifest.write_manifest(root, [name for name, _ in receipt.files])


@pytest.fixture(scope="module")
def measured(tmp_path_factory, small_corpus, small_settings):
    root = tmp_path_factory.mktemp("measured")
    measure(root, small_corpus, small_settings, a_reference, b_validate, c_freeze, d_official, alternatives)
    for name in NULLS:
        null = small_settings.as_null(name)
        measure(root / "nulls" / name, small_corpus, null, a_reference, b_validate, c_freeze, d_official)
    measure(root / "experiment_b", small_corpus, small_settings, a_reference, b_validate)
    reproduce(root)
    return root


def test_a_measured_root_passes(measured):
    checks = verify(measured, project_folder())
    assert [str(check) for check in checks if check.status in ("FAIL", "warn")] == []
    names = {check.name for check in checks}
    assert "jacobian_iss decisions follow the rules" in names and len(names) > 150
    assert sum(name.startswith("metadata jacobian_iss/low_rank_factors/") for name in names) >= 2
    assert not any(check.name.startswith("binaries") for check in checks)  # every binary is listed and hashed


def test_every_table_of_iss_has_rows(measured):
    frames = all_tables(read_records(measured, project_folder()))
    assert [name for name, table in TABLES.items() if table.group == "iss" and not len(frames[name])] == []
    for name in NULLS:
        assert len(frames[f"nulls/{name}/official_iss"]) == 4


def test_every_file_says_where_it_comes_from(measured):
    for place in ("", *(f"{name}/" for name in manifest.SUB_ROOTS)):
        root = measured / place
        names = [*manifest.measured_files(root), *manifest.binary_files(root), *manifest.table_files(root)]
        names += [path.relative_to(root).as_posix() for path in (root / "code").glob("*.json")]
        assert names
        for name in names:
            lines = provenance_lines(Path(place + name), measured)
            assert len(lines) > 2, name
    text = "\n".join(provenance_lines(Path("paper/tables/official_iss.csv"), measured))
    assert "as it stands here" in text and "CHANGED" not in text and "weights sha256: " in text


def test_other_thresholds_than_the_frozen_ones_are_noticed(measured, tmp_path):
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    path = root / "jacobian_iss" / "validation" / "per_model_action_validation.jsonl"
    path.write_text(
        path.read_text().replace('"passed": true', '"passed": false').replace('"chosen": true', '"chosen": false')
    )
    found = [check.name for check in verify(root, project_folder()) if check.status == "FAIL"]
    assert any(name.startswith("rule jacobian_iss/validation/per_model") for name in found)
    assert any(name.startswith("rule jacobian_iss/freeze_manifest.json") for name in found)


def test_metadata_of_another_rank_is_noticed(measured, tmp_path):
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    path = next((root / "jacobian_iss" / "low_rank_factors").rglob("metadata.json"))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"rank": content["rank"] + 1}))
    name = path.relative_to(root).as_posix()
    failed = {check.name: check.detail for check in verify(root, project_folder()) if check.status == "FAIL"}
    assert set(failed) == {f"manifest {name}", f"frozen {name.removeprefix('jacobian_iss/')}", f"metadata {name}"}
    assert (
        f"rank: {content['rank'] + 1}, but the freeze and its attempt have {content['rank']}"
        in failed[f"metadata {name}"]
    )


@pytest.mark.parametrize(
    "section, field, value",
    [("", "dtype", "float64"), ("estimator", "probe", "rademacher"), ("corpus", "sequence_length", 8)],
)
def test_factors_of_other_settings_are_noticed(measured, tmp_path, section, field, value):
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    path = root / "jacobian_iss" / "freeze_manifest.json"
    content = json.loads(path.read_text())
    (content["settings"][section] if section else content["settings"])[field] = value
    path.write_text(json.dumps(content))
    failed = {check.name: check.detail for check in verify(root, project_folder()) if check.status == "FAIL"}
    named = [detail for name, detail in failed.items() if name.startswith("settings of jacobian_iss/low_rank_factors/")]
    assert named and all(detail.endswith("run experiment-c and experiment-d again") for detail in named)
    assert all(f"{field}: " in detail and f"has {value!r}" in detail for detail in named)


@pytest.mark.parametrize("field", ["weights_sha256", "tokenizer_sha256"])
def test_factors_of_other_weights_are_noticed(measured, tmp_path, field):
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    path = root / "jacobian_iss" / "iss_model_summary.json"
    content = json.loads(path.read_text())
    content["provenance"]["model"][field] = "0" * 64
    path.write_text(json.dumps(content))
    failed = {check.name: check.detail for check in verify(root, project_folder()) if check.status == "FAIL"}
    named = [detail for name, detail in failed.items() if name.startswith("settings of jacobian_iss/low_rank_factors/")]
    assert named and all(f"{field}: " in detail and "iss_model_summary.json has '0000" in detail for detail in named)


@pytest.mark.parametrize("end", ["Q.pt", "metadata.json", "configs/estimator_config.yaml"])
def test_a_freeze_that_leaves_files_out_is_noticed(measured, tmp_path, end):
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    path = root / "jacobian_iss" / "freeze_manifest.json"
    content = json.loads(path.read_text())
    name = next(name for name in content["files"] if name.endswith(end))
    del content["files"][name]
    path.write_text(json.dumps(content))
    manifest.write_manifest(root, ["jacobian_iss/freeze_manifest.json"])
    failed = {check.name: check.detail for check in verify(root, project_folder()) if check.status == "FAIL"}
    assert f"files: lacks {name}; run experiment-c" in failed["frozen jacobian_iss/freeze_manifest.json"]
