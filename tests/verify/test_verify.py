"""Each check can fail, and says where."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.records import manifest
from sparse_control.records.read import read_records
from sparse_control.tables import all_tables
from sparse_control.tables.render import reproduce, values_tex
from sparse_control.verify import verify
from sparse_control.verify.claims import Claim, check_claim, read_claims
from tests.support.measured_root import bless, measurement, write_lines

PROJECT = Path(__file__).parent.parent.parent
RECORDS = "measurements/toy-model/ioi.coverage_driver.P.jsonl"
CSV = "paper/tables/reachability.csv"


def failures(root, project=PROJECT):
    return [f"{check.name}: {check.detail}" for check in verify(root, project) if check.status == "FAIL"]


def only(root, *patterns, project=PROJECT):
    """The failures are exactly these, in any order."""
    found = failures(root, project)
    assert len(found) == len(patterns), found
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in found), (pattern, found)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_whole_root_passes(built_root):
    checks = verify(built_root, PROJECT)
    assert not failures(built_root)
    assert sum(check.status == "ok" for check in checks) > 80
    assert any(check.status == "skip" and check.name == "claims" for check in checks)


def test_one_flipped_measurement(root):
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    rows[1]["evaluate"]["patched"][6][0] += 1.0
    write_lines(root / RECORDS, rows)
    found = failures(root)
    assert any(re.search(rf"manifest {RECORDS}: {RECORDS} changed", line) for line in found)
    assert any(
        re.search(rf"{CSV}: row 1, column rel_tar_mean: saved '0\.\d+', recomputed '0\.\d+'", line) for line in found
    )


def test_reproduce_never_blesses_a_changed_measurement(root):
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    rows[0]["preservation"]["kl"][0] = 0.5
    write_lines(root / RECORDS, rows)
    reproduce(root)
    only(root, rf"manifest {RECORDS}: .* changed")


def test_deleted_measurement(root):
    (root / RECORDS).unlink()
    only(root, f"^manifest {RECORDS}: {RECORDS} is missing")
    skipped = [check.detail for check in verify(root, PROJECT) if check.status == "skip" and check.name == "tables"]
    assert len(skipped) == 1 and "reachability" in skipped[0] and skipped[0].endswith(RECORDS)
    assert "rank_curve" not in skipped[0]


def test_deleted_iss_record(root):
    name = "jacobian_iss/iss_per_fact.jsonl"
    (root / name).unlink()
    only(root, f"^manifest {name}: {name} is missing")


def test_unlisted_measurement(root):
    name = "measurements/other/ioi.coverage_driver.F.jsonl"
    write_lines(root / name, [measurement(condition="F", model="other")])
    assert any(line.startswith(f"manifest {name}: {name} is not listed") for line in failures(root))


@pytest.mark.parametrize("name", ["paper/tables/reuse.tex", "paper/tables/index.html", CSV])
def test_deleted_table(root, name):
    (root / name).unlink()
    only(root, f"manifest {name}: {name} is missing", rf"(rendered|recomputed) {name}: {name}: cannot be read")


def test_unlisted_table(root):
    (root / "paper/tables/extra.tex").write_text("x")
    only(root, "paper/tables/extra.tex is not listed")


def test_edited_cell_is_named(root):
    rows = (root / CSV).read_text().splitlines()
    cells = rows[2].split(",")
    cells[7] = "0.123"
    (root / CSV).write_text("\n".join([*rows[:2], ",".join(cells), *rows[3:]]) + "\n")
    only(root, f"manifest {CSV}", rf"{CSV}: row 2, column rel_tar_mean: saved '0\.123', recomputed '0\.9")


def test_a_cell_differing_by_rounding_is_no_other_value(root):
    rows = (root / CSV).read_text().splitlines()
    cells = rows[1].split(",")
    cells[7] = repr(float(cells[7]) * (1 + 1e-14))
    (root / CSV).write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    manifest.write_table_manifest(root)
    only(root)


def test_missing_row(root):
    rows = (root / CSV).read_text().splitlines()
    (root / CSV).write_text("\n".join(rows[:-1]) + "\n")
    only(root, f"manifest {CSV}", f"{CSV}: expected 11 rows")


@pytest.mark.parametrize("name", ["reachability.tex", "index.html"])
def test_edited_rendering_is_named_by_line(root, name):
    edit(root / "paper/tables" / name, "not supported", "supported")
    only(root, f"manifest paper/tables/{name}", rf"rendered paper/tables/{name}: paper/tables/{name}:\d+: saved")


def test_broken_json_line_is_a_failure_not_a_crash(root):
    with open(root / RECORDS, "a") as handle:
        handle.write('{"schema":\n')
    only(root, f"manifest {RECORDS}", rf"records {RECORDS}: {RECORDS}:4: not valid JSON")


def test_every_broken_file_is_named(root):
    edit(root / RECORDS, '"seed": 0', '"seed": -1')
    edit(root / "jacobian_iss/iss_model_summary.json", '"window"', '"windows"')
    only(
        root,
        "manifest measurements",
        "manifest jacobian_iss",
        f"{RECORDS}:1: seed: ",
        "iss_model_summary.json: window: ",
    )


@pytest.mark.parametrize(
    "content", ["{", '{"schema": "manifest/2"}', "[]", '{"schema": "manifest/1", "tables": {"a": "b"}}']
)
def test_broken_manifest(root, content):
    (root / "MANIFEST.json").write_text(content)
    only(root, "MANIFEST.json")


def test_readouts_out_of_range_are_a_failure_not_a_crash(root):
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    rows[0]["evaluate"] |= {"source": [-1e308] * 4, "target": [1e308] * 4, "wrong_way": None}
    write_lines(root / RECORDS, rows)
    bless(root)
    only(root, "tables: table [a-z_]+: ")


def test_missing_manifest(root):
    (root / "MANIFEST.json").unlink()
    only(root, "MANIFEST.json is missing")


def test_manifest_of_tables_and_of_measurements_have_two_writers(root):
    before = manifest.read_manifest(root)
    bless(root)
    reproduce(root)
    assert manifest.read_manifest(root) == before
    assert set(before.measurements) == set(manifest.measured_files(root))
    assert manifest.changed_measurements(root) == []


def test_a_run_blesses_only_what_it_measured(root):
    edit(root / RECORDS, '"gain": 0.2', '"gain": 0.3')
    manifest.write_manifest(root, ["jacobian_iss/iss_model_summary.json"])
    only(root, f"manifest {RECORDS}: .*changed")
    manifest.write_manifest(root, [RECORDS])
    only(root)


def test_factors_are_checked_where_they_are(root):
    path = root / "jacobian_iss/low_rank_factors/toy-model/2/Q.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"other")
    only(root, r"frozen low_rank_factors/toy-model/2/Q.pt: .*changed")


def test_stored_mean_must_be_the_facts(root):
    path = root / "jacobian_iss/iss_model_summary.json"
    content = json.loads(path.read_text())
    content["ISS"]["mean"] += 0.01
    path.write_text(json.dumps(content))
    bless(root)
    only(root, "stored mean and intervals of ISS: mean stored")


def test_stored_interval_must_be_the_bootstrap(root):
    path = root / "jacobian_iss/raw_iss_ablation.json"
    content = json.loads(path.read_text())
    content["bca"][1] += 0.01
    path.write_text(json.dumps(content))
    bless(root)
    reproduce(root)
    only(root, "stored mean and intervals of Raw-ISS: bca stored")


def test_weights_must_agree(root):
    edit(root / RECORDS, "a" * 64, "e" * 64)
    bless(root)
    only(root, "provenance toy-model weights: .* was measured on weights")


def test_weights_must_be_there(root):
    edit(root / RECORDS, '"weights_sha256": "' + "a" * 64 + '"', '"other": 1')
    bless(root)
    only(root, "weights_sha256 is missing")


@pytest.mark.parametrize("letter, field", [("b", "params_sha256"), ("c", "code_sha256")])
def test_settings_and_code_must_agree(root, letter, field):
    edit(root / RECORDS, letter * 64, "e" * 64)
    bless(root)
    only(root, f"settings and code: {field} differs between")


ISS = "jacobian_iss/"
SUMMARY, RAW, FREEZE = ISS + "iss_model_summary.json", ISS + "raw_iss_ablation.json", ISS + "freeze_manifest.json"


def change(path, *keys, to):
    """Set one value of a JSON file, or of the first row of a JSON-lines file."""
    lines = path.suffix == ".jsonl"
    content = [json.loads(line) for line in path.read_text().splitlines()] if lines else json.loads(path.read_text())
    target = content[0] if lines else content
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = to
    write_lines(path, content) if lines else path.write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, keys, value, patterns",
    [
        (RAW, ["model"], "other", [f"{RAW}: model: other, but freeze_manifest.json is of toy-model"]),
        (ISS + "validation/rank_convergence.jsonl", ["model"], "other", ["rank_convergence.jsonl: model: other"]),
        (
            FREEZE,
            ["lam_rel", "8", "raw"],
            0.07,
            [r"lam_rel\.8\.raw: 0.06, but", "layer 8: lam_rel_raw: 0.06, but", "whitening.json has 0.06"],
        ),
        (SUMMARY, ["per_layer", 0, "lam_rel_iss"], 0.051, ["layer 2: lam_rel_iss: 0.051, but"]),
        (SUMMARY, ["per_layer", 0, "iss"], 0.9, ["layer 2: iss: 0.9, but its rows give"]),
        (SUMMARY, ["per_layer", 2, "raw_iss"], None, ["layer 8: raw_iss: None, but"]),
        (SUMMARY, ["per_relation", 1, "iss"], 0.9, ["per_relation: language: iss: 0.9, but"]),
        (SUMMARY, ["per_relation", 1, "raw_iss"], 0.9, ["per_relation: language: raw_iss: 0.9, but"]),
        (SUMMARY, ["per_relation", 1, "n_facts"], 4, ["per_relation: language: n_facts: 4, but"]),
        (RAW, ["per_layer", 0, "raw_iss"], 0.9, [f"{RAW}: per_layer: layer 2: raw_iss: 0.9, but"]),
        (SUMMARY, ["provenance", "params_sha256"], "e" * 64, ["provenance.params_sha256: e+, but"]),
        (RAW, ["provenance", "corpus_sha256"], "e" * 64, [f"{RAW}: provenance.corpus_sha256: e+, but"]),
        (SUMMARY, ["provenance", "frozen_code_sha256"], "e" * 64, ["provenance.frozen_code_sha256: e+, but"]),
        (SUMMARY, ["provenance", "code_sha256"], "e" * 64, ["provenance.accepted_code: None, where code_sha256 is e"]),
        (SUMMARY, ["provenance", "accepted_code"], "comments", ["provenance.accepted_code: 'comments', where"]),
        (SUMMARY, ["per_layer", 0, "reporting"], "mean of seeds", ["layer 2: reporting: mean of seeds, but"]),
        (FREEZE, ["layers", "9"], {"status": "unresolved", "step": None}, [r"window: \[", "unresolved_layers"]),
        (ISS + "iss_per_fact.jsonl", ["n_layers"], 1, ["n_layers: 1, but there are rows of 2"]),
    ],
)
def test_iss_files_are_held_against_each_other(root, name, keys, value, patterns):
    change(root / name, *keys, to=value)
    bless(root)
    reproduce(root)
    found = [line for line in failures(root) if line.startswith("agreement")]
    assert len(found) == len(patterns), found
    assert all(any(re.search(pattern, line) for line in found) for pattern in patterns), found
    assert found == failures(root)


@pytest.mark.parametrize("name", [SUMMARY, RAW, RECORDS])
def test_provenance_of_a_model_is_a_mapping(root, name):
    change(root / name, "provenance", "model", to="toy")
    bless(root)
    only(root, r"provenance\.model: Input should be a valid dictionary")


@pytest.mark.parametrize(
    "half, key",
    [
        ("measurements", "/etc/passwd"),
        ("measurements", "measurements/../../x.json"),
        ("measurements", "paper/tables/a.tex"),
        ("measurements", "measurements/\u00e9.json"),
        ("measurements", "measurements/a\x1b[2Jb\n.json"),
        ("measurements", "measurements/" + "a" * 5000),
        ("measurements", "measurements/a\\..\\b.json"),
        ("tables", "measurements/a.jsonl"),
        ("tables", "paper/tables//a.tex"),
    ],
)
def test_paths_of_the_manifest_stay_below_the_root(root, half, key):
    change(root / "MANIFEST.json", half, key, to="a" * 64)
    found = failures(root)
    assert len(found) == 1 and half in found[0] and key[:6].strip() in found[0]
    assert found[0].isprintable()


@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a" * 5000, "a\x1b"])
def test_paths_of_the_freeze_manifest_stay_below_it(root, key):
    change(root / FREEZE, "files", key, to="a" * 64)
    bless(root)
    only(root, "freeze_manifest.json: files")


def test_no_line_carries_control_characters(root):
    path = root / "measurements" / "a\x1b[2J\nb" / "ioi.coverage_driver.P.jsonl"
    write_lines(path, [measurement(model="c\x1bd")])
    assert all(str(check).isprintable() for check in verify(root, PROJECT))


@pytest.mark.parametrize("text", ["x" * 200_000, "a\rb"])
def test_malformed_csv_is_a_failure(root, text):
    edit(root / CSV, "toy-model", text)
    only(root, f"manifest {CSV}", f"recomputed {CSV}: Error: ")


@pytest.mark.parametrize(
    "content",
    [
        "tables: {reuse: null}",
        "tables: {}",
        "[" * 5000,
        "a: 2020-13-45",
        "{document: d, model: m, selector: s, tables: {reuse: [null]}}",
        "{document: d, model: m, selector: s, tables: {reus: []}}",
        "{document: d, model: m, selector: s, tables: {reuse: [{task: t, condition: P, statistic: hits}]}}",
        "{document: d, model: m, selector: s, tables: {summary: [{task: t, condition: P, statistic: no}]}}",
    ],
)
def test_malformed_published_figures_are_a_failure(root, tmp_path, content):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "published.yaml").write_text(content)
    only(root, "^paper/published.yaml: ", project=tmp_path)


def test_binaries(root):
    def lines(status):
        return [f"{check.name}: {check.detail}" for check in verify(root, PROJECT) if check.status == status]

    assert any("low_rank_factors/toy-model/2/Q.pt" in line for line in lines("skip"))
    for name in ("low_rank_factors/toy-model/2/extra.pt", "full_reference/toy-model/2.safetensors"):
        (root / ISS / name).parent.mkdir(parents=True)
        (root / ISS / name).write_bytes(b"x")
    only(root, "low_rank_factors/toy-model/2/extra.pt is not listed")
    assert any(
        "1 files are not hashed in MANIFEST.json, and not checked: jacobian_iss/full_" in x for x in lines("skip")
    )


def test_binaries_a_run_recorded_are_hashed(root):
    name = "jacobian_iss/full_reference/toy-model/2.safetensors"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"x")
    manifest.write_manifest(root, [name])
    checks = {check.name: check.status for check in verify(root, PROJECT)}
    assert checks[f"manifest {name}"] == "ok" and not any("binaries" in title for title in checks)
    (root / name).write_bytes(b"y")
    only(root, f"manifest {name}: {name} changed")
    (root / name).unlink()
    (absent,) = [check for check in verify(root, PROJECT) if check.name == "binaries jacobian_iss"]
    assert absent.status == "skip" and absent.detail.startswith("1 of 1 listed") and name in absent.detail


def test_a_frozen_file_that_is_no_binary_must_be_there(root):
    change(root / FREEZE, "files", "configs/corpus_config.yaml", to="a" * 64)
    bless(root)
    only(root, "frozen configs/corpus_config.yaml: not in this folder")


@pytest.mark.parametrize("name", ["2/Q.pt", "5/B.pt", "5/seed_2/Q.pt"])
def test_every_reported_factor_is_hashed(root, name):
    content = json.loads((root / FREEZE).read_text())
    del content["files"][f"low_rank_factors/toy-model/{name}"]
    (root / FREEZE).write_text(json.dumps(content))
    bless(root)
    only(root, f"frozen {FREEZE}: files: lacks low_rank_factors/toy-model/{name}; run experiment-c")


def test_penalties_are_those_of_stage_b(root):
    change(root / ISS / "validation/whitening.json", "lam_rel", "5", "raw", to=0.07)
    bless(root)
    only(root, f"agreement {FREEZE}: lam_rel.5.raw: 0.06, but validation/whitening.json has 0.07")


def test_a_linked_folder_is_refused(root, tmp_path):
    folder = root / "measurements" / "toy-model"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    for action in (lambda: reproduce(root), lambda: verify(root, PROJECT)):
        with pytest.raises(InputError, match="toy-model: is a symbolic link to a folder"):
            action()


def test_nothing_to_check(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            verify(folder, PROJECT)


# --- claims ---------------------------------------------------------------------------------------------------------

CLAIM = {
    "id": "one", "sentence": "It reaches.", "table": "reachability",
    "where": {"task": "ioi", "selector": "coverage_driver", "condition": "P"},
    "column": "rel_tar_mean", "operator": "<=", "value": 0.4,
}  # fmt: skip


@pytest.fixture
def project(root):
    """A root that is a project folder itself, with one claim."""
    (root / "paper" / "templates").mkdir()
    for path in (PROJECT / "paper" / "templates").iterdir():
        (root / "paper" / "templates" / path.name).write_bytes(path.read_bytes())
    (root / "paper" / "published.yaml").write_bytes((PROJECT / "paper" / "published.yaml").read_bytes())
    (root / "paper" / "tables" / "values.tex").write_text(values_tex([], {}))
    manifest.write_table_manifest(root)
    (root / "paper" / "main.tex").write_text("Here: It\n reaches.")
    (root / "paper" / "claims.yaml").write_text(yaml.safe_dump([CLAIM]))
    return root


def test_a_claim_that_holds(project):
    assert any(check.name == "claim one" and check.status == "ok" for check in verify(project, project))
    only(project, project=project)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": 0.1}, r"does not hold: rel_tar_mean 0\.1"),
        ({"operator": ">"}, "does not hold"),
        ({"where": {"task": "ioi"}}, "6 rows"),
        ({"where": {"task": "mcqa"}}, "0 rows"),
        ({"where": {"tusk": "ioi"}}, "no column 'tusk'"),
        ({"column": "rel"}, "no column 'rel'"),
        ({"table": "reach"}, "no table 'reach'"),
        ({"value": "high"}, "cannot be compared"),
        ({"sentence": "It flies."}, "main.tex does not have the sentence"),
        ({"where": {"task": "refusal"}}, "no value in rel_tar_mean"),
    ],
)
def test_a_claim_that_fails(project, change, message):
    (project / "paper" / "claims.yaml").write_text(yaml.safe_dump([CLAIM | change]))
    only(project, message, project=project)


@pytest.mark.parametrize(
    "content, message",
    [
        ("[{id: a", "not valid YAML"),
        ("a: 1", "expected a list"),
        ("[{id: a}]", "claim 1: sentence"),
        (None, "cannot be read"),
    ],
)
def test_broken_claims_file(project, content, message):
    path = project / "paper" / "claims.yaml"
    path.unlink() if content is None else path.write_text(content)
    only(project, message, project=project)


def test_a_claim_may_compare_two_cells(built_root):
    frames = all_tables(read_records(built_root, PROJECT))
    other = {"where": CLAIM["where"] | {"condition": "F"}, "column": "rel_tar_mean"}
    check_claim(Claim(**CLAIM | {"operator": "<", "value": other}), frames)
    with pytest.raises(InputError, match="does not hold"):
        check_claim(Claim(**CLAIM | {"operator": ">", "value": other}), frames)


def test_claims_of_the_paper_are_well_formed(tmp_path):
    claims = read_claims(PROJECT / "paper" / "claims.yaml")
    files = [PROJECT / "paper" / "main.tex", *(PROJECT / "paper" / "sections").glob("*.tex")]
    prose = " ".join(" ".join(path.read_text() for path in files).split())
    assert claims and all(claim.sentence in prose for claim in claims)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([CLAIM, copy.deepcopy(CLAIM)]))
    with pytest.raises(InputError, match="stands twice"):
        read_claims(path)
