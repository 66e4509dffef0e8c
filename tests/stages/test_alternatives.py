"""Named alternatives on a small model: judged by the official rule, kept apart, never official."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines, write_json
from sparse_control.jacobian.actions import action_agreement
from sparse_control.jacobian.alternatives import (
    DeflatedFactors,
    activation_factors,
    deflated_factors,
    output_sketch,
    svd_factors,
)
from sparse_control.jacobian.operator import DenseOperator
from sparse_control.jacobian.store import load_factors
from sparse_control.models import load_model
from sparse_control.models.stream import residual_stream
from sparse_control.settings import Settings
from sparse_control.stages import a_reference, alternatives, b_validate, c_freeze
from sparse_control.stages.calibration import load_calibration
from sparse_control.stages.ladder import Evidence, failures
from sparse_control.stages.resolve import resolved
from sparse_control.stages.sketches import load_reference
from tests.stages.conftest import changed

FILE = "alternatives.jsonl"


@pytest.fixture(scope="module")
def settings(small_settings) -> Settings:
    """Ranks up to full width with the oversampling, and a rule that some ranks pass and some fail."""
    strict = {"median_relative_error": 0.3, "median_cosine": 0.9}
    return changed(small_settings, alternatives={"ranks": [4, 8, 16, 30]}, validation=strict)


@pytest.fixture(scope="module")
def official(tmp_path_factory, settings, small_corpus):
    """A root after stages A to C."""
    root = tmp_path_factory.mktemp("official")
    for stage in (a_reference, b_validate, c_freeze):
        stage.run(corpus=small_corpus, root=root, settings=settings)
    return root


@pytest.fixture(scope="module")
def judged(official, tmp_path_factory, settings, small_corpus):
    """(root, receipt) of a run on a copy of the official root."""
    root = shutil.copytree(official, tmp_path_factory.mktemp("judged") / "root")
    return root, alternatives.run(corpus=small_corpus, root=root, settings=settings)


@pytest.fixture
def references(official, tmp_path, paths_of):
    """A root with stage A's files alone."""
    base = paths_of(tmp_path / "root").base
    for name in ("full_reference", "transported_states"):
        shutil.copytree(paths_of(official).base / name, base / name)
    return tmp_path / "root"


def contents(root) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_official_files_stay_byte_identical(official, judged, settings, small_corpus, paths_of):
    root, receipt = judged
    before, after = contents(official), contents(root)
    assert {name: after[name] for name in before} == before
    new = set(after) - set(before)
    rows, factors = paths_of(Path()).validation(FILE).as_posix(), f"{paths_of(Path()).base.as_posix()}/alternatives/"
    assert rows in new and all(name.startswith((factors, "code/", rows)) for name in new)
    windows = load_corpus(small_corpus)
    c_freeze.load_freeze(paths_of(root), resolved(settings), windows.sha256)  # the freeze still holds
    assert receipt.broken(root) == [] and rows in dict(receipt.files)


def test_one_row_for_every_layer_alternative_and_rank(judged, settings, paths_of):
    rows = read_json_lines(paths_of(judged[0]).validation(FILE))
    kinds = [("svd", None), ("qb_deflated", 0), ("qb_deflated", 1), ("qb_activation", 0), ("output_sketch", None)]
    expected = [(layer, *kind, k) for layer in (0, 2) for kind in kinds for k in (4, 8, 16, 30)]
    assert [(row["layer"], row["estimator"], row["power_iterations"], row["k"]) for row in rows] == expected
    for row in rows:
        assert row["oversampling"] == (0 if row["estimator"] == "output_sketch" else 2)
        assert row["r"] == min(32, row["k"] + row["oversampling"])
        assert row["seed"] == (None if row["estimator"] == "svd" else settings.estimator.sketch_seeds[0])
        assert (row["probe"] is None) == (row["estimator"] == "svd") and row["corpus_size"] == 8
    deviations = {row["estimator"]: row["iss_seed_deviation"] for row in rows if row["k"] == 4}
    assert deviations["svd"] == 0 and all(deviations[name] > 0 for name in deviations if name != "svd")


