"""Narrowing a preset down leaves everything a record depends on as it is."""

from pathlib import Path

import pytest

from sparse_control.errors import InputError
from sparse_control.protocol.grid import restricted, studies, templated
from sparse_control.protocol.stored import Origin
from sparse_control.settings import load_settings

SETTINGS = load_settings(Path(__file__).parents[2] / "params.yaml", "paper")
WHICH = {"tasks", "selectors", "conditions", "seeds", "task_seeds"}


def test_only_what_is_asked_for_changes():
    asked = restricted(SETTINGS, tasks=["refusal", "ioi"], selectors=["top_k"], conditions=["F"], seeds=[9, 0])
    protocol = asked.protocol
    assert (protocol.tasks, protocol.selectors, protocol.conditions) == (["refusal", "ioi"], ["top_k"], ["F"])
    assert protocol.seeds_of("ioi") == protocol.seeds_of("refusal") == [9, 0]
    assert protocol.model_dump(exclude=WHICH) == SETTINGS.protocol.model_dump(exclude=WHICH)
    assert asked.model_dump(exclude={"protocol"}) == SETTINGS.model_dump(exclude={"protocol"})


def test_a_selector_is_measured_on_the_tasks_of_its_row():
    of = [study[::2] for study in studies(SETTINGS.protocol) if study[1] == "coverage_driver_k8"]
    assert of == [("sentiment", "P"), ("sentiment", "F")]
    with pytest.raises(InputError, match="coverage_driver_k8 is measured on sentiment alone, not on ioi, refusal"):
        restricted(SETTINGS, tasks=["ioi", "refusal"], selectors=["coverage_driver_k8"])


def test_a_selector_is_measured_under_the_rules_of_its_row():
    rules = {name: set() for name in SETTINGS.protocol.selectors}
    for task, selector, condition in studies(SETTINGS.protocol):
        if task == "ioi":
            rules[selector].add(condition)
    assert rules["all_sites"] == rules["driver_omp_remeasured"] == {"P", "F"}
    assert rules["driver_omp"] == rules["random_support"] == {"P", "F", "O"} and rules["probe"] == {"F"}
    with pytest.raises(InputError, match="condition O of all_sites, probe is not measured; use P or F"):
        restricted(SETTINGS, selectors=["all_sites", "probe"], conditions=["O"])


def test_nothing_asked_for_is_the_preset():
    assert restricted(SETTINGS) is SETTINGS
    assert restricted(SETTINGS, tasks=["ioi"]).protocol.seeds_of("ioi") == SETTINGS.protocol.seeds_of("ioi")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tasks": ["arithmetic"]}, "feedback.targets has no entry for task 'arithmetic'"),
        ({"selectors": ["best"]}, "params.yaml: protocol: selector must be one of driver_omp, .* got 'best'"),
        ({"conditions": ["p"]}, "params.yaml: protocol: condition must be one of P, F, O, got 'p'"),
        ({"task_seeds": {"ios": [1]}}, "params.yaml: protocol.task_seeds: task must be one of ioi, .* got 'ios'"),
    ],
)
def test_unknown_names_in_the_settings_are_refused_before_anything_is_measured(change, message):
    settings = SETTINGS.model_copy(update={"protocol": SETTINGS.protocol.model_copy(update=change)})
    with pytest.raises(InputError, match=message):
        restricted(settings)


@pytest.mark.parametrize(
    "which, message",
    [
        ({"tasks": ["mmlu"]}, "task must be one of ioi, .* got 'mmlu'"),
        ({"selectors": ["omp"]}, "selector must be one of driver_omp, .* got 'omp'"),
        ({"conditions": ["Q"]}, "condition must be one of P, F, O, got 'Q'"),
        ({"seeds": [-1]}, "seed must be a whole number from 0 on, got -1"),
        ({"seeds": [True]}, "got True"),
        ({"seeds": [1, 1]}, "seed 1 is given twice"),
        ({"tasks": ["ioi", "ioi"]}, "task 'ioi' is given twice"),
    ],
)
def test_refused(which, message):
    with pytest.raises(InputError, match=message):
        restricted(SETTINGS, **which)


def test_template_arguments_are_laid_over_those_of_the_settings():
    given = {"enable_thinking": False}
    changed = templated(SETTINGS, given)
    own = SETTINGS.protocol.template_arguments
    assert changed.protocol.template_arguments == own | given and changed != SETTINGS == templated(SETTINGS, {})
    assert Origin.of(changed).provenance["params_sha256"] != Origin.of(SETTINGS).provenance["params_sha256"]
    with pytest.raises(InputError, match="template argument 'messages': is set by the library"):
        templated(SETTINGS, {"messages": "x"})
