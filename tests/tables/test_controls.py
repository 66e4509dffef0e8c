"""Tables of controls, gate, thresholds and effects against plain recomputation, and the record fields they read."""

import math
import statistics
from copy import deepcopy

import pytest

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.records.base import validate
from sparse_control.records.read import read_records
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.parts import Part
from sparse_control.tables.protocol import MEASURED, NOT_SUPPORTED
from sparse_control.tables.registry import TABLES
from sparse_control.tables.shown import shown
from tests.support.measured_root import measurement
from tests.support.tables import of_model, only


def records(*rows):
    return of_model(six_axis=tuple(validate(Measurement, row, "a record") for row in rows))


def table(name, records):
    return TABLES[name].frame(records)


def printed(name, records):
    return shown(TABLES[name], table(name, records), Part(records=records))


def seeds(**changes):
    return [measurement(seed=seed, **changes) for seed in range(3)]


@pytest.fixture(scope="module")
def built(built_root):
    return read_records(built_root, built_root)


def norm(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def distance(record, patched):
    evaluated = record.evaluate
    return norm(evaluated.target, patched) / (norm(evaluated.target, evaluated.source) + 1e-8)


def test_random_controls_are_summed_up_over_their_draws(built):
    chosen = [r for r in built.models[0].six_axis if (r.selector, r.condition) == ("random_support", "P")]
    values = sorted(distance(record, draw.patched) for record in chosen for draw in record.draws)
    found = only(table("controls", built), selector="random_support", condition="P")
    assert found["draws"] == len(values) == 9
    assert found["draw_mean"] == pytest.approx(statistics.mean(values))
    assert found["draw_sd"] == pytest.approx(statistics.stdev(values))
    assert (found["draw_p05"], found["draw_p50"], found["draw_p95"]) == pytest.approx((values[0], values[4], values[8]))
    assert found["draw_passes"] == sum(value <= 0.4 for value in values)
    first = [distance(record, record.evaluate.at_dose(1.0)) for record in chosen]
    assert found["rel_tar_mean"] == pytest.approx(statistics.mean(first)), "the row itself is of the first draws"
    assert only(table("controls", built), task="ioi", selector="driver_omp", condition="P")["draws"] is None


def test_controls_repeat_the_axis_tables_in_a_fixed_order(built):
    frame, reached = table("controls", built), table("reachability", built)
    for row in frame.to_dict("records"):
        key = {name: row[name] for name in ("task", "selector", "condition")}
        assert row["rel_tar_mean"] == only(reached, **key)["rel_tar_mean"]
        if row["status"] == MEASURED:
            assert row["sites_mean"] == 2.0
            assert (row["predicted_mean"], row["measured_mean"]) == pytest.approx((0.9, 0.8))
    ioi = [(r["condition"], r["selector"]) for r in frame.to_dict("records") if r["task"] == "ioi"]
    assert ioi == [(c, s) for c in "PF" for s in ("driver_omp", "coverage_driver", "random_support")]


def test_nearest_ranks_of_draws():
    draws = [[([0.0], [1.0], [1.0 - value / 100]) for value in range(1, 21)]]
    found = over_seeds.draws(draws)
    assert (found["draw_p05"], found["draw_p50"], found["draw_p95"]) == pytest.approx((0.01, 0.10, 0.19))
    assert found["draws"] == 20 and found["draw_passes"] == 20
    assert over_seeds.draws([]) == {"draws": 0, "draw_mean": None, "draw_sd": None, "draw_passes": 0}


def test_wrong_way_is_per_seed_then_mean():
    assert over_seeds.wrong_way([0.0, 0.0, 5.0, 1.0], [1.0, 1.0, 1.0, 2.0], [0.5, -0.1, 6.0, 1.0]) == 0.5
    found = over_seeds.reachability([([0.0], [1.0], [-1.0]), ([0.0, 0.0], [1.0, 1.0], [1.0, -1.0])])
    assert found["wrong_way_mean"] == 0.75


def test_thresholds_stand_side_by_side(built):
    frame, reached = table("reach_counts", built), table("reachability", built)
    row = only(frame, task="ioi", selector="coverage_driver")
    for condition in "PF":
        source = only(reached, task="ioi", selector="coverage_driver", condition=condition)
        assert row[f"{condition}_seeds"] == source["n_seeds"] == 3
        for epsilon in ("0.30", "0.35", "0.40", "0.45", "0.50"):
            assert row[f"{condition}_passes_{epsilon}"] == source[f"passes_{epsilon}"]
    assert "refusal" not in set(frame["task"]), "a task that is not supported has no counts"
    alone = table("reach_counts", records(*seeds(condition="F")))
    assert alone.loc[0, "P_seeds"] is None and alone.loc[0, "F_seeds"] == 3


def test_the_gate_counts_every_pair_once(built):
    found = only(table("gate", built), task="ioi")
    assert (found["fit_kept"], found["fit_built"], found["dropped"]) == (36, 36, 0), "not once per selector"
    assert (found["pairs_from"], found["off_target_from"]) == ("own", "own") and found["reason"] is None
    refused = only(table("gate", built), task="refusal")
    assert refused["status"] == NOT_SUPPORTED and refused["seeds_not_supported"] == 3
    assert (refused["evaluate_kept"], refused["dropped"]) == (3, 99)
    assert refused["reason"] == "1 of 12 fit pairs have a gap of at least 1 logits; 6 are needed"
    assert any("6 are needed" in cell for row in printed("gate", built).rows for cell in row)


def test_a_model_that_cannot_take_the_prompts_is_in_the_gate_table_and_no_other_breaks():
    change = {"gate": None, "panels": None, "reason": "no chat template"}
    rows = [row | change for row in seeds(task="refusal", supported=False)]
    content = records(*rows, *seeds())
    found = only(table("gate", content), task="refusal")
    assert found["fit_kept"] is None and found["dropped"] is None and found["reason"] == "no chat template"
    for name in ("setup", "summary", "reachability", "reach_counts", "controls", "effects_check", "gate"):
        printed(name, content)


def test_the_effects_check_is_per_seed_and_says_what_is_undefined():
    rows = seeds()
    for row, value in zip(rows, (0.9, None, 0.5)):
        row["effects"] = row["effects"] | {"check_pearson": value}
    found = only(table("effects_check", records(*rows)), task="ioi")
    assert (found["pearson_min"], found["undefined"], found["candidates"]) == (0.5, 1, 300)
    assert found["pearson_median"] == pytest.approx(0.7) and found["kind"] == "first_order"
    none = only(table("effects_check", records(*seeds(supported=False))), task="ioi")
    assert none["status"] == NOT_SUPPORTED and none["kind"] is None


def test_print_shows_the_two_selectors_and_the_csv_all(built):
    for name in ("reachability", "signed_reversal", "dose_response", "feedback", "preservation", "reuse"):
        assert "random_support" in set(table(name, built)["selector"])
        assert {row[1] for row in printed(name, built).rows} <= {"Coverage-Driver", "Driver-OMP", "—"}
    alone = records(*seeds(selector="top_k"))
    assert {row[1] for row in printed("reachability", alone).rows} == {"top-k"}


BAD = [
    (("evaluate", "wrong_way"), [1.0] * 10, "wrong_way must be the shares that patched gives"),
    (("draws", 0, "patched"), [0.0], r"draws\.0: .*reversed must have"),
    (("draws", 1, "strengths"), [0.0], r"draws\.1: .*strengths must have"),
    (("reason",), "too weak", "gate must be given and reason null where supported is true"),
    (("candidates", "positions"), [], r"candidates\.positions"),
    (("gate",), None, "gate must be given"),
]


@pytest.mark.parametrize("path, value, message", BAD, ids=[".".join(map(str, bad[0])) for bad in BAD])
def test_bad_fields_are_named(path, value, message):
    row = deepcopy(measurement(selector="random_support"))
    place = row
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(InputError, match=message):
        records(row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": []}, "draws must be null where supported is false"),
        ({"gate": None, "reason": None}, "gate or reason must be given where supported is false"),
    ],
)
def test_unsupported_records_say_why_and_hold_nothing(change, message):
    with pytest.raises(InputError, match=message):
        records(measurement(supported=False) | change)


def test_records_without_the_later_fields_are_still_read():
    row = measurement()
    for name in ("reason", "panels", "candidates", "draws"):
        del row[name]
    del row["evaluate"]["wrong_way"]
    content = records(row)
    assert only(table("gate", content), task="ioi")["pairs_from"] is None
    assert only(table("effects_check", content), task="ioi")["candidates"] is None
    assert only(table("controls", content), task="ioi")["rel_tar_mean"] is not None
