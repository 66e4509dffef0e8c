"""The counted work against what a tiny model was really given to do."""

from contextlib import contextmanager
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.protocol import gate
from sparse_control.protocol.fitting import Fitting
from sparse_control.protocol.panels import Draw
from sparse_control.protocol.panels.offtarget import OffTargetPrompt
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import read_prompts
from sparse_control.protocol.record import record_sections
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.protocol.work import Batch, Work, build_all_pairs, measured_rates, planned
from sparse_control.records.six_axis import RecordKey
from sparse_control.settings import load_settings
from tests.support.pairs import make_pairs
from tests.support.tiny import prompt, tiny_model

PARAMS = Path(__file__).parents[2] / "params.yaml"
N_SITES = 3 * (4 + 1)
OTHERS = tuple(OffTargetPrompt(str(i), "stem", prompt(length, i)) for i, length in enumerate((8, 6, 8)))


def protocol(**changes):
    """Small, with a gate that drops nothing and a feedback loop that reads the zero dose alone."""
    base = load_settings(PARAMS).protocol
    small = {
        "tasks": ["ioi"], "seeds": [2], "task_seeds": {}, "minimum_gap": -1e9, "minimum_pairs": 1,
        "minimum_effect": 0.0,
        "pairs": base.pairs.model_copy(update={"fit": 4, "evaluate": 5, "reuse": 3}), "effects_check": 3,
        "random_supports": 3, "support_size": 3, "maximum_strength": 4.0,
        "feedback": base.feedback.model_copy(update={"readouts": 1}),
    }  # fmt: skip
    return base.model_copy(update=small | changes)


def pairs(task, lm, split, n, seed):
    return make_pairs(n, first=100 * ("fit", "evaluate", "reuse").index(split) % 37 + seed)


@pytest.fixture
def lm(monkeypatch):
    lm = tiny_model()

    @cached_property
    def off_target(fitting):
        ids = [other.text.tolist() for other in OTHERS]
        return OffTargetPanel(("a", "b", "c"), read_prompts(lm, ids, gate.read_sites(lm, fitting.protocol)))

    off_target.__set_name__(Fitting, "off_target")

    monkeypatch.setattr(gate, "draw_pairs", lambda *args: Draw(pairs(*args[:5]), "own", 0))
    monkeypatch.setattr(Fitting, "off_target", off_target)
    monkeypatch.setattr(type(lm), "encode", lambda self, text: text)
    return lm


@contextmanager
def counting(lm):
    """(calls, tokens) of the model within the context."""
    seen = [0, 0]

    def count(_module, _args, kwargs):
        seen[0] += 1
        seen[1] += kwargs["input_ids"].numel()

    handle = lm.model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    yield seen
    handle.remove()


def done(lm, settings, selectors, conditions):
    """The sections of each record, and the counted calls and tokens."""
    fitting = Fitting(lm, settings)
    with counting(lm) as counted:
        sections = [
            record_sections(fitting, RecordKey(lm.name, "ioi", *which, settings.seeds[0]))
            for which in product(selectors, conditions)
        ]
    return sections, tuple(counted)


def most(lm, settings):
    built = build_all_pairs(lm, settings, pairs)
    return sum((item.work for item in planned(lm, settings, built, OTHERS)), Work())


CHOSEN = (
    "driver_omp",
    "coverage_driver",
    "top_k",
    "random_support",
    "random_direction",
    "all_sites",
    "pca",
    "diff_in_means_all",
    "ablate",
)


@pytest.mark.parametrize("effects", ["first_order", "measured"])
@pytest.mark.parametrize("selector", CHOSEN)
def test_the_work_counted_is_what_is_done(lm, selector, effects):
    conditions = ["F"] if SELECTORS[selector].baseline else ["P", "F"]
    settings = protocol(selectors=[selector], conditions=conditions, effects=effects)
    sections, counted = done(lm, settings, [selector], conditions)
    sizes = {"all_sites": N_SITES, "pca": 1, "ablate": 1}
    assert all(len(record["support"]) == sizes.get(selector, 3) for record in sections)
    expected = most(lm, settings)
    assert counted == (expected.forwards, expected.tokens)


@pytest.mark.parametrize("positions", [[-1, -3], [5], [-1, 4]])
def test_candidates_before_the_last_token(lm, positions):
    settings = protocol(selectors=["driver_omp"], conditions=["P"], positions=positions)
    _, counted = done(lm, settings, ["driver_omp"], ["P"])
    expected = most(lm, settings)
    assert counted == (expected.forwards, expected.tokens)


def test_shared_work_counts_once(lm):
    chosen = ["driver_omp", "random_direction", "coverage_driver"]
    settings = protocol(selectors=chosen, conditions=["P", "F"])
    _, counted = done(lm, settings, chosen, ["P", "F"])
    expected = most(lm, settings)
    assert counted == (expected.forwards, expected.tokens)