def test_verdicts_are_those_of_the_official_rule(judged, settings, paths_of):
    rows = [row for row in read_json_lines(paths_of(judged[0]).validation(FILE)) if row["estimator"] != "output_sketch"]
    names = ("median_cosine", "median_relative_error", "iss_rank_difference", "iss_seed_deviation")
    for row in rows:
        failed = failures(Evidence(*(row[name] for name in names)), settings.validation)
        assert row["passed"] == (not failed)
        assert row["reason"] == ("; ".join(failed) or ("r = d: exact up to rounding" if row["r"] == 32 else None))
    assert {row["passed"] for row in rows} == {True, False}, "the fixture must accept some and refuse some"


@pytest.mark.parametrize("name", ["svd", "qb_deflated", "qb_activation", "output_sketch"])
def test_every_figure_by_a_plain_recomputation(judged, settings, small_corpus, name, paths_of):
    """Dense matrices, separate runs at k and 2k for every seed, and the formulas as they are written."""
    paths, layer, k, p = paths_of(judged[0]), 2, 8, 2
    calibration, matrix = load_calibration(paths, settings, [0, 2], 32), load_reference(paths.reference(layer), [8])[8]
    windows = load_corpus(small_corpus).input_ids
    probes = residual_stream(load_model(settings.model), torch.as_tensor(windows))[:, layer]
    build = {
        "svd": lambda rank, seed: svd_factors(matrix, rank, p),
        "qb_deflated": lambda rank, seed: deflated_factors(DenseOperator(matrix), rank, p, 1, seed),
        "qb_activation": lambda rank, seed: activation_factors(DenseOperator(matrix), probes, rank, p, 0, seed),
        "output_sketch": lambda rank, seed: output_sketch(DenseOperator(matrix), rank, seed),
    }[name]
    states, width = calibration.states[layer], matrix.shape[0]
    labels, lam_rel = calibration.labels, calibration.labels.lam_rel(states @ matrix.T)

    def table(estimate) -> pd.DataFrame:
        z = estimate.reduce(states) if name == "output_sketch" else estimate.apply(states)
        return labels.iss(z, lam_rel=lam_rel, width=width)

    exact = labels.iss(states @ matrix.T, lam_rel=lam_rel, width=width).iss
    seeds = settings.estimator.sketch_seeds
    tables = [table(build(k, seed)).iss for seed in seeds]
    expected = {
        "iss": tables[0].mean(),
        "E_ISS": abs(exact.mean() - tables[0].mean()),
        "rho_fact": exact.corr(tables[0], method="spearman"),
        "iss_rank_difference": abs(table(build(2 * k, seeds[0])).iss.mean() - tables[0].mean()),
        "iss_seed_deviation": np.std([one.mean() for one in tables], ddof=1),
    }
    if name != "output_sketch":
        estimate, held_out = build(k, 0).apply(torch.eye(width, dtype=torch.float64)).T, calibration.activations(layer)
        expected["E_F"] = float((matrix - estimate).norm() / matrix.norm())
        for ending, rows in (("", held_out), ("_centred", held_out - held_out.mean(0))):
            direct, estimated = rows @ matrix.T, rows @ estimate.T
            errors = (direct - estimated).norm(dim=1) / direct.norm(dim=1)
            cosines = torch.cosine_similarity(direct, estimated, dim=1)
            expected |= {f"E_vec{ending}": float(errors.mean()), f"C_vec{ending}": float(cosines.mean())}
            if not ending:
                expected["median_relative_error"] = float(np.median(errors))
                expected["median_cosine"] = float(np.median(cosines))
    power = {"qb_deflated": 1, "qb_activation": 0}.get(name)
    (row,) = (
        row
        for row in read_json_lines(paths_of(judged[0]).validation(FILE))
        if (row["layer"], row["estimator"], row["power_iterations"], row["k"]) == (layer, name, power, k)
    )
    assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_full_width_is_exact_and_the_svd_is_the_floor(judged, paths_of):
    rows = read_json_lines(paths_of(judged[0]).validation(FILE))
    floor = {(row["layer"], row["r"]): row["E_F"] for row in rows if row["estimator"] == "svd"}
    for row in rows:
        if row["estimator"] == "qb_activation":
            assert row["E_F"] >= floor[row["layer"], row["r"]] - 1e-12
        if row["r"] == 32:
            assert max(row["E_F"], row["E_vec"], row["E_vec_centred"], row["E_ISS"]) < 1e-6
            # all states of layer 0 are one embedding, so no fact differs from another there
            assert row["rho_fact"] is None if row["layer"] == 0 else row["rho_fact"] > 0.999
    for start in range(0, len(rows), 4):
        errors = [row["E_F"] for row in rows[start : start + 4]]
        assert errors == [None] * 4 or errors[0] > errors[1] > errors[2] > errors[3]


