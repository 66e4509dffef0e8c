"""Stages A to D on a small model: what they write, what they refuse, what they may not open."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines, write_json
from sparse_control.iss import benchmark
from sparse_control.jacobian import exact, exact_jacobian
from sparse_control.jacobian.store import REQUIRED_METADATA, load_factors
from sparse_control.models import identity, load_model
from sparse_control.project import project_folder
from sparse_control.records.jacobian_iss import read_iss, read_iss_file
from sparse_control.records.manifest import write_manifest
from sparse_control.stages import a_reference, alternatives, b_validate, c_freeze, d_official, inputs
from sparse_control.stages.calibration import Labels
from sparse_control.stages.queries import benchmark_queries
from sparse_control.stages.states import load_tensors, query_states
from sparse_control.verify import verify
from tests.stages.conftest import changed
from tests.support.corpus import windows, write_corpus
from tests.support.measured_root import reproduce

STAGES_A_TO_C = (a_reference, b_validate, c_freeze)


@pytest.fixture(scope="module")
def measured(frozen, tmp_path_factory, small_settings, small_corpus, paths_of):
    root = shutil.copytree(frozen, tmp_path_factory.mktemp("measured") / "root")
    receipt = d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    return paths_of(root).base, receipt


def test_references_are_the_plain_average(frozen, small_settings, small_corpus, paths_of):
    lm = load_model(small_settings.model)
    prompts = load_corpus(small_corpus).first(8).input_ids
    for position, layer in enumerate((0, 2)):
        expected = np.mean(
            [exact_jacobian(lm, torch.as_tensor(ids), [0, 2])[position].double().numpy() for ids in prompts], axis=0
        )
        saved = load_tensors(paths_of(frozen).reference(layer))
        assert set(saved) == {"n2", "n4", "n8", "half0", "half1"}
        assert np.allclose(saved["n8"], expected, atol=1e-5)
        assert np.allclose((saved["half0"] + saved["half1"]) / 2, saved["n8"], atol=1e-6)


def test_comparison_has_every_rank_and_falls_with_it(frozen, paths_of):
    content = read_json(paths_of(frozen).validation("small_model_full_comparison.json"))
    assert len(content["rows"]) == 2 * (2 * 2 * 3 + 2 * 3) and len(content["noise_floor"]) == 2
    assert {row["probe"] for row in content["rows"]} == {"gaussian", "rademacher"}
    for start in range(0, len(content["rows"]), 3):
        errors = [row["E_F"] for row in content["rows"][start : start + 3]]
        assert errors[0] > errors[1] > errors[2] > 0
    assert all(row["E_F"] >= row["svd_floor_E_F"] for row in content["rows"])


def test_attempts_climb_in_order_and_the_last_decides(frozen, small_settings, paths_of):
    rows = read_json_lines(paths_of(frozen).validation("per_model_action_validation.jsonl"))
    manifest = read_json(paths_of(frozen).manifest)
    for layer in small_settings.iss.layers:
        own = [row for row in rows if row["layer"] == layer]
        assert [row["chosen"] for row in own[:-1]] == [False] * (len(own) - 1)
        assert all(row["reason"] for row in own[:-1])
        status = manifest["layers"][str(layer)]["status"]
        assert status == ("validated" if own[-1]["chosen"] else "unresolved")
    assert any(row["chosen"] for row in rows), "the fixture must have a validated layer"


def test_factors_carry_every_metadata_key_and_reproduce_their_validation(frozen, small_settings, paths_of):
    chosen = [
        row
        for row in read_json_lines(paths_of(frozen).validation("per_model_action_validation.jsonl"))
        if row["chosen"]
    ]
    for row in chosen:
        factors, metadata = load_factors(paths_of(frozen).factors(row["layer"]))
        assert set(REQUIRED_METADATA) <= set(metadata) and metadata["validated"] is True
        reference = load_tensors(paths_of(frozen).reference(row["layer"]))
        matrix = reference[f"n{row['corpus_size']}"].double()
        assert torch.allclose(factors.B.double(), factors.Q.double().T @ matrix, atol=1e-4)


def test_a_rerun_is_byte_identical(frozen, tmp_path, small_settings, small_corpus):
    for stage in STAGES_A_TO_C:
        stage.run(corpus=small_corpus, root=tmp_path, settings=small_settings)
    files = [path.relative_to(frozen) for path in frozen.rglob("*") if path.is_file()]
    assert files and all((frozen / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)


def test_matrix_free_products_choose_the_same_estimators(tmp_path, small_settings, small_corpus, paths_of):
    few = {"corpus_sizes": [4], "ranks": [4, 8], "power_iterations": [0]}
    both = []
    for reference in (False, True):
        settings = changed(small_settings, estimator=few | {"reference": reference})
        for stage in STAGES_A_TO_C:
            stage.run(corpus=small_corpus, root=tmp_path / str(reference), settings=settings)
        both.append(
            read_json_lines(paths_of(tmp_path / str(reference)).validation("per_model_action_validation.jsonl"))
        )
    rows, expected = both
    assert {row["direct_action"] for row in rows} == {"jvp"} and {row["direct_action"] for row in expected} == {
        "exact_reference"
    }
    assert [(row["layer"], row["k"], row["chosen"]) for row in rows] == [
        (row["layer"], row["k"], row["chosen"]) for row in expected
    ]
    for row, reference in zip(rows, expected):
        assert row["median_relative_error"] == pytest.approx(reference["median_relative_error"], abs=1e-3)


def test_official_files(measured, small_settings):
    base, receipt = measured
    summary = read_json(base / "iss_model_summary.json")
    validated = summary["validated_layers"]
    assert sorted(validated + summary["unresolved_layers"]) == [0, 2]
    per_layer = read_json_lines(base / "iss_per_fact_layer.jsonl")
    assert {row["layer"] for row in per_layer if row["metric"] == "ISS"} == set(validated), (
        "official ISS on validated layers only"
    )
    assert {row["layer"] for row in per_layer if row["metric"] == "Raw-ISS"} == {0, 2}
    official = [row["iss"] for row in read_json_lines(base / "iss_per_fact.jsonl") if row["metric"] == "ISS"]
    assert summary["ISS"]["mean"] == pytest.approx(np.mean(official))
    for row in summary["per_layer"]:
        own = [fact["iss"] for fact in per_layer if fact["layer"] == row["layer"] and fact["metric"] == "Raw-ISS"]
        assert row["raw_iss"] == pytest.approx(np.mean(own))
        assert (row["iss"] is None) == (row["status"] == "unresolved")
    assert receipt.broken(base.parent.parent) == []


def test_unresolved_layers_have_raw_iss_only(tmp_path, small_settings, small_corpus, paths_of):
    settings = changed(small_settings, validation={"median_cosine": 1.0, "median_relative_error": 0.0})
    for stage in (*STAGES_A_TO_C, d_official):
        stage.run(corpus=small_corpus, root=tmp_path, settings=settings)
    base = paths_of(tmp_path).base
    summary = read_json(base / "iss_model_summary.json")
    assert summary["ISS"] is None and summary["unresolved_layers"] == [0, 2]
    assert {row["metric"] for row in read_json_lines(base / "iss_per_fact_layer.jsonl")} == {"Raw-ISS"}
    assert not (base / "low_rank_factors").exists()
    assert read_json(base / "raw_iss_ablation.json")["n_facts"] == 8


def test_overlapping_facts_stop_the_run(root, small_settings, small_corpus, monkeypatch, tmp_path, paths_of):
    lines = benchmark.CALIBRATION_FACTS.read_text().splitlines()
    relation, _, rest = lines[1].split(",", 2)
    subject = benchmark.BENCHMARK_FACTS.read_text().splitlines()[1].split(",")[1]
    lines[1] = f"{relation},{subject},{rest}"
    (tmp_path / "facts.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(benchmark, "CALIBRATION_FACTS", tmp_path / "facts.csv")
    with pytest.raises(InputError, match=f"entities in both sets: .*{subject}"):
        d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    assert not paths_of(root).result("iss_model_summary.json").exists()


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("estimator", {"ranks": [32, 64]}, "estimator.ranks: none is below the width 32"),
        ("iss", {"layers": [0, 2, 3]}, "iss.layers: 3 is not a source layer"),
        ("estimator", {"corpus_sizes": [4, 9]}, "9 windows asked for, there are 8"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, small_settings, small_corpus, part, values, message):
    with pytest.raises(InputError, match=message):
        a_reference.run(corpus=small_corpus, root=tmp_path, settings=changed(small_settings, **{part: values}))


def test_blocks_end_at_every_size_and_at_half_the_largest(small_settings):
    settings = changed(small_settings, estimator={"corpus_sizes": [2, 10], "block_prompts": 3})
    assert a_reference.blocks(settings) == [(0, 2), (2, 5), (5, 8), (8, 10)]
    assert a_reference.blocks(changed(settings, estimator={"reference": False})) == []


def test_units_in_any_order_give_the_bytes_of_one_run(frozen, tmp_path, small_settings, small_corpus, paths_of):
    where = {"corpus": small_corpus, "root": tmp_path, "settings": small_settings}
    for start, stop in reversed(a_reference.blocks(small_settings)):
        a_reference.run_block(**where, start=start, stop=stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "exact_jacobian", lambda *_: pytest.fail("summed again"))
        a_reference.run(**where)
        a_reference.run(**where)
    for layer in reversed(small_settings.iss.layers):
        b_validate.run_layer(**where, layer=layer)
    b_validate.run(**where)
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert files and all((frozen / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)
    assert not (paths_of(tmp_path).base / "checkpoints").exists()


class Stop(Exception):
    pass


def test_an_interrupted_block_goes_on_at_the_next_prompt(
    frozen, tmp_path, small_settings, small_corpus, monkeypatch, paths_of
):
    settings = changed(small_settings, estimator={"checkpoint_seconds": 0.0})
    asked = []
    plain = exact.exact_jacobian

    def counted(lm, ids, layers):
        asked.append(tuple(ids))
        if len(asked) == 3:
            raise Stop
        return plain(lm, ids, layers)

    monkeypatch.setattr(a_reference, "jacobian_sum", partial(exact.jacobian_sum, jacobian=counted))
    where = {"corpus": small_corpus, "root": tmp_path, "settings": settings}
    with pytest.raises(Stop):
        a_reference.run(**where)
    assert not (paths_of(tmp_path).base / "full_reference").exists(), "a checkpoint is no result"
    a_reference.run(**where)
    assert len(asked) == 8 + 1, "only the prompt in hand is run again"
    assert paths_of(tmp_path).reference(2).read_bytes() == paths_of(frozen).reference(2).read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float64"}, "another dtype"),
        ({"corpus": None}, "another corpus"),
        ({"validation": {"seed": 5}}, "another settings"),
        ({"code": None}, "another code"),
        ({"libraries": None}, r"another transformers \(5\S+, now 6.0\)"),
    ],
)
def test_unfinished_work_begun_with_something_else_is_refused(
    tmp_path, small_settings, small_corpus, monkeypatch, change, words
):
    (start, stop), *_ = a_reference.blocks(small_settings)
    a_reference.run_block(corpus=small_corpus, root=tmp_path / "root", settings=small_settings, start=start, stop=stop)
    before = {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()}
    settings = small_settings
    for part, value in change.items():
        if part == "corpus":
            tokenizer = load_corpus(small_corpus).metadata.tokenizer_sha256
            small_corpus = write_corpus(tmp_path / "corpus", windows()[::-1], tokenizer_sha256=tokenizer)
        elif part == "code":
            monkeypatch.setattr(inputs, "stages_code_sha256", lambda: "0" * 64)
        elif part == "libraries":
            real = identity.version
            monkeypatch.setattr(identity, "version", lambda name: "6.0" if name == "transformers" else real(name))
        else:
            settings = (
                changed(settings, **{part: value}) if isinstance(value, dict) else settings.model_copy(update=change)
            )
    with pytest.raises(InputError, match=words):
        a_reference.run_block(corpus=small_corpus, root=tmp_path / "root", settings=settings, start=start, stop=stop)
    assert before == {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()}


def test_another_configuration_is_another_model_and_measured_beside_the_first(
    tmp_path, small_model, small_settings, small_corpus
):
    """As are two folders of one name; neither takes up what the other left."""
    folder = shutil.copytree(small_model, tmp_path / "small")
    edited = shutil.copytree(small_model, tmp_path / "edited" / "small")
    write_json(edited / "config.json", read_json(edited / "config.json") | {"rms_norm_eps": 0.5})
    references = []
    for place in (folder, edited):
        settings = small_settings.model_copy(update={"model": str(place)})
        receipt = a_reference.run(corpus=small_corpus, root=tmp_path / "root", settings=settings)
        references.append([path for path, _ in receipt.files if path.endswith("0.safetensors")][0])
    first, second = (load_tensors(tmp_path / "root" / path)["n8"] for path in references)
    assert len(set(references)) == 2 and not np.allclose(first, second)


def test_mean_of_seeds_averages_the_facts(tmp_path, small_settings, small_corpus, paths_of):
    settings = changed(small_settings, validation={"negligible_seed_deviation": 0.0})
    for stage in (*STAGES_A_TO_C, d_official):
        stage.run(corpus=small_corpus, root=tmp_path, settings=settings)
    base = paths_of(tmp_path).base
    manifest = read_json(base / "freeze_manifest.json")
    spread = [layer for layer, frozen in manifest["layers"].items() if frozen.get("reporting") == "mean of seeds"]
    assert spread, "the fixture must have a layer whose sketch seeds differ"
    layer = spread[0]
    folders = [paths_of(tmp_path).factors(int(layer), seed) for seed in (None, 1, 2)]
    assert {(folder / "Q.pt").relative_to(base).as_posix() for folder in folders} <= set(manifest["files"])
    queries = benchmark_queries(settings)
    labels, states = Labels.of(queries), query_states(load_model(settings.model), queries, [int(layer)], "states")
    raw = states.states[int(layer)].double()
    lam_rel = manifest["lam_rel"][layer]["iss"]
    tables = [labels.iss(load_factors(folder)[0].reduce(raw), lam_rel=lam_rel, width=32) for folder in folders]
    expected = np.mean([table.iss for table in tables], axis=0)
    rows = [row for row in read_iss_file(paths_of(tmp_path), "fact_layers") if row.layer == int(layer)]
    found = [row for row in rows if row.metric == "ISS"]
    assert np.allclose([row.iss for row in found], expected) and not np.allclose(expected, tables[0].iss)
    for index, row in enumerate(found):
        for seed, table in zip((0, 1, 2), tables, strict=True):
            kept = row.seeds[seed]
            assert kept.seed == seed
            numbers = (kept.s_plus, kept.s_minus, kept.iss)
            assert numbers == pytest.approx(tuple(table.loc[index, ["s_plus", "s_minus", "iss"]]))
    assert all(row.seeds is None for row in rows if row.metric == "Raw-ISS")


def test_calibration_sigma_is_a_column_of_its_own(measured, frozen, small_settings):
    base, _ = measured
    rows = read_json(base / "iss_model_summary.json")["per_layer"]
    assert all(row["raw_iss_calibration_sigma"] is not None for row in rows)
    assert all((row["iss_calibration_sigma"] is None) == (row["iss"] is None) for row in rows)
    assert any(row["raw_iss_calibration_sigma"] != pytest.approx(row["raw_iss"], abs=1e-4) for row in rows)


def test_corpus_rule_marks_one_size_per_layer(frozen, small_settings, paths_of):
    rows = read_json_lines(paths_of(frozen).validation("corpus_convergence.jsonl"))
    for layer in small_settings.iss.layers:
        own = [row for row in rows if row["layer"] == layer]
        assert [row["n"] for row in own] == small_settings.estimator.corpus_sizes
        (chosen,) = [row for row in own if row["chosen"]]
        assert chosen == next((row for row in own if row["converged"]), own[-1])
        assert own[-1]["cosine_to_2n"] is None and own[-1]["converged"] is False


def test_all_layers_have_references_where_asked_for(tmp_path, small_settings, small_corpus, paths_of):
    settings = changed(small_settings, estimator={"reference_layers": "all"})
    a_reference.run(corpus=small_corpus, root=tmp_path, settings=settings)
    assert sorted(path.stem for path in paths_of(tmp_path).references.glob("*.safetensors")) == ["0", "1", "2"]
    rows = read_json(paths_of(tmp_path).iss_file("comparison"))["rows"]
    assert {row["power_iterations"] for row in rows if row["layer"] == 1} == {0}, "outside the window plain estimators"
    assert {row["power_iterations"] for row in rows if row["layer"] == 0} == {0, 1}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *(
            (lambda content, part=part: content["key"].__setitem__(part, "0"), f"{part}: references were made with 0")
            for part in ("model.safetensors", "config.json", "tokenizer.json", "dtype", "torch")
        ),
        (lambda content: content["key"].__setitem__("null", "redrawn_weights"), "null: references were made with"),
        (lambda content: content.pop("key"), "key: is missing"),
        (lambda content: content["files"].__setitem__("2", "0" * 64), "2.safetensors: is not the file stage A wrote"),
        (lambda content: content["files"].pop("2"), "no exact reference of layer 2"),
        (lambda content: content.__setitem__("corpus_sizes", [2, 4]), "no reference over 8 prompts"),
    ],
)
def test_validation_takes_only_its_own_references(root, small_settings, small_corpus, damage, message, paths_of):
    path = paths_of(root).reference_metadata
    content = read_json(path)
    damage(content)
    write_json(path, content)
    with pytest.raises(InputError, match=message):
        b_validate.run(corpus=small_corpus, root=root, settings=small_settings)


def test_settings_that_are_not_read_neither_stop_a_stage_nor_start_it_again(
    validated, tmp_path, small_settings, small_corpus
):
    """Layers and ranks of the alternatives, of the nulls and the six axes are none of stages A to D."""
    other = changed(
        small_settings,
        alternatives={"layers": [0, 28], "ranks": [64]},
        nulls={"layers": [99]},
        protocol={"support_size": 7},
    )
    root = shutil.copytree(validated, tmp_path / "root")
    c_freeze.run(corpus=small_corpus, root=root, settings=small_settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "exact_jacobian", lambda *_: pytest.fail("summed again"))
        a_reference.run(corpus=small_corpus, root=root, settings=other)
    d_official.run(corpus=small_corpus, root=root, settings=other)
    with pytest.raises(InputError, match="alternatives.layers: 28 is not a source layer"):
        alternatives.run(corpus=small_corpus, root=root, settings=other)


def test_depths_are_resolved_for_the_model_and_recorded_so(tmp_path, small_settings, small_corpus, paths_of, frozen):
    """Depths 0.0 and 0.67 of three blocks are layers 0 and 2; ranks of the width and more are left out."""
    ranks = {"ranks": [*small_settings.estimator.ranks, 32, 512]}
    depths = changed(small_settings, iss={"layers": [0.0, 0.67]}, estimator=ranks, alternatives={"layers": [0.0, 0.67]})
    for stage in STAGES_A_TO_C:
        stage.run(corpus=small_corpus, root=tmp_path, settings=depths)
    settings = read_json(paths_of(tmp_path).manifest)["settings"]
    assert settings["iss"]["layers"] == settings["alternatives"]["layers"] == [0, 2]
    assert settings["estimator"]["ranks"] == small_settings.estimator.ranks
    for layer in (0, 2):
        name = paths_of(Path()).reference(layer)
        assert (tmp_path / name).read_bytes() == (frozen / name).read_bytes()


@pytest.fixture
def undefined(small_settings):
    """One relation at layer 0, where every prompt of a family ends alike: family explains every state."""
    return changed(small_settings, iss={"calibration_relations": 1}, validation={"activations": 8})


def test_iss_that_is_undefined_for_every_fact_is_null_with_a_reason(tmp_path, undefined, small_corpus, paths_of):
    for stage in (*STAGES_A_TO_C, d_official, alternatives):
        receipt = stage.run(corpus=small_corpus, root=tmp_path, settings=undefined)
        write_manifest(tmp_path, dict(receipt.files))
    reproduce(tmp_path)
    assert [str(check) for check in verify(tmp_path, project_folder()) if check.status == "FAIL"] == []
    records = read_iss(paths_of(tmp_path))
    rows = [row for row in records.comparison.rows if row.layer == 0]
    assert rows and all(row.E_ISS is None and "undefined" in row.reason and row.E_F > 0 for row in rows)
    assert all(row.E_ISS is not None and row.reason is None for row in records.comparison.rows if row.layer == 2)
    assert all(row.iss is None and not row.passed for row in records.actions if row.layer == 0)
    assert records.freeze.layers["0"].status == "unresolved" and records.freeze.lam_rel["0"].raw is None
    (summary,) = [row for row in records.summary.per_layer if row.layer == 0]
    assert summary.raw_iss is None and summary.iss is None and summary.lam_rel_raw is None
    facts = [row for row in records.fact_layers if row.layer == 0]
    assert facts and all(row.iss is None and "no covariance" in row.reason for row in facts)
    assert records.raw.mean is None and "no covariance" in records.raw.reason


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"seed": 1}, "corpus.json: settings.seed: was built with 1, corpus.seed is 0"),
        ({"windows_per_article": 8}, "settings.windows_per_article: was built with 8"),
        ({"tokenizer_sha256": "f" * 64}, "tokenizer_sha256: was built for ffff"),
    ],
)
@pytest.mark.parametrize("stage", [*STAGES_A_TO_C, d_official, alternatives], ids=lambda stage: stage.__name__[-8:])
def test_a_corpus_of_other_settings_is_refused_by_every_stage(
    root, tmp_path, small_settings, small_corpus, stage, metadata, message
):
    tokenizer = load_corpus(small_corpus).metadata.tokenizer_sha256
    if stage is c_freeze and "tokenizer_sha256" in metadata:
        pytest.skip("no model is loaded; what stage B made with the corpus was held against it")
    other = write_corpus(tmp_path / "corpus", **{"tokenizer_sha256": tokenizer} | metadata)
    with pytest.raises(InputError, match=message):
        stage.run(corpus=other, root=root, settings=small_settings)
    short = write_corpus(tmp_path / "short", windows(length=8), tokenizer_sha256=tokenizer)
    with pytest.raises(InputError, match="settings.sequence_length: was built with 8, corpus.sequence_length is 16"):
        stage.run(corpus=short, root=root, settings=small_settings)
