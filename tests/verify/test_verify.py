"""Each check can fail, and says where."""

import json
import re
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.records import manifest
from sparse_control.records.jacobian_iss.freeze import content_sha256
from sparse_control.verify import verify
from tests.support.measured_root import bless, measurement, rehash, reproduce, write_lines

PROJECT = Path(__file__).parent.parent.parent
RECORDS = "toy-model/six_axis/ioi.coverage_driver.P.jsonl"
CSV = "paper/tables/reachability.csv"
ISS = "toy-model/jacobian_iss/"
SUMMARY, RAW, FREEZE = ISS + "iss_model_summary.json", ISS + "raw_iss_ablation.json", ISS + "freeze_manifest.json"


def failures(root, project=PROJECT):
    return [f"{check.name}: {check.detail}" for check in verify(root, project) if check.status == "FAIL"]


def only(root, *patterns, project=PROJECT):
    """The failures are exactly these, in any order."""
    found = failures(root, project)
    assert len(found) == len(patterns), found
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in found), (pattern, found)


def record_rendered(root):
    """As `reproduce` does, whatever was rendered."""
    manifest.write_rendered_manifest(root / "paper", manifest.rendered_files(root / "paper"))


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
        re.search(rf"recomputed {CSV}: row 1, column rel_tar_mean: saved '0\.\d+', recomputed '0\.\d+'", line)
        for line in found
    )


def test_reproduce_never_blesses_a_changed_measurement(root):
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    rows[0]["preservation"]["kl"][0] = 0.5
    write_lines(root / RECORDS, rows)
    reproduce(root)
    only(root, rf"manifest {RECORDS}: .* changed", f"sealed {RECORDS}")


def test_deleted_measurement(root):
    (root / RECORDS).unlink()
    only(root, f"^manifest {RECORDS}: {RECORDS} is missing")
    skipped = [check.detail for check in verify(root, PROJECT) if check.status == "skip" and check.name == "tables"]
    assert len(skipped) == 1 and "reachability" in skipped[0] and skipped[0].endswith(RECORDS)
    assert "rank_curve" not in skipped[0]


def test_deleted_iss_record(root):
    name = ISS + "iss_per_fact.jsonl"
    (root / name).unlink()
    only(root, f"^manifest {name}: {name} is missing")


def test_unlisted_measurement(root):
    name = "other/six_axis/ioi.coverage_driver.F.jsonl"
    write_lines(root / name, [measurement(condition="F", model="other")])
    assert any(line.startswith(f"manifest {name}: {name} is not listed") for line in failures(root))


@pytest.mark.parametrize("name", ["paper/tables/reuse.tex", "paper/tables/index.html", CSV])
def test_deleted_table(root, name):
    (root / name).unlink()
    only(root, f"manifest {name}: {name} is missing", rf"(rendered|recomputed) {name}: .*cannot be read")


def test_unlisted_table(root):
    (root / "paper/tables/extra.tex").write_text("x")
    only(root, "paper/tables/extra.tex is not listed")


def test_edited_cell_is_named(root):
    rows = (root / CSV).read_text().splitlines()
    cells = rows[2].split(",")
    cells[7] = "0.123"
    (root / CSV).write_text("\n".join([*rows[:2], ",".join(cells), *rows[3:]]) + "\n")
    only(root, f"manifest {CSV}", rf"recomputed {CSV}: row 2, column rel_tar_mean: saved '0\.123', recomputed '0\.9")


def test_a_cell_differing_by_rounding_is_no_other_value(root):
    rows = (root / CSV).read_text().splitlines()
    cells = rows[1].split(",")
    cells[7] = repr(float(cells[7]) * (1 + 1e-14))
    (root / CSV).write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    record_rendered(root)
    only(root)


def test_missing_row(root):
    rows = (root / CSV).read_text().splitlines()
    (root / CSV).write_text("\n".join(rows[:-1]) + "\n")
    only(root, f"manifest {CSV}", f"recomputed {CSV}: expected 11 rows")


@pytest.mark.parametrize("name", ["reachability.tex", "index.html"])
def test_edited_rendering_is_named_by_line(root, name):
    edit(root / "paper/tables" / name, "not supported", "supported")
    only(root, f"manifest paper/tables/{name}", rf"rendered paper/tables/{name}: line \d+: saved")


def test_broken_json_line_is_a_failure_not_a_crash(root):
    with open(root / RECORDS, "a") as handle:
        handle.write('{"schema":\n')
    only(root, f"manifest {RECORDS}", rf"records {RECORDS}: {RECORDS}:4: not valid JSON")


def test_every_broken_file_is_named(root):
    edit(root / RECORDS, '"seed": 0', '"seed": -1')
    edit(root / SUMMARY, '"window"', '"windows"')
    only(
        root,
        f"manifest {RECORDS}",
        f"manifest {SUMMARY}",
        f"{RECORDS}:1: seed: ",
        "iss_model_summary.json: window: ",
    )


