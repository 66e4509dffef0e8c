"""Findings over facts and sites, against numpy, scipy and plain loops."""

import re

import numpy as np
import pytest
from scipy.stats import spearmanr

from sparse_control.project import project_folder
from sparse_control.records.read import read_records
from sparse_control.tables.findings_facts import _linear, _ranked, correlations, supports


@pytest.fixture(scope="module")
def toy(built_root):
    (model,) = read_records(built_root, project_folder()).models
    return model


def test_correlations_are_those_of_numpy_and_scipy(toy):
    found = correlations(toy)
    layers = toy.iss.summary.validated_layers
    by_layer = {}
    for row in toy.iss.fact_layers:
        by_layer.setdefault((row.metric, row.layer), {})[row.fact] = row.iss
    for layer in layers:
        official, raw = by_layer["ISS", layer], by_layer["Raw-ISS", layer]
        facts = [fact for fact in official if official[fact] is not None and raw[fact] is not None]
        expected = np.corrcoef([official[fact] for fact in facts], [raw[fact] for fact in facts])[0, 1]
        assert found[f"ISS and Raw-ISS over facts at layer {layer}, correlation"] == pytest.approx(expected, rel=1e-9)
    shares = toy.iss.summary.answer_accuracy.per_relation
    means = {}
    for row in toy.iss.facts:
        if row.metric == "ISS" and row.iss is not None:
            means.setdefault(row.relation, []).append(row.iss)
    relations = [relation for relation in means if relation in shares]
    expected = spearmanr([np.mean(means[r]) for r in relations], [shares[r] for r in relations]).statistic
    assert found["ISS and answers over relations, rank correlation"] == pytest.approx(expected, abs=1e-12)
    assert found["relations compared"] == len(relations)


def test_ties_constants_and_nothing():
    random = np.random.default_rng(0)
    pairs = list(zip(random.integers(0, 4, 30).tolist(), random.normal(size=30).tolist(), strict=True))
    assert _ranked(pairs) == pytest.approx(spearmanr(*zip(*pairs, strict=True)).statistic, abs=1e-12)
    for nothing in ([], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]):
        assert _linear(nothing) is None and _ranked(nothing) is None


def test_late_sites_are_counted_one_by_one(toy):
    last = max(int(re.match(r"L(\d+)", name)[1]) for record in toy.six_axis for name in record.support or ())
    found = supports(toy)
    for key, share in found.items():
        task, selector = re.match(r"(\w+), (\w+):", key).groups()
        layers = [
            int(re.match(r"L(\d+)", name)[1])
            for record in toy.six_axis
            if (record.task, record.selector, record.condition) == (task, selector, "P") and record.supported
            for name in record.support
        ]
        assert share == sum(3 * layer >= 2 * (last + 1) for layer in layers) / len(layers)
    assert found
