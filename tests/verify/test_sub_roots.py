"""Nulls and medium model below a root: read, rendered and verified with it."""

import json
import re
from pathlib import Path

import pytest

from sparse_control.code_hash import closure_hashes, code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.records import manifest
from sparse_control.records.code import changed_files, read_closure
from sparse_control.records.paths import STAGES
from sparse_control.tables.render import reproduce
from sparse_control.verify import verify
from sparse_control.verify.provenance import ISS_CODE, SIX_AXIS_CODE
from tests.support.measured_root import bless

PROJECT = Path(__file__).parent.parent.parent
NULL = "nulls/redrawn_weights"
SUMMARY = "jacobian_iss/iss_model_summary.json"
FREEZE = "jacobian_iss/freeze_manifest.json"


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


def test_a_whole_root_passes(whole_root):
    expect(whole_root)
    names = {check.name for check in verify(whole_root, PROJECT)}
    for place in manifest.SUB_ROOTS:
        assert f"manifest {place}/{FREEZE}" in names and f"records {place}/{FREEZE}" in names
        assert f"recomputed paper/tables/{place}/official_iss.csv" in names
        assert f"rendered paper/tables/{place}/index.html" in names
        assert f"stored mean and intervals of {place}/ISS" in names
        assert f"{place}/jacobian_iss decisions follow the rules" in names


def test_a_sub_root_is_a_root_of_its_own(whole_root):
    records = [check for check in verify(whole_root / NULL, PROJECT) if check.name.startswith("records ")]
    assert records and {check.status for check in records} == {"ok"}
    assert reproduce(whole_root / NULL)[0].is_file()


def test_a_changed_byte_is_named_with_its_place(whole_root):
    path = whole_root / NULL / "jacobian_iss/validation/whitening.json"
    path.write_text(path.read_text() + " ")
    expect(whole_root, rf"manifest {NULL}/jacobian_iss/validation/whitening.json: .*changed")


def test_a_changed_number_breaks_agreement_rules_and_tables(whole_root):
    edit(whole_root / NULL / SUMMARY, lambda content: content["per_layer"][0].update(iss=0.9))
    bless(whole_root / NULL)
    found = lines(whole_root, "FAIL")
    assert any(re.search(rf"agreement {NULL}/{SUMMARY}: per_layer: layer 2: iss: 0.9", line) for line in found)
    assert any("recomputed paper/tables/nulls.csv: " in line for line in found)


def test_a_broken_record_is_named(whole_root):
    edit(whole_root / NULL / SUMMARY, lambda content: content.update(window=[]))
    expect(whole_root, f"manifest {NULL}/{SUMMARY}", f"records {NULL}/{SUMMARY}: .*window must be")


def test_a_missing_record_skips_what_hangs_on_it(whole_root):
    (whole_root / NULL / SUMMARY).unlink()
    expect(whole_root, f"manifest {NULL}/{SUMMARY}: .*is missing")
    (skipped,) = [line for line in lines(whole_root, "skip") if line.startswith("tables: ")]
    assert "nulls, rank_transfer, findings" in skipped and f"{NULL}/per_relation" in skipped
    assert "nulls/shuffled_tokens" not in skipped and f"missing: {NULL}/{SUMMARY}" in skipped


def test_a_sub_root_without_a_manifest_is_not_taken_on_trust(whole_root):
    (whole_root / "experiment_b/MANIFEST.json").unlink()
    expect(whole_root, "^experiment_b/MANIFEST.json: .*is missing")


@pytest.mark.parametrize(
    "place, change, message",
    [
        (NULL, lambda c: c.update(null="shuffled_tokens"), "null: shuffled_tokens, expected redrawn_weights"),
        (NULL, lambda c: c["provenance"]["model"].pop("redrawn_weights"), "redrawn_weights does not go with null redr"),
        (NULL, lambda c: c["provenance"]["model"].update(weights_sha256="b" * 64), "was made of weights b"),
        ("experiment_b", lambda c: c["provenance"]["model"].update(redrawn_weights=1), "does not go with null none"),
        (".", lambda c: c.update(null="shuffled_tokens"), "null: shuffled_tokens, expected none"),
    ],
)
def test_a_null_is_that_of_its_folder(whole_root, place, change, message):
    edit(whole_root / place / SUMMARY, change)
    bless(whole_root / place)
    assert any(line.startswith("null ") and message in line for line in lines(whole_root, "FAIL"))


def test_tables_of_a_removed_sub_root_are_named_and_removed_by_reproduce(whole_root):
    for path in sorted((whole_root / "experiment_b").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    lost = "paper/tables/experiment_b/official_iss.csv: no measurements make it"
    assert any(lost in line for line in lines(whole_root, "FAIL"))
    own = whole_root / "paper/tables/experiment_b/notes.tex"
    own.write_text("kept: no manifest lists it")
    reproduce(whole_root)
    assert [path.name for path in own.parent.iterdir()] == ["notes.tex"]


# --- code -----------------------------------------------------------------------------------------------------------


def test_the_modules_are_those_of_the_stages():
    assert ISS_CODE == STAGES


def code_of(root, sha256):
    for name in (FREEZE, SUMMARY, "jacobian_iss/raw_iss_ablation.json"):
        text = (root / name).read_text().replace("c" * 64, sha256)
        (root / name).write_text(text)
    bless(root)


def test_code_that_stands_here_is_no_word_worth(root):
    save_closure(root, *ISS_CODE)
    code_of(root, code_sha256(*ISS_CODE))
    assert not [line for line in lines(root, "warn") if "ISS code" in line]


def test_changed_modules_are_named(root):
    path = save_closure(root, *ISS_CODE)
    content = json.loads(path.read_text())
    content["files"]["sparse_control/iss/score.py"] = "0" * 64
    content["files"]["sparse_control/stages/old.py"] = "0" * 64
    del content["files"]["sparse_control/errors.py"]
    sha256 = write_closure(root, content)
    code_of(root, sha256)
    (warning,) = [line for line in lines(root, "warn") if "ISS code" in line]
    assert "changed since: sparse_control/iss/score.py; new since: sparse_control/errors.py; gone since: " in warning
    assert warning.endswith("sparse_control/stages/old.py")


def write_closure(root, content):
    from sparse_control.files import sha256_json, write_json

    sha256 = sha256_json(content["files"])
    write_json(root / "code" / f"{sha256}.json", content)
    return sha256


def test_without_a_closure_the_warning_says_so(root):
    warnings = [line for line in lines(root, "warn") if "code" in line]
    assert len(warnings) == 2 and all("which modules changed is not known" in line for line in warnings)


def test_a_closure_must_be_what_its_name_says(root):
    path = save_closure(root, *SIX_AXIS_CODE)
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
    assert changed_files(read_closure(tmp_path, sha256))["gone since"] == sorted(files)


def test_accepted_code_is_said_with_its_reason(root):
    for name in (SUMMARY, "jacobian_iss/raw_iss_ablation.json"):
        edit(root / name, lambda c: c["provenance"].update(code_sha256="e" * 64, accepted_code="only a comment"))
    bless(root)
    expect(root)
    assert any(line.endswith("because: only a comment") for line in lines(root, "warn"))
