"""Records refuse what they cannot vouch for, in one line that names file, line, field and value."""

import copy
import json
import math
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.records.jacobian_iss import FILES, read_iss
from sparse_control.records.paths import ModelPaths
from sparse_control.records.six_axis import RecordKey
from sparse_control.records.six_axis_files import read_all_measurements, read_measurements
from tests.support.measured_iss import iss_files
from tests.support.measured_root import measurement, write_files, write_lines

NAME = "toy-model/six_axis/ioi.coverage_driver.P.jsonl"
TOY = "toy-model"


def changed(path, value, record=None):
    """A record with the field at `path` set; DELETE removes it."""
    record = copy.deepcopy(record or measurement())
    *way, last = path
    place = record
    for step in way:
        place = place[step]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return record


DELETE = object()
BAD = [
    (("unknown",), 1, "unknown"),
    (("evaluate", "unknown"), 1, r"evaluate\.unknown"),
    (("seed",), DELETE, "seed: Field required"),
    (("seed",), "0", "seed: .*got '0'"),
    (("seed",), True, "seed: .*got True"),
    (("seed",), -1, "seed"),
    (("schema",), "six-axis/2", "schema: .*got 'six-axis/2'"),
    (("condition",), "G", "condition"),
    (("supported",), False, "support must be null"),
    (("reversal",), None, "reversal must be given"),
    (("support",), ["L03.head.1@-1", "L03.head.1@-1"], "support must not repeat"),
    (("support",), ["head 3", "L05.mlp@-1"], r"support\.0"),
    (("strengths",), [1.0], r"strengths must have one entry for each of support \(2\), got 1"),
    (("norms", "direction"), [1.0], r"norms\.direction"),
    (("reuse", "refit_strengths"), [1.0, 2.0, 3.0], r"reuse\.refit_strengths"),
    (("evaluate", "source"), [1.0], r"evaluate: source"),
    (("evaluate", "patched"), [[0.0] * 4], r"evaluate: patched"),
    (("evaluate", "patched", 3), [0.0], r"patched\[3\]"),
    (("evaluate", "doses", 6), 0.9, "nominal dose 1"),
    (("evaluate", "doses", 6), 2, "doses must differ"),
    (("reversal", "reversed"), [0.0], r"reversal\.reversed"),
    (("preservation", "kl"), [0.0], "kl must have"),
    (("reuse", "frozen"), [0.0], "frozen must have"),
    (("feedback", "endpoints", 1, "terminal_margin"), 9.0, r"feedback\.endpoints\.1: trajectory must end"),
    (("feedback", "endpoints", 0, "trajectory"), [], r"feedback\.endpoints\.0\.trajectory"),
    (("gate", "fit", "kept"), 99, "kept must not exceed"),
    (("provenance", "seed"), 7, r"provenance\.seed"),
    (("provenance", "code_sha256"), "abc", r"provenance\.code_sha256: .*got 'abc'"),
]


@pytest.mark.parametrize(
    "path, value, message", BAD, ids=[f"{'.'.join(map(str, b[0]))}-{i}" for i, b in enumerate(BAD)]
)
def test_bad_record(tmp_path, path, value, message):
    file = tmp_path / NAME
    write_lines(file, [measurement(seed=5), changed(path, value)])
    with pytest.raises(InputError, match=message) as caught:
        read_measurements(tmp_path, file)
    assert str(caught.value).startswith(f"{file}:2: ") and "\n" not in str(caught.value)


def test_good_records_come_back_by_seed(tmp_path):
    write_lines(tmp_path / NAME, [measurement(seed=1), measurement(seed=0)])
    first, second = read_all_measurements(tmp_path)
    assert (first.seed, second.seed) == (0, 1)
    assert json.loads(first.model_dump_json(by_alias=True, exclude_unset=True)) == json.loads(
        json.dumps(measurement(seed=0))
    )
    with pytest.raises(Exception, match="frozen"):
        first.seed = 3


