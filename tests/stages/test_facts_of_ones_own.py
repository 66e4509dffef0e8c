"""Stages A to D on a reader's own facts: their hash is in everything, their text in nothing, and others are refused."""

import shutil

import pytest

from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines
from sparse_control.project import project_folder
from sparse_control.records.manifest import measured_files, read_manifest, write_manifest
from sparse_control.records.paths import replaced_folder
from sparse_control.stages import a_reference, b_validate, c_freeze, d_official, inputs
from sparse_control.stages.other_facts import set_aside_other_facts
from sparse_control.stages.queries import benchmark_queries, check_queries, entities_outside_corpus, with_facts
from sparse_control.verify import verify
from tests.support.facts import write_pararel
from tests.support.measured_root import reproduce

STAGES = (a_reference, b_validate, c_freeze, d_official)


@pytest.fixture(scope="module")
def pararel(tmp_path_factory):
    return write_pararel(tmp_path_factory.mktemp("facts") / "pararel", facts=8)


@pytest.fixture(scope="module")
def settings(small_settings, pararel):
    return with_facts(small_settings, pararel)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, settings, small_corpus):
    root = tmp_path_factory.mktemp("own")
    for stage in STAGES:
        write_manifest(root, dict(stage.run(corpus=small_corpus, root=root, settings=settings).files))
    return root


def test_their_hash_is_in_every_record_and_their_prompts_in_none(measured, settings, paths_of):
    paths, sha256 = paths_of(measured), settings.facts.sha256
    assert read_json(paths.reference_metadata)["key"]["facts"] == sha256
    freeze, summary = read_json(paths.manifest), read_json(paths.iss_file("summary"))
    said = {"file": "pararel", "prompts": None, "kind": "pararel", "sha256": sha256}
    for facts in (freeze["settings"]["facts"], summary["provenance"]["facts"]):
        assert facts == said | {
            "left_out": {"facts beyond iss.facts_per_relation": 4 * 4, "relations beyond iss.benchmark_relations": 2}
        }
    assert {read_json(path)["facts"] for path in paths.all_factors.rglob("metadata.json")} == {sha256}
    relations = {row["relation"] for row in read_json_lines(paths.iss_file("facts"))}
    assert relations == {"P1", "P2"} and summary["ISS"]["n_facts"] == 2 * 4
    text = "".join((measured / name).read_text() for name in measured_files(measured))
    assert "verb1a" not in text and "Object1x" not in text and str(settings.facts.path) not in text


def test_tables_and_verify_work_over_such_a_root(measured, tmp_path):
    root = shutil.copytree(measured, tmp_path / "root")
    reproduce(root)
    failed = [str(check) for check in verify(root, project_folder()) if check.status == "FAIL"]
    assert not failed


def test_what_is_kept_of_other_facts_is_refused(measured, settings, small_settings, small_corpus, tmp_path, pararel):
    root = shutil.copytree(measured, tmp_path / "root")
    with pytest.raises(InputError, match="references were made with .*, now None; run stage A again"):
        b_validate.run(corpus=small_corpus, root=root, settings=small_settings)
    with pytest.raises(InputError, match="settings.facts: was frozen with other settings"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    other = shutil.copytree(pararel, tmp_path / "pararel")
    path = other / "trex_lms_vocab" / "P1.jsonl"
    path.write_text(path.read_text().replace("Object1x0", "Else"))
    changed = with_facts(small_settings, other)
    assert changed.facts.sha256 != settings.facts.sha256
    with pytest.raises(InputError, match="settings.facts: was frozen with other settings"):
        d_official.run(corpus=small_corpus, root=root, settings=changed)
    before = inputs.open_inputs(small_corpus, root, settings).key
    after = inputs.open_inputs(small_corpus, root, changed).key
    assert {name for name in before if before[name] != after[name]} == {"facts", "settings"}


def test_official_iss_of_other_facts_stays_until_it_is_set_aside(
    measured, settings, small_settings, tmp_path, paths_of
):
    root = shutil.copytree(measured, tmp_path / "root")
    set_aside_other_facts(root, settings, replace=False)
    with pytest.raises(
        InputError, match="was measured with pararel, .* the project's own facts; it is kept.*--replace"
    ):
        set_aside_other_facts(root, small_settings, replace=False)
    kept = paths_of(root).manifest.read_bytes()
    set_aside_other_facts(root, small_settings, replace=True)
    (aside,) = replaced_folder(root).glob("*/jacobian_iss.1/freeze_manifest.json")
    assert aside.read_bytes() == kept and not paths_of(root).base.exists()
    assert not read_manifest(root).measurements and not measured_files(root)


def test_facts_that_change_while_they_are_measured_are_refused(tmp_path, small_settings):
    settings = with_facts(small_settings, write_pararel(tmp_path, facts=8))
    assert "subject1x3" in entities_outside_corpus(settings)
    path = tmp_path / "trex_lms_vocab" / "P1.jsonl"
    path.write_text(path.read_text().replace("Object1x0", "Else"))
    elsewhere = with_facts(small_settings, tmp_path).facts  # another process, which has read nothing yet
    stale = settings.facts.model_copy(update={"prompts_path": None})
    assert elsewhere.sha256 != stale.sha256
    from sparse_control.stages import queries

    queries._read_once.cache_clear()
    with pytest.raises(InputError, match="its facts changed while they were measured"):
        benchmark_queries(settings)


def test_too_few_calibration_prompts_are_one_line(tmp_path, small_settings):
    few = with_facts(small_settings, write_pararel(tmp_path, relations=3, facts=4, lemmas=2))
    with pytest.raises(
        InputError, match=r"validation.activations: 16 asked for, there are 8 calibration prompts.*add f"
    ):
        check_queries(few)
