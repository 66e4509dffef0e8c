"""The numbers of `dvc metrics show` against plain means of the records."""

import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from sparse_control.project import project_folder
from sparse_control.records.read import Records, read_records
from sparse_control.tables.metrics import metrics_files
from sparse_control.tables.parts import all_tables
from tests.support.measured_root import MEDIUM, MODEL


@pytest.fixture(scope="module")
def records(built_whole_root):
    return read_records(built_whole_root, project_folder())


@pytest.fixture(scope="module")
def told(records):
    return {name: json.loads(text) for name, text in metrics_files(records, all_tables(records)).items()}


def test_numbers_of_a_model_are_means_of_its_records(records, told):
    (model,) = (model for model in records.models if model.name == MODEL)
    shares = {}
    for record in model.six_axis:
        if (record.selector, record.condition, record.supported) == ("driver_omp", "P", True):
            read = record.evaluate
            patched = np.array(read.patched[read.doses.index(1)])
            missed = np.linalg.norm(patched - read.target) / np.linalg.norm(np.subtract(read.source, read.target))
            shares.setdefault(record.task, []).append(missed)
    numbers = told[f"metrics/{MODEL}.json"]
    assert numbers["official ISS"] == pytest.approx(model.iss.summary.ISS.mean, abs=1e-6)
    for task, values in shares.items():
        assert numbers[f"Rel_tar of {task}"] == pytest.approx(fmean(values), abs=1e-6)
    assert {name for name in numbers if name.startswith("Rel_tar")} == {f"Rel_tar of {task}" for task in shares}
    assert len(numbers) <= 5 + len(shares)


def test_what_was_not_measured_is_left_out(records, told):
    """A medium model has no six axes; the first model without its results has no ISS, and no null among its numbers."""
    assert not [name for name in told[f"metrics/{MEDIUM}.json"] if name.startswith("Rel_tar")]
    (model,) = (model for model in records.models if model.name == MODEL)
    bare = Records(models=(replace(model, iss=replace(model.iss, summary=None, fact_layers=())),))
    numbers = json.loads(metrics_files(bare, all_tables(bare))[f"metrics/{MODEL}.json"])
    assert "validated layers" in numbers and not {"official ISS", "Raw-ISS"} & set(numbers)
