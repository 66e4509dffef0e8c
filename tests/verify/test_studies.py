"""Every model of a root and each of its nulls: read, rendered and verified alike; and which code measured them."""

import json
import re
from pathlib import Path

import pytest

from sparse_control.code_hash import closure_hashes, code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.records.code import changed_files, read_closure
from sparse_control.records.jacobian_iss.freeze import content_sha256
from sparse_control.records.paths import NULL_NAMES, STAGES, STUDY
from sparse_control.verify import verify
from tests.support.measured_root import MEDIUM, MODEL, bless, rehash, reproduce

PROJECT = Path(__file__).parent.parent.parent
NULL = f"{MODEL}/nulls/redrawn_weights/jacobian_iss"
STUDIES = (
    f"{MODEL}/jacobian_iss",
    *(f"{MODEL}/nulls/{name}/jacobian_iss" for name in NULL_NAMES),
    f"{MEDIUM}/jacobian_iss",
)
SUMMARY, FREEZE, RAW = "iss_model_summary.json", "freeze_manifest.json", "raw_iss_ablation.json"


def lines(root, *statuses):
    return [f"{check.name}: {check.detail}" for check in verify(root, PROJECT) if check.status in statuses]


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def expect(root, *patterns):
    found = lines(root, "FAIL")
    assert len(found) == len(patterns), found
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in found), (pattern, found)


def test_every_study_is_checked(built_whole_root):
    expect(built_whole_root)
    names = {check.name for check in verify(built_whole_root, PROJECT)}
    for study in STUDIES:
        assert {f"manifest {study}/{FREEZE}", f"records {study}/{FREEZE}", f"files of {study}/{FREEZE}"} <= names
        assert {
            f"config {study}/configs/layer_windows.yaml",
            f"factors {study}/low_rank_factors/{study.split('/')[0]}/2",
        }
        assert {f"stored mean and intervals of {metric} of {study}" for metric in ("ISS", "Raw-ISS")} <= names
        for title in ("files agree", "scores follow from their parts", "validation follows from its parts"):
            assert f"{study}: {title}" in names
        assert f"{study}: decisions follow the rules" in names and f"null of {study}" in names
    for name in NULL_NAMES:
        assert f"recomputed paper/tables/nulls/{name}/official_iss.csv" in names
        assert f"rendered paper/tables/nulls/{name}/index.html" in names


@pytest.mark.parametrize("study", STUDIES)
def test_a_changed_byte_is_named_with_its_study(whole_root, study):
    path = whole_root / study / "validation/whitening.json"
    path.write_text(path.read_text() + " ")
    changed = f"{study}/validation/whitening.json: .*changed"
    expect(whole_root, f"manifest {changed}", f"frozen {changed}")


@pytest.mark.parametrize("study", STUDIES)
def test_a_changed_number_breaks_agreement_and_tables(whole_root, study):
    edit(whole_root / study / SUMMARY, lambda content: content["per_layer"][0].update(iss=0.5))
    rehash(whole_root)
    found = lines(whole_root, "FAIL")
    assert any(re.search(rf"agreement {study}/{SUMMARY}: per_layer: layer 2: iss: 0.5", line) for line in found)
    assert any(line.startswith("recomputed paper/tables/") for line in found)


def test_a_broken_record_is_named_and_other_models_are_checked(whole_root):
    edit(whole_root / NULL / SUMMARY, lambda content: content.update(window=[]))
    expect(whole_root, f"manifest {NULL}/{SUMMARY}", f"records {NULL}/{SUMMARY}: .*window must be")
    names = {check.name for check in verify(whole_root, PROJECT)}
    assert f"{MEDIUM}/jacobian_iss: files agree" in names and f"{MODEL}/jacobian_iss: files agree" not in names


def test_a_missing_record_skips_what_is_made_of_it(whole_root):
    (whole_root / NULL / SUMMARY).unlink()
    expect(whole_root, f"manifest {NULL}/{SUMMARY}: .*is missing")
    (skipped,) = [line for line in lines(whole_root, "skip") if line.startswith("tables: ")]
    names = skipped.removeprefix("tables: ").split(" not recomputed")[0].split(", ")
    assert {"nulls", "nulls/redrawn_weights/official_iss"} <= set(names)
    assert not {"official_iss", "nulls/shuffled_tokens/official_iss", "reachability"} & set(names)
    assert skipped.endswith(f"missing: {NULL}/{SUMMARY}")
    assert f"{NULL}: files agree" not in {check.name for check in verify(whole_root, PROJECT)}


