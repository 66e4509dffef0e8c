"""Stages A to D on a small model: what they write, what they refuse, what they may not open."""

import json
import shutil

import numpy as np
import pytest
import torch

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines
from sparse_control.iss import benchmark
from sparse_control.jacobian import exact_jacobian
from sparse_control.jacobian.store import REQUIRED_METADATA, load_factors
from sparse_control.models import load_model
from sparse_control.settings import Settings
from sparse_control.stages import a_reference, b_validate, c_freeze, d_official
from sparse_control.stages.states import load_tensors

STAGES_A_TO_C = (a_reference, b_validate, c_freeze)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, small_settings, small_corpus):
    """A root after stages A to C, run with the benchmark out of reach."""
    root = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BENCHMARK_FACTS", "BENCHMARK_PROMPTS"):
            patch.setattr(benchmark, name, root / "out-of-reach")
        for stage in STAGES_A_TO_C:
            stage.run(corpus=small_corpus, root=root, settings=small_settings)
    return root


@pytest.fixture
def root(frozen, tmp_path):
    return shutil.copytree(frozen, tmp_path / "root")


@pytest.fixture(scope="module")
def measured(frozen, tmp_path_factory, small_settings, small_corpus):
    root = shutil.copytree(frozen, tmp_path_factory.mktemp("measured") / "root")
    receipt = d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    return root / "jacobian_iss", receipt


def test_references_are_the_plain_average(frozen, small_settings, small_corpus):
    lm = load_model(small_settings.model)
    prompts = load_corpus(small_corpus).first(8).input_ids
    for position, layer in enumerate((0, 2)):
        expected = np.mean([exact_jacobian(lm, torch.as_tensor(ids), [0, 2])[position].double().numpy() for ids in prompts], axis=0)
        saved = load_tensors(frozen / "jacobian_iss/full_reference/small" / f"{layer}.safetensors")
        assert set(saved) == {"n2", "n4", "n8", "half0", "half1"}
        assert np.allclose(saved["n8"], expected, atol=1e-5)
        assert np.allclose((saved["half0"] + saved["half1"]) / 2, saved["n8"], atol=1e-6)


def test_comparison_has_every_rank_and_falls_with_it(frozen):
    content = read_json(frozen / "jacobian_iss/validation/small_model_full_comparison.json")
    assert len(content["rows"]) == 2 * 2 * 2 * 3 and len(content["noise_floor"]) == 2
    for start in range(0, len(content["rows"]), 3):
        errors = [row["E_F"] for row in content["rows"][start : start + 3]]
        assert errors[0] > errors[1] > errors[2] > 0
    assert all(row["E_F"] >= row["svd_floor_E_F"] for row in content["rows"])


def test_attempts_climb_in_order_and_the_last_decides(frozen, small_settings):
    rows = read_json_lines(frozen / "jacobian_iss/validation/per_model_action_validation.jsonl")
    manifest = read_json(frozen / "jacobian_iss/freeze_manifest.json")
    for layer in small_settings.iss.layers:
        own = [row for row in rows if row["layer"] == layer]
        assert [row["chosen"] for row in own[:-1]] == [False] * (len(own) - 1)
        assert all(row["reason"] for row in own[:-1])
        status = manifest["layers"][str(layer)]["status"]
        assert status == ("validated" if own[-1]["chosen"] else "unresolved")
    assert any(row["chosen"] for row in rows), "the fixture must have a validated layer"


def test_factors_carry_every_metadata_key_and_reproduce_their_validation(frozen, small_settings):
    chosen = [row for row in read_json_lines(frozen / "jacobian_iss/validation/per_model_action_validation.jsonl") if row["chosen"]]
    for row in chosen:
        factors, metadata = load_factors(frozen / "jacobian_iss/low_rank_factors/small" / str(row["layer"]))
        assert set(REQUIRED_METADATA) <= set(metadata) and metadata["validated"] is True
        reference = load_tensors(frozen / "jacobian_iss/full_reference/small" / f"{row['layer']}.safetensors")
        matrix = reference[f"n{row['corpus_size']}"].double()
        assert torch.allclose(factors.B.double(), factors.Q.double().T @ matrix, atol=1e-4)


