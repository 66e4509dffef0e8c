"""What the stages really write is read, tabled and verified: official root, alternatives, both nulls, a copy."""

import json
import shutil
from pathlib import Path

import pytest

from sparse_control.project import project_folder
from sparse_control.provenance import provenance_lines
from sparse_control.records import manifest
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import models_of, read_records
from sparse_control.stages import a_reference, alternatives, b_validate, c_freeze, d_official
from sparse_control.tables.parts import all_tables
from sparse_control.tables.registry import TABLES
from sparse_control.verify import verify
from tests.support.measured_root import reproduce

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
        measure(root, small_corpus, small_settings.as_null(name), a_reference, b_validate, c_freeze, d_official)
    reproduce(root)
    return root


def test_a_measured_root_passes(measured):
    checks = verify(measured, project_folder())
    assert [str(check) for check in checks if check.status in ("FAIL", "warn")] == []
    names = {check.name for check in checks}
    (model,) = models_of(measured)
    for study in (model, *(f"{model}/nulls/{name}" for name in NULLS)):
        assert f"{study}/jacobian_iss: decisions follow the rules" in names and len(names) > 150
        assert f"{study}/jacobian_iss: scores follow from their parts" in names
    assert sum(name.startswith(f"factors {model}/jacobian_iss/low_rank_factors/") for name in names) >= 2
    assert not any(check.name.startswith("binaries") for check in checks)  # every binary is listed and hashed


def test_every_table_of_iss_has_rows(measured):
    frames = all_tables(read_records(measured, project_folder()))
    empty = [name for name, table in TABLES.items() if table.group == "iss" and not len(frames[name])]
    assert empty == ["rank_transfer"]  # one model has nothing to be compared with
    for name in NULLS:
        assert len(frames[f"nulls/{name}/official_iss"]) == 4


def test_every_file_says_where_it_comes_from(measured):
    names = [*manifest.measured_files(measured), *manifest.binary_files(measured)]
    names += [f"paper/{name}" for name in manifest.rendered_files(measured / "paper")]
    names += [path.relative_to(measured).as_posix() for path in (measured / "code").glob("*.json")]
    assert len(names) > 100
    for name in names:
        assert len(provenance_lines(Path(name), measured)) > 2, name
    text = "\n".join(provenance_lines(Path("paper/tables/official_iss.csv"), measured))
    assert "as it is here" in text and "CHANGED" not in text and "weights sha256: " in text


@pytest.fixture
def study(measured, tmp_path):
    """Paths of the official study in a copy of the measured root."""
    root = Path(shutil.copytree(measured, tmp_path / "root"))
    return ModelPaths(root, models_of(root)[0])


def failures(study):
    return {check.name: check.detail for check in verify(study.root, project_folder()) if check.status == "FAIL"}


def test_other_thresholds_than_the_frozen_ones_are_noticed(study):
    path = study.iss_file("actions")
    path.write_text(
        path.read_text().replace('"passed": true', '"passed": false').replace('"chosen": true', '"chosen": false')
    )
    found = failures(study)
    folder = study.base.relative_to(study.root).as_posix()
    assert any(name.startswith(f"rule {folder}/validation/per_model") for name in found)
    assert any(name.startswith(f"rule {folder}/freeze_manifest.json") for name in found)


def test_metadata_of_another_rank_is_noticed(study):
    path = next(study.all_factors.rglob("metadata.json"))
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"rank": content["rank"] + 1}))
    found, name = failures(study), path.relative_to(study.root).as_posix()
    factors = f"factors {Path(name).parent.as_posix()}"
    assert set(found) == {f"manifest {name}", f"frozen {name}", factors}
    assert f"rank: {content['rank'] + 1}, expected {content['rank']}" in found[factors]
