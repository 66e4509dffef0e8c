"""Tables against plain recomputation from the records."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.records.base import validate
from sparse_control.records.published import read_published
from sparse_control.records.read import Records, read_records
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.parts import all_tables
from sparse_control.tables.protocol import NOT_SUPPORTED
from sparse_control.tables.registry import TABLES
from sparse_control.tables.table import cell_text, rows_of
from tests.support.measured_iss import LAYERS
from tests.support.measured_root import measurement
from tests.support.tables import of_model, only

PROJECT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def records(built_root):
    return read_records(built_root, PROJECT)


@pytest.fixture(scope="module")
def frames(records):
    return all_tables(records)


@pytest.fixture(scope="module")
def toy(records):
    (model,) = records.models
    return model


def seeds(model, **where):
    return [r for r in model.six_axis if all(getattr(r, name) == value for name, value in where.items())]


def reached(*rows):
    measurements = tuple(validate(Measurement, row, "a record") for row in rows)
    return only(TABLES["reachability"].frame(of_model(six_axis=measurements)))


IOI = {"task": "ioi", "selector": "coverage_driver", "condition": "P"}


def norm(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def test_reachability_is_per_seed_then_mean_and_sample_deviation(toy, frames):
    values = []
    for record in seeds(toy, **IOI):
        e = record.evaluate
        values.append(norm(e.target, e.patched[e.doses.index(1)]) / (norm(e.target, e.source) + 1e-8))
    found = only(frames["reachability"], **IOI)
    assert found["rel_tar_mean"] == pytest.approx(statistics.mean(values), rel=1e-12)
    assert found["rel_tar_sd"] == pytest.approx(statistics.stdev(values), abs=1e-12)
    for epsilon in ("0.30", "0.35", "0.40", "0.45", "0.50"):
        assert found[f"passes_{epsilon}"] == sum(value <= float(epsilon) for value in values)
    assert only(frames["reachability"], **IOI | {"condition": "F"})["passes_0.50"] == 0


def test_one_seed_has_no_deviation():
    found = reached(measurement())
    assert found["n_seeds"] == 1 and found["rel_tar_sd"] is None


def test_unsupported_tasks_stay_visible(frames):
    for name in ("reachability", "signed_reversal", "dose_response", "feedback", "preservation", "reuse", "summary"):
        found = only(frames[name], task="refusal")
        assert found["status"] == NOT_SUPPORTED and found["n_seeds"] == 0 and found["seeds_not_supported"] == 3
        assert all(found[column] is None for column in list(found)[7:])


def test_partly_supported_task_counts_both():
    found = reached(*(measurement(seed=seed, supported=seed != 1) for seed in range(3)))
    assert (found["n_seeds"], found["seeds_not_supported"]) == (2, 1)


def test_feedback_counts_endpoints_over_seeds(toy, frames):
    found = only(frames["feedback"], **IOI)
    ends = [end for record in seeds(toy, **IOI) for end in record.feedback.endpoints]
    assert found["endpoints"] == len(ends) == 12
    assert found["hits"] == sum(abs(end.target - end.terminal_margin) <= 0.3 for end in ends)
    assert found["mae"] == pytest.approx(sum(abs(end.target - end.terminal_margin) for end in ends) / 12)


def test_feedback_already_met_is_apart():
    end = {"target": 1.0, "initial_margin": 0.9, "terminal_margin": 0.9, "tolerance": 0.3}
    far = {"target": 1.0, "initial_margin": 0.0, "terminal_margin": 0.9, "tolerance": 0.3, "clipped": True}
    found = over_seeds.feedback([end, far])
    assert (found["hits"], found["already_met"], found["hits_not_already_met"], found["clipped"]) == (2, 1, 1, 1)


def test_reversal_keeps_infinite_and_undefined_explicit():
    zero, away = [0.0], [3.0]
    found = over_seeds.signed_reversal([(zero, away, zero), (zero, zero, zero), (zero, away, [1.0])])
    assert (found["infinite"], found["undefined"], found["passes"]) == (1, 1, 2)
    assert found["ratio_mean"] == 2.0 and found["ratio_sd"] is None


def test_dose_counts_ordered_reversed_and_undefined_apart():
    doses, up = [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]
    found = over_seeds.dose_response([(doses, up), (doses, up[::-1]), (doses, [1.0] * 3), (doses, None)])
    assert (found["ordered"], found["reversed"], found["undefined"], found["rho_mean"]) == (1, 1, 2, 0.0)
    assert over_seeds.curve([1.0], [1.0], [[2.0]]) is None


def test_reuse_without_a_gap_is_none():
    assert over_seeds.reuse([([1.0], [1.0], [2.0], None)]) == {
        "refit_mean": None,
        "refit_sd": None,
        "frozen_mean": None,
        "frozen_sd": None,
        "no_gap": 1,
    }


def test_preservation_covers_all_prompt_seed_observations(toy, frames):
    values = sorted(kl for record in seeds(toy, **IOI) for kl in record.preservation.kl)
    found = only(frames["preservation"], **IOI)
    assert found["n"] == 18 and found["max"] == values[-1] and found["p95"] == values[17]
    assert found["median"] == pytest.approx(statistics.median(values))


def test_summary_is_coverage_driver_with_pair_directions(frames):
    assert set(frames["summary"]["selector"]) == {"coverage_driver"} and set(frames["summary"]["condition"]) == {"P"}
    assert only(frames["summary"], task="ioi")["refit_mean"] == only(frames["reuse"], **IOI)["refit_mean"]


def test_unresolved_layers_have_raw_iss_alone(toy, frames):
    found = only(frames["official_iss"], layer="8")
    assert found["status"] == "unresolved" and found["iss"] is None and found["raw_iss"] is not None
    official = only(frames["official_iss"], layer="validated layers")
    assert official["iss"] == pytest.approx(toy.iss.summary.ISS.mean, rel=1e-12)
    assert [official["iss_bca_low"], official["iss_bca_high"]] == toy.iss.summary.ISS.bca
    assert official["raw_iss"] is not None and official["raw_iss_bca_low"] is None
    ablation = only(frames["official_iss"], layer="all layers")
    assert ablation["status"] == "ablation only" and ablation["iss"] is None
    assert ablation["raw_iss"] == pytest.approx(toy.iss.raw.mean, rel=1e-12)


def test_layer_means_come_from_the_facts(toy, frames):
    facts = [r.iss for r in toy.iss.fact_layers if (r.metric, r.layer) == ("ISS", 2)]
    assert only(frames["official_iss"], layer="2")["iss"] == pytest.approx(sum(facts) / len(facts), rel=1e-12)


def test_estimator_validation_shows_every_layer(frames):
    frame = frames["estimator_validation"]
    assert dict(zip(frame["layer"], frame["status"], strict=True)) == LAYERS
    assert list(frame["k"]) == [64, 64, 64] and list(frame["rungs"]) == [2, 2, 2]


def test_setup_counts_what_the_records_have(frames, toy):
    found = {row_["quantity"]: row_["value"] for row_ in frames["setup"].to_dict("records")}
    assert found["model"] == "toy-model" and found["weights, SHA-256"] == "a" * 12 + "..."
    assert found["benchmark"] == "3 relations, 9 facts" and found["six-axis seeds"] == "0, 1, 2"
    assert found["ioi: pairs kept of built"] == "fit 36/36, evaluate 12/12, reuse 12/12"
    assert found["refusal: pairs kept of built"] == "fit 3/36, evaluate 3/36, reuse 3/36"


def test_full_rank_is_marked_as_exact(records, toy):
    rungs = [rung.model_copy(update={"k_over_d": rung.k / 96}) for rung in toy.iss.actions]
    iss = replace(toy.iss, actions=tuple(rungs))
    assert all(TABLES["estimator_validation"].frame(of_model(iss=iss))["r_is_d"])
    marked = TABLES["rank_curve"].frame(of_model(iss=iss))
    assert [row_["r"] == 96 for row_ in marked.to_dict("records")] == list(marked["r_is_d"])


def test_rank_curve_averages_sketch_seeds(frames):
    found = only(frames["rank_curve"], layer=2, k=32, probe="gaussian")
    assert found["seeds"] == 3
    assert found["E_vec"] == pytest.approx(0.125 + 0.01) and found["E_vec_sd"] == pytest.approx(0.01)
    assert found["noise_floor_E_vec"] == 0.02


def test_without_a_validated_layer_there_is_no_official_number(toy):
    summary_ = toy.iss.summary.model_copy(
        update={
            "validated_layers": [],
            "unresolved_layers": [2, 5, 8],
            "ISS": None,
            "per_layer": [row_.model_copy(update={"status": "unresolved"}) for row_ in toy.iss.summary.per_layer],
        }
    )
    frame = TABLES["official_iss"].frame(of_model(iss=replace(toy.iss, summary=summary_)))
    assert all(value is None for value in frame["iss"]) and set(frame["status"]) == {"unresolved", "ablation only"}
    assert (
        only(frame, layer="validated layers")["raw_iss"] is None
        and only(frame, layer="all layers")["raw_iss"] is not None
    )


def test_seed_stability_shows_the_setting_of_the_validation_table(frames):
    assert set(frames["seed_stability"]["k"]) == {64} and list(frames["seed_stability"]["layer"]) == [2, 2, 5, 5, 8, 8]


def test_published_figures_are_those_of_the_source_document(frames):
    frame = frames["published"]
    at = {"source_table": "reachability", "task": "mcqa_stem", "condition": "F", "statistic": "rel_tar_mean"}
    assert only(frame, **at)["published"] == "1.031" and only(frame, **at)["ours"] is None
    hits = only(frame, source_table="feedback", task="ioi", condition="P", statistic="hits")
    assert hits["published"] == "24/24" and hits["selector"] == "driver_omp" and hits["ours_of"] == 12
    assert len(frame[frame["variant"].isna()]) == sum(map(len, read_published(PROJECT)["tables"].values()))


def test_variants_of_the_source_document_are_beside_its_figures(records):
    """IOI on the fitting pairs, feedback over seeds 0 to 2, and Sentiment with 8 sites at a fixed dose."""
    rows = [measurement("ioi", seed=seed) for seed in range(4)]
    rows += [measurement("ioi", "driver_omp", seed=seed) for seed in range(4)]
    rows += [measurement("ioi_same_panel", seed=seed) for seed in range(2)]
    rows += [measurement("sentiment", "coverage_driver_k8", seed=seed) for seed in range(2)]
    measured = tuple(validate(Measurement, row, "a record") for row in rows)
    frame = TABLES["published"].frame(of_model(six_axis=measured, published=records.published))
    reach = {"source_table": "reachability", "condition": "P", "statistic": "passes_0.40"}
    same = only(frame, **reach, task="ioi_same_panel")
    assert (same["variant"], same["published"], same["ours_of"]) == ("same panel", "10/10", 2)
    assert only(frame, **reach, task="ioi")["ours_of"] == 4
    hits = only(frame, source_table="feedback", task="ioi", condition="P", statistic="hits")
    assert (hits["first_seeds"], hits["ours_of"]) == (3, 12), "four targets, of seeds 0 to 2 alone"
    fixed = only(frame, source_table="reuse", task="sentiment", selector="coverage_driver_k8")
    assert (fixed["statistic"], fixed["published"], fixed["variant"]) == ("frozen_mean", "1.03", "k = 8, fixed dose")
    recovered = over_seeds.reuse([(s.source, s.target, s.refit, s.frozen) for s in (r.reuse for r in measured[-2:])])
    assert fixed["ours"] == recovered["frozen_mean"] != recovered["refit_mean"]
    shown = TABLES["published"].printed(rows_of(frame))
    assert {row["task"] for row in shown} == {"ioi", "ioi_same_panel", "sentiment"}, "no row without a figure of ours"
    of_same_panel = [row["statistic"] for row in rows_of(frame) if row["task"] == "ioi_same_panel"]
    assert "frozen_mean" in of_same_panel and "refit_mean" not in of_same_panel


def test_published_never_feeds_ours(records, toy):
    without = of_model(iss=toy.iss, published=records.published)
    frame = TABLES["published"].frame(without)
    assert len(frame) and all(value is None for value in frame["ours"])


def test_published_file_errors_name_the_entry(tmp_path):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "published.yaml").write_text(
        "{document: d, model: m, selector: s, tables: {reuse: [{task: ioi, condition: P}]}}"
    )
    with pytest.raises(InputError, match=r"tables\.reuse\.0\.statistic: Field required"):
        read_published(tmp_path)


def test_empty_records_make_empty_tables():
    for name, frame in all_tables(Records()).items():
        assert len(frame) == 0 and "model" in frame.columns, name


def test_a_figure_of_no_column_of_ours_is_named():
    figure = {"task": "ioi", "condition": "P", "statistic": "hits"}
    records = of_model(published={"selector": "s", "tables": {"summary": [figure], "reuse": [figure]}})
    with pytest.raises(InputError, match=r"published\.yaml: tables\.reuse\.0: statistic: no such column, got 'hits'"):
        TABLES["published"].frame(records)


def test_order_of_files_does_not_matter(records, toy):
    shuffled = of_model(six_axis=toy.six_axis[::-1], iss=toy.iss, published=records.published)
    for name, table in TABLES.items():
        assert table.frame(shuffled).equals(table.frame(records)), name


def test_cells_never_hold_nan(frames):
    for frame in frames.values():
        for cells in frame.itertuples(index=False):
            assert not any(isinstance(cell, float) and math.isnan(cell) for cell in cells)
    assert [cell_text(value) for value in (None, 0.1, 3, "x")] == ["", "0.1", "3", "x"]


def test_values_out_of_range_are_named(toy):
    first = toy.six_axis[0]
    huge = first.evaluate.model_copy(update={"target": [1e308] * 4, "source": [-1e308] * 4})
    broken = first.model_copy(update={"evaluate": huge})
    with pytest.raises(InputError, match="table reachability: "):
        all_tables(of_model(six_axis=(broken,)))


def test_summary_ignores_other_selectors(toy):
    only_omp = of_model(six_axis=tuple(seeds(toy, selector="driver_omp")))
    assert len(TABLES["summary"].frame(only_omp)) == 0