def test_a_rerun_is_byte_identical(frozen, tmp_path, small_settings, small_corpus):
    for stage in STAGES_A_TO_C:
        stage.run(corpus=small_corpus, root=tmp_path, settings=small_settings)
    files = [path.relative_to(frozen) for path in frozen.rglob("*") if path.is_file()]
    assert files and all((frozen / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)


def test_matrix_free_products_choose_the_same_estimators(tmp_path, small_settings, small_corpus):
    changed = json.loads(small_settings.model_dump_json())
    changed["estimator"] |= {"corpus_sizes": [4], "ranks": [4, 8], "power_iterations": [0]}
    both = []
    for reference in (False, True):
        changed["estimator"]["reference"] = reference
        settings = Settings.model_validate(changed)
        for stage in STAGES_A_TO_C:
            stage.run(corpus=small_corpus, root=tmp_path / str(reference), settings=settings)
        both.append(read_json_lines(tmp_path / str(reference) / "jacobian_iss/validation/per_model_action_validation.jsonl"))
    rows, expected = both
    assert {row["direct_action"] for row in rows} == {"jvp"} and {row["direct_action"] for row in expected} == {"exact_reference"}
    assert [(row["layer"], row["k"], row["chosen"]) for row in rows] == [(row["layer"], row["k"], row["chosen"]) for row in expected]
    for row, reference in zip(rows, expected):
        assert row["median_relative_error"] == pytest.approx(reference["median_relative_error"], abs=1e-3)


def test_official_files(measured, small_settings):
    base, receipt = measured
    summary = read_json(base / "iss_model_summary.json")
    validated = summary["validated_layers"]
    assert sorted(validated + summary["unresolved_layers"]) == [0, 2]
    per_layer = read_json_lines(base / "iss_per_fact_layer.jsonl")
    assert {row["layer"] for row in per_layer if row["metric"] == "ISS"} == set(validated), "official ISS on validated layers only"
    assert {row["layer"] for row in per_layer if row["metric"] == "Raw-ISS"} == {0, 2}
    official = [row["iss"] for row in read_json_lines(base / "iss_per_fact.jsonl") if row["metric"] == "ISS"]
    assert summary["ISS"]["mean"] == pytest.approx(np.mean(official))
    for row in summary["per_layer"]:
        own = [fact["iss"] for fact in per_layer if fact["layer"] == row["layer"] and fact["metric"] == "Raw-ISS"]
        assert row["raw_iss"] == pytest.approx(np.mean(own))
        assert (row["iss"] is None) == (row["status"] == "unresolved")
    assert receipt.broken(base.parent) == []


def test_unresolved_layers_have_raw_iss_only(tmp_path, small_settings, small_corpus):
    changed = json.loads(small_settings.model_dump_json())
    changed["validation"]["median_cosine"] = 1.0
    changed["validation"]["median_relative_error"] = 0.0
    settings = Settings.model_validate(changed)
    for stage in (*STAGES_A_TO_C, d_official):
        stage.run(corpus=small_corpus, root=tmp_path, settings=settings)
    base = tmp_path / "jacobian_iss"
    summary = read_json(base / "iss_model_summary.json")
    assert summary["ISS"] is None and summary["unresolved_layers"] == [0, 2]
    assert {row["metric"] for row in read_json_lines(base / "iss_per_fact_layer.jsonl")} == {"Raw-ISS"}
    assert not (base / "low_rank_factors").exists()
    assert read_json(base / "raw_iss_ablation.json")["n_facts"] == 8


def test_official_stage_needs_the_manifest(root, small_settings, small_corpus):
    (root / "jacobian_iss/freeze_manifest.json").unlink()
    with pytest.raises(InputError, match="no freeze manifest; official ISS needs stage C first"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    assert not (root / "jacobian_iss/iss_model_summary.json").exists()


@pytest.mark.parametrize(
    "pattern", ["configs/*.yaml", "validation/*.jsonl", "low_rank_factors/*/*/Q.pt", "low_rank_factors/*/*/metadata.json"]
)
def test_official_stage_refuses_any_changed_byte(root, pattern, small_settings, small_corpus):
    path = sorted((root / "jacobian_iss").glob(pattern))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=f"{path.name}: changed after the freeze"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name}: is missing but frozen"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)


def test_official_stage_refuses_other_settings_and_other_code(root, small_settings, small_corpus, monkeypatch):
    changed = json.loads(small_settings.model_dump_json())
    changed["iss"]["facts_per_relation"] = 5
    with pytest.raises(InputError, match="frozen with other settings"):
        d_official.run(corpus=small_corpus, root=root, settings=Settings.model_validate(changed))
    monkeypatch.setattr(c_freeze, "stages_code_sha256", lambda: "0" * 64)
    with pytest.raises(InputError, match="made by another version of the code"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)


def test_overlapping_facts_stop_the_run(root, small_settings, small_corpus, monkeypatch, tmp_path):
    lines = benchmark.CALIBRATION_FACTS.read_text().splitlines()
    relation, _, rest = lines[1].split(",", 2)
    subject = benchmark.BENCHMARK_FACTS.read_text().splitlines()[1].split(",")[1]
    lines[1] = f"{relation},{subject},{rest}"
    (tmp_path / "facts.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(benchmark, "CALIBRATION_FACTS", tmp_path / "facts.csv")
    with pytest.raises(InputError, match=f"entities in both sets: .*{subject}"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    assert not (root / "jacobian_iss/iss_model_summary.json").exists()


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("estimator", {"ranks": [4, 32]}, "estimator.ranks: 32 is not below the width 32"),
        ("iss", {"layers": [0, 3]}, "iss.layers: 3 is not a source layer"),
        ("estimator", {"corpus_sizes": [4, 9]}, "9 windows asked for, there are 8"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, small_settings, small_corpus, part, values, message):
    changed = json.loads(small_settings.model_dump_json())
    changed[part] |= values
    with pytest.raises(InputError, match=message):
        a_reference.run(corpus=small_corpus, root=tmp_path, settings=Settings.model_validate(changed))
