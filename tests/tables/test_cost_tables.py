"""Tables of what a patch costs, against plain recomputation, with records of older code among them."""

import math
import statistics
from copy import deepcopy

import numpy as np
import pytest

from sparse_control.metrics.cost import progress_at_budget
from sparse_control.metrics.dose import progress
from sparse_control.records.base import validate
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.parts import Part
from sparse_control.tables.registry import TABLES
from sparse_control.tables.shown import shown
from tests.support.measured_root import DOSES, measurement
from tests.support.tables import of_model, only


def with_costs(record, scale):
    """The record as the code that keeps divergences at every dose and the pairs' own contrasts has it."""
    record = deepcopy(record)
    rows = [[scale * dose**2 * (1 + prompt) for prompt in range(6)] for dose in DOSES]
    record["preservation"] |= {"kl_by_dose": rows, "kl": rows[DOSES.index(1)]}
    record["norms"]["contrast"] = [3.0, 10.0]
    return record


def built(*rows):
    return of_model(six_axis=tuple(validate(Measurement, row, "a record") for row in rows))


@pytest.fixture(scope="module")
def records():
    plain = {c: [measurement(seed=seed, condition=c) for seed in range(2)] for c in "PFO"}
    known = [with_costs(row, 0.02) for c in "PF" for row in plain[c]]
    return built(*known, *plain["O"], *[measurement(selector="driver_omp", condition="F", supported=False)])


def test_progress_at_a_budget_is_that_of_the_mean_curves(records):
    row = only(TABLES["equal_cost"].frame(records), selector="coverage_driver")
    for condition in "PF":
        chosen = [r for r in records.models[0].six_axis if r.condition == condition and r.supported]
        curves = [
            [progress(r.evaluate.source, r.evaluate.target, r.evaluate.at_dose(d)) for d in DOSES] for r in chosen
        ]
        spent = [[np.mean(kl) for kl in r.preservation.kl_by_dose] for r in chosen]
        for name, budget in (("at_0.01", 0.01), ("at_0.1", 0.1), ("at_1", 1.0)):
            expected = progress_at_budget(DOSES, np.mean(curves, axis=0), np.mean(spent, axis=0), budget)
            assert row[f"{condition}_{name}"] == pytest.approx(expected)
        assert (row[f"{condition}_seeds"], row[f"{condition}_not_measured"]) == (2, 0)
    assert (row["O_seeds"], row["O_not_measured"], row["O_at_1"]) == (0, 2, None)


def test_cells_say_what_was_not_measured_and_what_costs_more(records):
    def cells(name, records):
        table = shown(TABLES[name], TABLES[name].frame(records), Part(records=records))
        return [dict(zip(table.headings, row, strict=True)) for row in table.rows]

    (row,) = cells("equal_cost", records)
    assert row["O\n1 nat"] == "not measured" and row["P\n1 nat"] not in ("not measured", "none", "—")
    dear = built(with_costs(measurement(condition="F"), 10.0))
    (row,) = cells("equal_cost", dear)
    assert row["F\n1 nat"] == "none" and row["P\n1 nat"] == "—"
    shares = {row["Dir."]: row["|d|/|P|"] for row in cells("dose_response", records) if row["Dir."] != "—"}
    assert shares == {"P": "0.375", "F": "0.375", "O": "not measured"}  # mean of 1.5/3 and 2.5/10


def test_the_push_is_in_units_of_the_activation(records):
    row = only(TABLES["push"].frame(records), selector="coverage_driver", condition="F")
    pushes = [1.0 * 1.5 / 10.0, 0.5 * 2.5 / 20.0]
    assert row["push_median"] == pytest.approx(statistics.median(pushes * 2))
    assert (row["push_max"], row["push_max_site"]) == (pytest.approx(0.15), "L03.head.1@-1")
    assert row["push_joint_mean"] == pytest.approx(math.hypot(*pushes))
    nowhere = measurement(condition="F")
    nowhere["norms"]["activation"] = [0.0, 0.0]
    (row,) = TABLES["push"].frame(built(nowhere)).to_dict("records")
    assert row["push_median"] is None and row["push_joint_mean"] == 0