@pytest.mark.parametrize(
    "study, change, message",
    [
        (NULL, lambda c: c.update(null="shuffled_tokens"), "null: shuffled_tokens, expected redrawn_weights"),
        (NULL, lambda c: c["provenance"]["model"].pop("redrawn_weights"), "redrawn_weights does not go with null redr"),
        (NULL, lambda c: c["provenance"]["model"].update(weights_sha256="b" * 64), "was made of weights b"),
        (STUDIES[-1], lambda c: c["provenance"]["model"].update(redrawn_weights=1), "does not go with null none"),
        (STUDIES[0], lambda c: c.update(null="shuffled_tokens"), "null: shuffled_tokens, expected none"),
    ],
)
def test_a_null_is_that_of_its_folder(whole_root, study, change, message):
    edit(whole_root / study / SUMMARY, change)
    bless(whole_root)
    assert any(line.startswith(f"null of {study}") and message in line for line in lines(whole_root, "FAIL"))


def test_tables_of_removed_measurements_are_named_and_removed_by_reproduce(whole_root):
    for path in sorted((whole_root / MODEL / "nulls").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (whole_root / "MANIFEST.json").unlink()
    bless(whole_root)
    lost = "paper/tables/nulls/redrawn_weights/official_iss.csv: no measurements make it"
    assert any(lost in line for line in lines(whole_root, "FAIL"))
    own = whole_root / "paper/tables/nulls/redrawn_weights/notes.tex"
    own.write_text("kept: no manifest lists it")
    reproduce(whole_root)
    assert [path.name for path in own.parent.iterdir()] == ["notes.tex"]


# --- code -----------------------------------------------------------------------------------------------------------


def rehash_unread(root):
    """With a freeze manifest that no reader takes until its hash is renewed."""
    path = root / STUDIES[0] / FREEZE
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"content_sha256": content_sha256(content)}))
    bless(root)


def code_of(root, sha256):
    for name in (FREEZE, SUMMARY, RAW):
        path = root / STUDIES[0] / name
        path.write_text(path.read_text().replace("c" * 64, sha256))
    rehash_unread(root)


def test_code_that_is_here_is_no_word_worth(root):
    save_closure(root, *STAGES.values())
    code_of(root, code_sha256(*STAGES.values()))
    assert not [line for line in lines(root, "warn") if "jacobian_iss code" in line]


def test_changed_modules_are_named(root):
    path = save_closure(root, *STAGES.values())
    content = json.loads(path.read_text())
    content["files"]["sparse_control/iss/score.py"] = "0" * 64
    content["files"]["sparse_control/stages/old.py"] = "0" * 64
    del content["files"]["sparse_control/errors.py"]
    sha256 = write_closure(root, content)
    code_of(root, sha256)
    (check,) = [check for check in verify(root, PROJECT) if check.name.endswith("jacobian_iss code")]
    assert check.status == "warn" and check.detail.endswith(": 1 files changed, 1 files new, 1 files gone")
    assert check.more == (
        "changed: sparse_control/iss/score.py",
        "new: sparse_control/errors.py",
        "gone: sparse_control/stages/old.py",
    )


def write_closure(root, content):
    from sparse_control.files import sha256_json, write_json

    sha256 = sha256_json(content["files"])
    write_json(root / "code" / f"{sha256}.json", content)
    return sha256


def test_without_a_closure_the_warning_says_so(root):
    warnings = [line for line in lines(root, "warn") if "code" in line]
    assert len(warnings) == 2 and all("which modules changed is not known" in line for line in warnings)


def test_a_closure_must_be_what_its_name_says(root):
    path = save_closure(root, STUDY)
    content = json.loads(path.read_text())
    content["files"]["sparse_control/errors.py"] = "0" * 64
    path.rename(path.with_name(f"{'c' * 64}.json")).write_text(json.dumps(content))
    assert any("another than its name says" in line for line in lines(root, "FAIL"))


@pytest.mark.parametrize("modules", [[], ["/etc/passwd"], ["sparse_control.../etc"], ["a b"], "sparse_control.files"])
def test_a_closure_names_modules(tmp_path, modules):
    from sparse_control.files import sha256_json, write_json

    name = sha256_json({})
    write_json(tmp_path / "code" / f"{name}.json", {"modules": modules, "files": {}})
    with pytest.raises(InputError, match="modules"):
        read_closure(tmp_path, name)


def test_a_module_that_is_gone_leaves_all_its_files_gone(tmp_path):
    files = closure_hashes("sparse_control.files")
    sha256 = write_closure(tmp_path, {"modules": ["sparse_control.no_such_module"], "files": files})
    assert changed_files(read_closure(tmp_path, sha256))["gone"] == sorted(files)


def test_accepted_code_is_said_with_its_reason(root):
    for name in (SUMMARY, RAW):
        edit(
            root / STUDIES[0] / name,
            lambda c: c["provenance"].update(code_sha256="e" * 64, accepted_code="only a comment"),
        )
    bless(root)
    expect(root)
    assert any(line.endswith("because: only a comment") for line in lines(root, "warn"))
