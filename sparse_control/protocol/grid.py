"""The grid of records, tasks by selectors by direction rules by seeds: a preset's own, or another."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import ValidationError

from sparse_control.errors import InputError
from sparse_control.models.chat import template_arguments
from sparse_control.protocol.directions import CONDITIONS
from sparse_control.protocol.given import RULES, GivenFile, check_several
from sparse_control.protocol.panels import TASKS
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.settings import ProtocolSettings, Settings

WHICH = ("tasks", "selectors", "conditions", "seeds", "task_seeds")  # settings that say which records are asked for
KNOWN = {"tasks": tuple(TASKS), "selectors": tuple(SELECTORS), "conditions": tuple(CONDITIONS)}


def check_names(*, where: str = "", given: Sequence[GivenFile] = (), **names: Sequence[str]) -> None:
    """Refuse names of tasks, selectors or conditions that there are not.

    Args:
        where: what the error begins with.
        given: interventions given as files, whose names are selectors too.
        names: under `tasks`, `selectors` or `conditions`.

    Raises:
        InputError: the first unknown name, and the known ones.
    """
    of_files = {name for file in given for name in file.names}
    for kind, values in names.items():
        for value in values:
            if value not in KNOWN[kind] and not (kind == "selectors" and value in of_files):
                raise InputError(f"{where}{kind[:-1]} must be one of {', '.join(KNOWN[kind])}, got {value!r}")


def restricted(
    settings: Settings,
    *,
    tasks: Sequence[str] = (),
    selectors: Sequence[str] = (),
    conditions: Sequence[str] = (),
    seeds: Sequence[int] = (),
    given: Sequence[GivenFile] = (),
) -> Settings:
    """The settings with these tasks, selectors, direction rules and seeds in place of their own; none: their own.

    A record depends on none of the four, so records measured one by one are those of the whole run. Interventions
    given as files stand, with their controls, beside the selectors that are asked for, and alone where none is; the
    rules are then those they have (`RULES`).

    Raises:
        InputError: an unknown name, in the call or in the settings; a seed that is not a whole number from 0 on; or one
            of them given twice.
    """
    check_names(tasks=tasks, selectors=selectors, conditions=conditions)
    asked = {"tasks": tasks, "selectors": selectors, "conditions": conditions, "seeds": seeds}
    changes = {name: list(values) for name, values in asked.items() if values}
    for name, values in changes.items():
        for value in values:
            if name == "seeds" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InputError(f"seed must be a whole number from 0 on, got {value!r}")
            if values.count(value) > 1:
                raise InputError(f"{name[:-1]} {value!r} is given twice; once is enough")
    if given:
        check_several(tuple(given))
        changes["selectors"] = [*selectors, *(name for file in given for name in file.names)]
        if not conditions and not selectors:
            changes["conditions"] = list(RULES)
        elif conditions and not set(conditions) & set(RULES):
            raise InputError(
                f"condition {', '.join(conditions)}: an intervention given as a file has vectors of its own, the same "
                f"for every pair; use {' or '.join(RULES)}"
            )
    if seeds:
        changes["task_seeds"] = {}
    try:
        protocol = ProtocolSettings.model_validate(settings.protocol.model_dump() | changes)
    except ValidationError as error:  # such as a task without a feedback tolerance
        raise InputError(f"params.yaml: protocol: {error.errors()[0]['msg']}") from error
    check_names(where="params.yaml: protocol: ", given=given, **{kind: getattr(protocol, kind) for kind in KNOWN})
    check_names(where="params.yaml: protocol.task_seeds: ", tasks=protocol.task_seeds)
    if not studies(protocol):
        raise InputError(_nothing(protocol))
    return settings.model_copy(update={"protocol": protocol}) if changes else settings


def templated(settings: Settings, arguments: Mapping[str, Any]) -> Settings:
    """The settings with these arguments of the chat template over their own; every record depends on them.

    Raises:
        InputError: as `template_arguments`.
    """
    if not arguments:
        return settings
    merged = template_arguments(settings.protocol.template_arguments | dict(arguments))
    return settings.model_copy(update={"protocol": settings.protocol.model_copy(update={"template_arguments": merged})})


def _nothing(protocol: ProtocolSettings) -> str:
    conditions = ", ".join(protocol.conditions)
    for selector in protocol.selectors:
        of = SELECTORS[selector].tasks if selector in SELECTORS else None
        if of and not set(of) & set(protocol.tasks):
            return f"selector {selector} is measured on {', '.join(of)} alone, not on {', '.join(protocol.tasks)}"
    if all(selector in SELECTORS and SELECTORS[selector].baseline for selector in protocol.selectors):
        names = ", ".join(protocol.selectors)
        return f"condition {conditions} of {names}: baselines have directions of the fitting split; use F"
    known = [SELECTORS[selector].conditions if selector in SELECTORS else RULES for selector in protocol.selectors]
    rules = [rule for rule in CONDITIONS if any(rule in rules for rules in known)]
    if not set(rules) & set(protocol.conditions):
        return f"condition {conditions} of {', '.join(protocol.selectors)} is not measured; use {' or '.join(rules)}"
    return f"condition {conditions} of {', '.join(protocol.tasks)} is F, as their pairs have one orientation; use F"


def studies(protocol: ProtocolSettings) -> list[tuple[str, str, str]]:
    """Every (task, selector, condition) of the settings, in the order in which they are measured.

    Where the pairs of a task have one orientation, an oriented rule is the mean as it is, and not measured twice. An
    intervention given as a file has vectors of its own, so that it is not measured with each pair's contrast. A
    selector is measured on the tasks and under the rules of its row in the table.
    """
    return [
        (task, selector, condition)
        for task, selector, condition in product(protocol.tasks, protocol.selectors, protocol.conditions)
        if TASKS[task].oriented or not CONDITIONS[condition].oriented
        if condition in (SELECTORS[selector].conditions if selector in SELECTORS else RULES)
        if selector not in SELECTORS or task in (SELECTORS[selector].tasks or TASKS)
    ]
