"""The fixed rules, applied again: each stored decision that is not theirs is named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sparse_control.records.read import read_records
from sparse_control.stages.ladder import Convergence, Evidence, failures, reporting, starting_size
from sparse_control.verify.rules import accepted, broken_rules

PROJECT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def iss(built_root):
    return read_records(built_root, PROJECT).models[0].iss


def edited(records, field, index, **update):
    rows = list(getattr(records, field))
    rows[index] = rows[index].model_copy(update=update)
    return replace(records, **{field: tuple(rows)})


def thresholds_of(iss, **update):
    settings = iss.freeze.settings
    validation = settings.validation.model_copy(update=update)
    return replace(
        iss, freeze=iss.freeze.model_copy(update={"settings": settings.model_copy(update={"validation": validation})})
    )


def broken(iss):
    return [f"{place}: {detail}" for place, detail in broken_rules(iss)]


def expect(iss, *patterns):
    found = broken(iss)
    assert len(found) == len(patterns), found
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in found), (pattern, found)


def test_what_a_run_stores_follows_the_rules(iss):
    expect(iss)


@pytest.mark.parametrize(
    "field, value",
    [
        ("median_cosine", 0.9899),
        ("median_cosine", None),
        ("median_relative_error", 0.0501),
        ("iss_rank_difference", 0.0101),
        ("iss_rank_difference", None),
    ],
)
def test_each_criterion_is_applied(iss, field, value):
    expect(edited(iss, "actions", 1, **{field: value}), r"per_model_action_validation.jsonl:2: passed: True, but")


def test_criteria_are_inclusive(iss):
    row = iss.actions[1].model_copy(
        update={
            "median_cosine": 0.99,
            "median_relative_error": 0.05,
            "iss_rank_difference": 0.01,
            "iss_seed_deviation": 0.005,
        }
    )
    assert accepted(row, iss.freeze.settings.validation)


def test_a_rung_that_passes_must_be_said_to(iss):
    expect(
        edited(iss, "actions", 5, median_cosine=0.995, median_relative_error=0.03),
        r"per_model_action_validation.jsonl:6: passed: False, but the frozen thresholds give True",
    )


def test_alternatives_are_judged_by_the_same_criteria(iss):
    expect(edited(iss, "alternatives", 3, median_relative_error=0.06), r"alternatives.jsonl:4: passed: True, but")


def test_of_an_alternative_the_smallest_that_passes_is_kept(iss):
    expect(
        edited(iss, "alternatives", 3, chosen=True, k=64), r"layer 2, qb_deflated: chosen: k = \[32, 64\], but .* 32"
    )
    expect(edited(iss, "alternatives", 2, chosen=False), r"layer 2, qb_deflated: chosen: k = \[\], but the smallest")


def test_only_the_first_that_passes_is_frozen(iss):
    both = edited(
        iss, "actions", 0, passed=True, median_cosine=0.995, median_relative_error=0.03, iss_seed_deviation=0.001
    )
    expect(both, "layer 2: chosen: attempt 2, but the first that passes is 1", "layer 2: 1 attempts after")
    expect(edited(iss, "actions", 1, chosen=False), "layer 2: chosen: attempt none", r"layers\.2\.status", *KEPT)


KEPT = [rf"layers\.2\.{name}: " for name in ("k", "oversampling", "power_iterations", "corpus_size", "step")]
KEPT += [r"layers\.2\.reporting: ", r"layers\.2\.seeds: "]


def test_the_ladder_starts_at_the_chosen_size(iss):
    expect(edited(iss, "actions", 0, corpus_size=16), "layer 2: its ladder starts at n = 16, not at the chosen 32")


def test_corpus_rule(iss):
    expect(
        edited(iss, "corpus_convergence", 1, cosine_to_2n=0.98),
        "layer 2, n = 32: converged: True, but the rule gives False",
        "layer 2, n = 32: chosen: True, but the rule gives False",
        "layer 2, n = 64: chosen: False, but the rule gives True",
    )
    expect(
        edited(iss, "corpus_convergence", 0, cosine_to_2n=0.995, iss_difference=0.005),
        "n = 16: converged: False",
        "n = 16: chosen: False",
        "n = 32: chosen: True",
    )


def test_seeds_have_the_mean_and_deviation_of_their_values(iss):
    expect(edited(iss, "seed_stability", 1, mean=0.5), r"seed_stability.jsonl:2: mean: 0.5, but its values give 0.99")
    expect(edited(iss, "seed_stability", 1, sd=0.5), r"seed_stability.jsonl:2: sd: 0.5, but")
    expect(
        edited(iss, "actions", 1, iss_seed_deviation=0.0006), r"validation.jsonl:2: iss_seed_deviation: 0.0006, but the"
    )
    expect(edited(iss, "actions", 1, iss=0.5), r"validation.jsonl:2: iss: 0.5, but the sketch seeds give 0.4")


def test_reporting_rule(iss):
    expect(
        thresholds_of(iss, negligible_seed_deviation=0.0001),
        r"layers\.2\.reporting: preregistered seed, but the rules give mean of seeds",
        r"layers\.2\.seeds: \[0\], but the rules give \[0, 1, 2\]",
    )


def test_frozen_settings_are_the_chosen_attempt_s(iss):
    layers = dict(iss.freeze.layers) | {"2": iss.freeze.layers["2"].model_copy(update={"k": 32})}
    frozen = replace(iss, freeze=iss.freeze.model_copy(update={"layers": layers}))
    expect(frozen, r"layers\.2\.k: 32, but the rules give 64")


def test_without_a_freeze_there_is_nothing_to_apply(iss):
    assert broken(replace(edited(iss, "actions", 1, median_cosine=0.5), freeze=None)) == []


def test_these_rules_are_those_of_the_stages(iss):
    """The measuring code states each rule for itself; both must decide alike."""
    thresholds = iss.freeze.settings.validation
    names = ("median_cosine", "median_relative_error", "iss_rank_difference", "iss_seed_deviation")
    for row in (*iss.actions, *(row for row in iss.alternatives if row.median_cosine is not None)):
        evidence = Evidence(**{name: getattr(row, name) for name in names})
        assert accepted(row, thresholds) is (not failures(evidence, thresholds))
    for layer in (2, 5, 8):
        sizes = [row for row in iss.corpus_convergence if row.layer == layer]
        fields = ("n", "cosine_to_2n", "relative_error_to_2n", "iss_difference")
        convergence = [Convergence(**{name: getattr(row, name) for name in fields}) for row in sizes]
        assert [row.n for row in sizes if row.chosen] == [starting_size(convergence, thresholds)]
    for layer, deviation in ((2, 0.0005), (5, 0.002)):
        assert iss.freeze.layers[str(layer)].reporting == reporting(deviation, thresholds)