def test_a_sketch_has_no_action_and_is_never_accepted(judged, paths_of):
    rows = [row for row in read_json_lines(paths_of(judged[0]).validation(FILE)) if row["estimator"] == "output_sketch"]
    undefined = ("E_F", "E_vec", "C_vec", "E_vec_centred", "C_vec_centred", "median_cosine", "median_relative_error")
    for row in rows:
        assert all(row[name] is None for name in undefined) and row["E_ISS"] is not None and row["iss"] is not None
        assert not row["passed"] and not row["chosen"]
        assert row["reason"].startswith(alternatives.NO_ACTION) and "nan" not in row["reason"]
    assert not (paths_of(judged[0]).base / "alternatives/output_sketch").exists()


def test_the_smallest_passing_rank_is_kept_and_reproduces_its_row(judged, settings, paths_of):
    root, _ = judged
    paths, rows = paths_of(root), read_json_lines(paths_of(root).validation(FILE))
    calibration = load_calibration(paths, settings, [0, 2], 32)
    kept = [row for row in rows if row["chosen"]]
    passing = {(row["layer"], row["estimator"]) for row in rows if row["passed"]}
    assert passing and sorted((row["layer"], row["estimator"]) for row in kept) == sorted(passing)
    for row in kept:
        same = [other for other in rows if (other["layer"], other["estimator"]) == (row["layer"], row["estimator"])]
        assert row["k"] == min(other["k"] for other in same if other["passed"])
        estimate, metadata = load_factors(paths.alternative(row["estimator"], row["layer"]))
        assert metadata["official"] is False and metadata["estimator"] == row["estimator"] and estimate.rank == row["k"]
        deflated = row["estimator"] == "qb_deflated"
        assert (metadata["shift"] is not None) == deflated
        if deflated:
            estimate = DeflatedFactors(metadata["shift"], estimate)
        matrix = load_reference(paths.reference(row["layer"]), [8])[8]
        held_out = calibration.activations(row["layer"])
        agreement = action_agreement(held_out @ matrix.T, estimate.apply(held_out))
        assert agreement.median_relative_error == pytest.approx(row["median_relative_error"], abs=1e-5)
        if deflated:
            assert estimate.shift == pytest.approx(float(matrix.trace()) / 32, rel=1e-12)
    saved = {path.parent for path in (paths_of(root).base / "alternatives").rglob("metadata.json")}
    assert saved == {paths.alternative(row["estimator"], row["layer"]) for row in kept}