@pytest.mark.parametrize(
    "content", ["{", '{"schema": "manifest/2"}', "[]", '{"schema": "manifest/1", "tables": {"a": "b"}}']
)
def test_broken_manifest(root, content):
    for folder, name in ((root, "MANIFEST.json"), (root / "paper", "paper/MANIFEST.json")):
        before = (folder / "MANIFEST.json").read_bytes()
        (folder / "MANIFEST.json").write_text(content)
        only(root, f"^{name}: MANIFEST.json|^{name}: {name}")
        (folder / "MANIFEST.json").write_bytes(before)


def test_readouts_out_of_range_are_a_failure_not_a_crash(root):
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    rows[0]["evaluate"] |= {"source": [-1e308] * 4, "target": [1e308] * 4, "wrong_way": None}
    write_lines(root / RECORDS, rows)
    rehash(root)
    assert any(re.search("^tables: table [a-z_]+: ", line) for line in failures(root))


def test_missing_manifest(root):
    (root / "MANIFEST.json").unlink()
    only(root, "MANIFEST.json is missing")
    bless(root)
    (root / "paper/MANIFEST.json").unlink()
    only(root, "^paper/MANIFEST.json: .*has no manifest; run `python -m sparse_control reproduce`")


def test_a_run_blesses_only_what_it_measured(root):
    edit(root / RECORDS, '"reason": null', '"reason":  null')
    manifest.write_manifest(root, [SUMMARY])
    only(root, f"manifest {RECORDS}: .*changed")
    manifest.write_manifest(root, [RECORDS])
    only(root)


def test_factors_are_checked_where_they_are(root):
    (root / ISS / "low_rank_factors/toy-model/2/Q.pt").write_bytes(b"other")
    only(root, rf"frozen {ISS}low_rank_factors/toy-model/2/Q.pt: changed")


def test_stored_mean_must_be_the_facts(root):
    path = root / SUMMARY
    content = json.loads(path.read_text())
    content["ISS"]["mean"] += 0.01
    path.write_text(json.dumps(content))
    bless(root)
    only(root, "stored mean and intervals of ISS of toy-model/jacobian_iss: mean stored")


def test_stored_interval_must_be_the_bootstrap(root):
    path = root / RAW
    content = json.loads(path.read_text())
    content["bca"][1] += 0.01
    path.write_text(json.dumps(content))
    bless(root)
    reproduce(root)
    only(root, "stored mean and intervals of Raw-ISS of toy-model/jacobian_iss: bca stored")


def test_configurations_and_libraries_must_agree_where_records_keep_them(root):
    """The weights may be the same all the while."""
    rows = [json.loads(line) for line in (root / RECORDS).read_text().splitlines()]
    for row, eps in zip(rows, "abb", strict=False):
        files, versions = {"config.json": eps * 64, "model.safetensors": "c" * 64}, {"torch": "2.13.0"}
        row["provenance"]["model"] |= {"identity": eps * 64, "files": files, "versions": versions}
    write_lines(root / RECORDS, rows)
    rehash(root)
    only(root, "provenance toy-model weights: .* were measured on different models: config.json$")


def test_weights_must_agree(root):
    edit(root / RECORDS, "a" * 64, "e" * 64)
    rehash(root)
    only(root, "provenance toy-model weights: .* was measured on weights")


def test_weights_must_be_there(root):
    edit(root / RECORDS, '"weights_sha256": "' + "a" * 64 + '"', '"other": 1')
    rehash(root)
    only(root, "weights_sha256 is missing")


@pytest.mark.parametrize("letter, field", [("b", "params_sha256"), ("c", "code_sha256")])
def test_settings_and_code_must_agree(root, letter, field):
    edit(root / RECORDS, letter * 64, "e" * 64)
    rehash(root)
    only(root, f"settings and code: {field} differs between")


def change(path, *keys, to):
    """Set one value of a JSON file, or of the first row of a JSON-lines file."""
    lines = path.suffix == ".jsonl"
    content = [json.loads(line) for line in path.read_text().splitlines()] if lines else json.loads(path.read_text())
    target = content[0] if lines else content
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = to
    write_lines(path, content) if lines else path.write_text(json.dumps(content))