@pytest.mark.parametrize("text", ['{"schema": NaN}', '{"a":', "", '{"evaluate": Infinity}', "[1]", "[" * 100_000])
def test_broken_lines_are_named(tmp_path, text):
    file = tmp_path / NAME
    write_lines(file, [measurement()])
    file.write_text(file.read_text() + text + "\n")
    with pytest.raises(InputError, match=f"{NAME}:2: "):
        read_measurements(tmp_path, file)


def test_overflowing_number_is_refused(tmp_path):
    file = tmp_path / NAME
    write_lines(file, [measurement()])
    file.write_text(file.read_text().replace('"gain": 0.2', '"gain": 1e999'))
    with pytest.raises(InputError, match=r"feedback\.gain: .*finite"):
        read_measurements(tmp_path, file)


@pytest.mark.parametrize("field", ["model", "task", "selector", "condition"])
def test_file_name_must_be_the_records(tmp_path, field):
    file = tmp_path / NAME
    write_lines(file, [measurement() | {field: "F"}])
    with pytest.raises(InputError, match=":1: the record belongs to "):
        read_measurements(tmp_path, file)


def test_a_seed_stands_once(tmp_path):
    write_lines(tmp_path / NAME, [measurement(), measurement()])
    with pytest.raises(InputError, match=":2: seed: is there twice in this file, got 0"):
        read_all_measurements(tmp_path)


def test_hub_ids_make_one_folder():
    file = RecordKey("owner/name", "ioi", "x", "P", 0).file(Path("root"))
    assert file.as_posix() == "root/owner--name/six_axis/ioi.x.P.jsonl"


def _write_iss(root, files):
    write_files(ModelPaths(root, TOY).base, files)


def test_absent_iss_files_are_empty(tmp_path):
    records = read_iss(ModelPaths(tmp_path, TOY))
    assert records.summary is None and records.actions == ()


@pytest.mark.parametrize("field", FILES)
def test_unknown_fields_of_iss_files_are_refused(tmp_path, field):
    name = FILES[field][0]
    content = iss_files()[name]
    (content[0] if isinstance(content, list) else content)["surplus"] = 1
    _write_iss(tmp_path, {name: content})
    with pytest.raises(InputError, match=f"{name}(:1)?: surplus: "):
        read_iss(ModelPaths(tmp_path, TOY))


def _edit(files, name, change):
    change(files[name])
    return {name: files[name]}


ISS_BAD = {
    "unresolved layer with ISS": (
        "iss_model_summary.json", lambda c: c["per_layer"][2].update(iss=0.5), "iss must be null at an unres",
    ),
    "layers disagree": ("iss_model_summary.json", lambda c: c.update(validated_layers=[2]), "validated_layers must be"),
    "window disagrees": ("iss_model_summary.json", lambda c: c.update(window=[2]), "window must be"),
    "no ISS": ("iss_model_summary.json", lambda c: c.update(ISS=None), "ISS must be given"),
    "chosen but failed": (
        "validation/per_model_action_validation.jsonl", lambda c: c[0].update(chosen=True), "a failed rung is never",
    ),
    "null without reason": ("iss_per_fact_layer.jsonl", lambda c: c[0].update(iss=None), "reason must be given"),
    "fact twice": ("iss_per_fact.jsonl", lambda c: c.append(c[0]), ":19: fact: is there twice"),
    "values": ("validation/seed_stability.jsonl", lambda c: c[0].update(values=[0.1]), "values must have one entry"),
    "metric": ("iss_per_fact.jsonl", lambda c: c[0].update(metric="iss"), "metric"),
}  # fmt: skip


@pytest.mark.parametrize("case", ISS_BAD)
def test_bad_iss_files(tmp_path, case):
    name, change, message = ISS_BAD[case]
    _write_iss(tmp_path, _edit(iss_files(), name, change))
    with pytest.raises(InputError, match=message):
        read_iss(ModelPaths(tmp_path, TOY))


def test_nan_never_enters(tmp_path):
    content = iss_files()["raw_iss_ablation.json"] | {"mean": math.nan}
    _write_iss(tmp_path, {"raw_iss_ablation.json": content})
    with pytest.raises(InputError, match=r"raw_iss_ablation\.json: not valid JSON \(NaN"):
        read_iss(ModelPaths(tmp_path, TOY))