def test_a_rerun_is_byte_identical_and_drops_what_is_no_longer_chosen(
    judged, tmp_path, settings, small_corpus, paths_of
):
    root = shutil.copytree(judged[0], tmp_path / "root")
    stale = paths_of(root).alternative("svd", 1)
    shutil.copytree(next((paths_of(root).base / "alternatives").rglob("metadata.json")).parent, stale)
    receipt = alternatives.run(corpus=small_corpus, root=root, settings=settings)
    assert not stale.exists() and contents(root) == contents(judged[0]) and receipt == judged[1]
    nothing = changed(settings, validation={"median_cosine": 1.0, "median_relative_error": 0.0})
    shutil.rmtree(paths_of(root).base / "full_reference")
    a_reference.run(corpus=small_corpus, root=root, settings=nothing)
    alternatives.run(corpus=small_corpus, root=root, settings=nothing)
    assert not list((paths_of(root).base / "alternatives").rglob("*.pt"))


def test_an_interrupted_run_is_taken_up(references, judged, settings, small_corpus, monkeypatch, paths_of):
    """The first layer is not judged again, and the outcome is the same to the byte."""
    judge_layer, layers = alternatives._judge_layer, []

    def once(inputs, calibration, layer, corpus_states):
        layers.append(layer)
        if len(layers) == 2:
            raise KeyboardInterrupt
        return judge_layer(inputs, calibration, layer, corpus_states)

    monkeypatch.setattr(alternatives, "_judge_layer", once)
    with pytest.raises(KeyboardInterrupt):
        alternatives.run(corpus=small_corpus, root=references, settings=settings)
    assert not paths_of(references).validation(FILE).exists()
    alternatives.run(corpus=small_corpus, root=references, settings=settings)
    assert (
        layers == [0, 2, 2]
        and paths_of(references).validation(FILE).read_bytes() == paths_of(judged[0]).validation(FILE).read_bytes()
    )
    assert not (paths_of(references).base / "checkpoints").exists()


def test_probe_states_are_those_of_the_last_token(settings, small_corpus):
    lm = load_model(settings.model)
    windows = load_corpus(small_corpus).input_ids
    states = alternatives.last_token_states(lm, windows, [0, 2])
    for index in (0, 7):
        single = residual_stream(lm, torch.as_tensor(windows[index : index + 1]))[0]
        for layer in (0, 2):
            assert torch.allclose(states[layer][index], single[layer].double(), atol=1e-6)
    assert states[2].shape == (8, 32) and states[2].dtype == torch.float64


def test_settings_without_references_are_refused(tmp_path, settings, small_corpus):
    without = changed(settings, estimator={"reference": False})
    with pytest.raises(InputError, match="estimator.reference: alternatives are judged against exact ref"):
        alternatives.run(corpus=small_corpus, root=tmp_path, settings=without)
    with pytest.raises(InputError, match="metadata.json: no exact references; run"):
        alternatives.run(corpus=small_corpus, root=tmp_path, settings=settings)
    assert list(tmp_path.rglob("*")) == []


def test_missing_and_foreign_references_are_refused(references, settings, small_corpus, paths_of):
    path = paths_of(references).reference_metadata
    content = read_json(path)
    for change, message in (
        ({"key": content["key"] | {"corpus": "0" * 64}}, "corpus: references were made with 0000"),
        ({"key": content["key"] | {"config.json": "other"}}, "config.json: references were made with other"),
        ({"key": None}, "key: is missing"),
        ({"corpus_sizes": [2, 4]}, "corpus_sizes: no reference over 8 prompts"),
        ({"files": {"0": content["files"]["0"]}}, "layers: no exact reference of layer 2; choose from 0, or set"),
    ):
        write_json(path, content | change)
        with pytest.raises(InputError, match=message):
            alternatives.run(corpus=small_corpus, root=references, settings=settings)
    write_json(path, content)
    (path.parent / "2.safetensors").unlink()
    with pytest.raises(InputError, match="2.safetensors: cannot be read"):
        alternatives.run(corpus=small_corpus, root=references, settings=settings)
    assert not paths_of(references).validation(FILE).exists()


def test_ranks_that_do_not_fit(references, settings, small_corpus):
    with pytest.raises(InputError, match="alternatives.ranks: none is below the width 32"):
        wide = changed(settings, alternatives={"ranks": [32, 64]})
        alternatives.run(corpus=small_corpus, root=references, settings=wide)