@pytest.mark.parametrize("effects", ["first_order", "measured"])
def test_what_may_stop_early_is_bounded(lm, effects):
    """The feedback loop, and Driver-OMP that measures again."""
    feedback = load_settings(PARAMS).protocol.feedback
    settings = protocol(selectors=["driver_omp_remeasured"], conditions=["P"], effects=effects, feedback=feedback)
    sections, counted = done(lm, settings, ["driver_omp_remeasured"], ["P"])
    assert len(sections[0]["support"]) > 1
    upper = most(lm, settings)
    lower = most(lm, protocol(selectors=["driver_omp"], conditions=["P"], effects=effects))
    assert lower.forwards < counted[0] <= upper.forwards and lower.tokens < counted[1] <= upper.tokens


def test_the_same_panel_shares_choices_and_a_selector_may_want_more_sites(lm):
    tasks, which = ["ioi", "ioi_same_panel", "sentiment"], {"conditions": ["P"], "selectors": ["driver_omp"]}
    settings = protocol(tasks=tasks, **which)
    fitting = Fitting(lm, settings)
    with counting(lm) as counted:
        for task in tasks[:2]:
            record_sections(fitting, RecordKey(lm.name, task, "driver_omp", "P", 2))
    work = most(lm, protocol(tasks=tasks[:2], **which))
    assert tuple(counted) == (work.forwards, work.tokens)
    with counting(lm) as counted:
        anew = Fitting(lm, settings).pairs("ioi_same_panel", 2)
    assert counted[0] > 0, "read where the pairs of the task are not at hand"
    shared = fitting.pairs("ioi_same_panel", 2)
    assert (anew.counts, anew.sites) == (shared.counts, shared.sites)
    for name, split in anew.splits.items():
        assert split.pairs == shared.splits[name].pairs
        assert np.array_equal(split.y_source, shared.splits[name].y_source)
        assert all(torch.equal(split.contrasts[s], shared.splits[name].contrasts[s]) for s in split.contrasts)
    eight = protocol(tasks=tasks, conditions=["P"], selectors=["coverage_driver_k8"], effects="measured")
    found = [item for item in planned(lm, eight, build_all_pairs(lm, eight, pairs), OTHERS) if item.task != "all"]
    (item,) = [item for item in found if item.selector == "coverage_driver_k8"]
    plain = protocol(tasks=["sentiment"], conditions=["P"], selectors=["coverage_driver"], effects="measured")
    other = planned(lm, plain, build_all_pairs(lm, plain, pairs), OTHERS)[-1]
    assert item.task == "sentiment" and item.work.readouts - other.work.readouts == 3 * (8 - 3)
    sections = record_sections(Fitting(lm, eight), RecordKey(lm.name, "sentiment", "coverage_driver_k8", "P", 2))
    assert len(sections["support"]) == 8


def test_several_seeds_and_tasks(lm):
    which = {"tasks": ["ioi", "sentiment"], "seeds": [0, 1], "task_seeds": {"ioi": [0, 1, 2]}}
    settings = protocol(**which, conditions=["P"], selectors=["driver_omp", "coverage_driver"])
    items = planned(lm, settings, build_all_pairs(lm, settings, pairs), OTHERS)
    assert [(item.task, item.selector, item.condition, item.seeds) for item in items] == [
        ("all", "shared", "", ()),
        ("ioi", "shared", "", (0, 1, 2)), ("ioi", "driver_omp", "P", (0, 1, 2)),
        ("ioi", "coverage_driver", "P", (0, 1, 2)),
        ("sentiment", "shared", "", (0, 1)), ("sentiment", "driver_omp", "P", (0, 1)),
        ("sentiment", "coverage_driver", "P", (0, 1)),
    ]  # fmt: skip
    assert items[1].sites == N_SITES


def test_a_task_the_model_does_not_support_costs_nothing(lm):
    def without_template(task, *rest):
        if task == "refusal":
            raise UnsupportedModel("no chat template")
        return pairs(task, *rest)

    settings = protocol(tasks=["refusal", "ioi"], conditions=["P"])
    built = build_all_pairs(lm, settings, without_template)
    refusal = [item for item in planned(lm, settings, built, OTHERS) if item.task == "refusal"]
    assert {item.seeds for item in refusal} == {()} and all(item.work == Work() for item in refusal)


def test_positions_set_what_a_patched_readout_passes():
    batch = Batch.of([9, 7, 9], [-1, -3])
    assert batch.tails == (3, 3, 3)
    assert Batch.of([9, 7], [4]).tails == (5, 3)
    assert batch.reading() == Work(forwards=3, read=25)
    assert batch.patching(100) == Work(forwards=3, readouts=300, patched=900)


def test_rates_are_seconds_per_token(lm):
    rates = measured_rates(lm, protocol(), pairs("ioi", lm, "fit", 4, 0))
    assert rates.read > 0 and rates.patched > 0 and rates.differentiated > 0
    work = Work(read=10, patched=20, differentiated=30)
    assert rates.seconds(work) == pytest.approx(10 * rates.read + 20 * rates.patched + 30 * rates.differentiated)
