"""The grid of records, tasks by selectors by direction rules by seeds: a preset's own, or another."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import ValidationError

from sparse_control.errors import InputError
from sparse_control.models.chat import template_arguments
from sparse_control.protocol.directions import CONDITIONS
from sparse_control.protocol.given import RULES, GivenFile, check_several
from sparse_control.protocol.panels import TASKS, PairFile
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.settings import ProtocolSettings, Settings

WHICH = ("tasks", "selectors", "conditions", "seeds", "task_seeds")  # settings that say which records are asked for
TARGETS, TOLERANCE = 6, 0.3  # of the feedback axis, and logits, of pairs given as a file
KNOWN = {"tasks": tuple(TASKS), "selectors": tuple(SELECTORS), "conditions": tuple(CONDITIONS)}


def check_names(
    *, where: str = "", given: Sequence[GivenFile] = (), pairs: PairFile | None = None, **names: Sequence[str]
) -> None:
    """Refuse names of tasks, selectors or conditions that there are not.

    Args:
        where: what the error begins with.
        given: interventions given as files, whose names are selectors too.
        pairs: pairs given as a file, whose name is a task too.
        names: under `tasks`, `selectors` or `conditions`.

    Raises:
        InputError: the first unknown name, and the known ones.
    """
    of_files = {"selectors": {name for file in given for name in file.names}, "tasks": {pairs.name} if pairs else ()}
    for kind, values in names.items():
        for value in values:
            if value not in KNOWN[kind] and value not in of_files.get(kind, ()):
                own = "; pairs of your own need --pairs FILE" if kind == "tasks" and pairs is None and not where else ""
                raise InputError(f"{where}{kind[:-1]} must be one of {', '.join(KNOWN[kind])}, got {value!r}{own}")


def restricted(
    settings: Settings,
    *,
    tasks: Sequence[str] = (),
    selectors: Sequence[str] = (),
    conditions: Sequence[str] = (),
    seeds: Sequence[int] = (),
    given: Sequence[GivenFile] = (),
    pairs: PairFile | None = None,
) -> Settings:
    """The settings with these tasks, selectors, direction rules and seeds in place of their own; none: their own.

    A record depends on none of the four, so records measured one by one are those of the whole run. Interventions
    given as files stand, with their controls, beside the selectors that are asked for, and alone where none is; the
    rules are then those they have (`RULES`). Pairs given as a file are a task beside those that are asked for, and
    alone where none is, with `TARGETS` and `TOLERANCE` on the feedback axis where the settings have none.

    Raises:
        InputError: an unknown name, in the call or in the settings; a seed that is not a whole number from 0 on; one of
            them given twice; or a file of pairs that has too few of a split, or is called as a task is.
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
    if pairs is not None:
        changes["tasks"] = [*tasks, pairs.name]
        changes["feedback"] = _feedback_with(settings.protocol, pairs)
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
    names = {kind: getattr(protocol, kind) for kind in KNOWN}
    check_names(where="params.yaml: protocol: ", given=given, pairs=pairs, **names)
    check_names(where="params.yaml: protocol.task_seeds: ", tasks=protocol.task_seeds)
    if not studies(protocol, pairs):
        raise InputError(_nothing(protocol))
    return settings.model_copy(update={"protocol": protocol}) if changes else settings


def _feedback_with(protocol: ProtocolSettings, pairs: PairFile) -> dict[str, Any]:
    """The settings of the feedback axis with those of a file of pairs, once it is sure that it can be measured."""
    if pairs.name.casefold() in (*TASKS, "off_target"):  # files of some disks know no capitals
        raise InputError(f"{pairs.path}: {pairs.name} is a name of the project's own; give another --name")
    split, fewest = min(pairs.most().items(), key=lambda item: item[1])
    if fewest < protocol.minimum_pairs:
        raise InputError(
            f"{pairs.path}: split {split} has {fewest} pairs; each of fit, evaluate and reuse needs "
            f"{protocol.minimum_pairs} (params.yaml: protocol.minimum_pairs)"
        )
    if pairs.last_token_only and protocol.positions != [-1]:
        raise InputError(
            f"params.yaml: protocol.positions: must be [-1] with --last-token-only, got {protocol.positions}"
        )
    usual = {"targets": TARGETS, "tolerance": TOLERANCE}
    feedback = protocol.feedback.model_dump()
    return feedback | {name: {pairs.name: value} | feedback[name] for name, value in usual.items()}


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


def studies(protocol: ProtocolSettings, pairs: PairFile | None = None) -> list[tuple[str, str, str]]:
    """Every (task, selector, condition) of the settings, in the order in which they are measured.

    Where the pairs of a task have one orientation, an oriented rule is the mean as it is, and not measured twice. An
    intervention given as a file has vectors of its own, so that it is not measured with each pair's contrast. A
    selector is measured on the tasks and under the rules of its row in the table.

    Args:
        pairs: given as a file, which is a task too.
    """
    oriented = {name: panel.oriented for name, panel in TASKS.items()} | ({pairs.name: pairs.oriented} if pairs else {})
    return [
        (task, selector, condition)
        for task, selector, condition in product(protocol.tasks, protocol.selectors, protocol.conditions)
        if oriented[task] or not CONDITIONS[condition].oriented
        if condition in (SELECTORS[selector].conditions if selector in SELECTORS else RULES)
        if selector not in SELECTORS or not (only := SELECTORS[selector].tasks) or task in only
    ]