AGREEMENT = [
    (
        FREEZE,
        ["lam_rel", "8", "raw"],
        0.07,
        [r"lam_rel\.8\.raw: 0.06, but", "layer 8: lam_rel_raw: 0.06, but", "penalties of .*whitening.json has 0.06"],
    ),
    (SUMMARY, ["per_layer", 0, "lam_rel_iss"], 0.051, ["layer 2: lam_rel_iss: 0.051, but"]),
    (SUMMARY, ["per_layer", 0, "iss"], 0.5, ["layer 2: iss: 0.5, but its rows give"]),
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
    (ISS + "iss_per_fact.jsonl", ["n_layers"], 1, ["n_layers: 1, but there are rows of 2"]),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, keys, value, patterns", AGREEMENT)
def test_iss_files_are_held_against_each_other(root, name, keys, value, patterns):
    change(root / name, *keys, to=value)
    rehash(root)
    reproduce(root)
    only(root, *patterns)


def test_records_are_of_the_model_of_their_folder(root):
    change(root / RAW, "model", to="other")
    change(root / ISS / "validation/rank_convergence.jsonl", "model", to="another")
    rehash(root)
    patterns = (f"{RAW}: model: other, but its folder is that of toy-model", "rank_convergence.jsonl:1: model: another")
    only(root, *patterns)


@pytest.mark.parametrize("name", [SUMMARY, RAW, RECORDS])
def test_provenance_of_a_model_is_a_mapping(root, name):
    change(root / name, "provenance", "model", to="toy")
    rehash(root)
    only(root, r"provenance\.model: Input should be a valid dictionary")


@pytest.mark.parametrize(
    "half, key",
    [
        ("measurements", "/etc/passwd"),
        ("measurements", "toy-model/six_axis/../../x.json"),
        ("measurements", "paper/tables/a.tex"),
        ("measurements", "toy-model/six_axis/\u00e9.json"),
        ("measurements", "toy-model/six_axis/a\x1b[2Jb\n.json"),
        ("measurements", "toy-model/six_axis/" + "a" * 5000),
        ("measurements", "toy-model/six_axis/a\\..\\b.json"),
        ("files", "toy-model/six_axis/a.jsonl"),
        ("files", "tables//a.tex"),
        ("files", "tables/../../a.tex"),
    ],
)
def test_paths_of_the_manifest_stay_below_the_root(root, half, key):
    change(root / ("paper" if half == "files" else "") / "MANIFEST.json", half, key, to="a" * 64)
    found = failures(root)
    assert len(found) == 1 and half in found[0] and key[:6].strip() in found[0]
    assert found[0].isprintable()


@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a" * 5000, "a\x1b"])
def test_paths_of_the_freeze_manifest_stay_below_it(root, key):
    content = json.loads((root / FREEZE).read_text())
    content["files"][key] = "a" * 64
    (root / FREEZE).write_text(json.dumps(content | {"content_sha256": content_sha256(content)}))
    bless(root)
    only(root, "freeze_manifest.json: files")


def test_no_line_carries_control_characters(root):
    path = root / "a\x1b[2J\nb" / "six_axis" / "ioi.coverage_driver.P.jsonl"
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
    (line,) = [line for line in failures(root, tmp_path) if line.startswith("paper/published.yaml")]
    assert "published.yaml: " in line


def lines(root, status):
    return [f"{check.name}: {check.detail}" for check in verify(root, PROJECT) if check.status == status]


def test_binaries(root):
    assert any(f"tensors of {FREEZE}: 8 tensors frozen in it are not in this folder" in x for x in lines(root, "skip"))
    for name in ("low_rank_factors/toy-model/2/extra.pt", "full_reference/toy-model/2.safetensors"):
        (root / ISS / name).parent.mkdir(parents=True, exist_ok=True)
        (root / ISS / name).write_bytes(b"x")
    only(root, f"frozen {ISS}low_rank_factors/toy-model/2/extra.pt: is not listed in freeze_manifest.json")
    (unlisted,) = [check for check in verify(root, PROJECT) if check.name == "unlisted binaries"]
    assert unlisted.status == "skip" and "2 files are not hashed in MANIFEST.json" in unlisted.detail
    assert any("full_reference" in name for name in unlisted.more)


def test_binaries_a_run_recorded_are_hashed(root):
    name = ISS + "full_reference/toy-model/2.safetensors"
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"x")
    manifest.write_manifest(root, [name])
    checks = {check.name: check.status for check in verify(root, PROJECT)}
    assert checks[f"manifest {name}"] == "ok" and not any("binaries" in title for title in checks)
    (root / name).write_bytes(b"y")
    only(root, f"manifest {name}: {name} changed")
    (root / name).unlink()
    (absent,) = [check for check in verify(root, PROJECT) if check.name == "binaries"]
    assert absent.status == "skip" and absent.detail.startswith("1 of 1 listed") and absent.more == (name,)


def test_a_frozen_file_that_is_no_tensor_must_be_there(root):
    (root / ISS / "configs/corpus_config.yaml").unlink()
    only(root, f"manifest {ISS}configs/corpus_config.yaml", f"frozen {ISS}configs/corpus_config.yaml: is missing")


def test_a_linked_folder_is_refused(root, tmp_path):
    folder = root / "toy-model"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    for action in (lambda: reproduce(root), lambda: verify(root, PROJECT)):
        with pytest.raises(InputError, match="toy-model: is a symbolic link to a folder"):
            action()


@pytest.mark.parametrize("name", ["paper", "paper/tables"])
def test_nothing_is_rendered_or_removed_through_a_link(root, tmp_path, name):
    """With a table of earlier records on the other side, which `reproduce` would otherwise remove."""
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    stale = next((tmp_path / "elsewhere").rglob("reuse.tex"))
    stale.rename(stale.with_name("stale.tex"))
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"{name}: is a symbolic link to a folder"):
        reproduce(root)
    assert {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()} == before


def test_nothing_to_check(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError):
            verify(folder, PROJECT)
