"""Which records of a preset are asked for: its tasks, selectors, direction rules and seeds, or some of one's own."""

from collections.abc import Sequence
from typing import get_args

from sparse_control.errors import InputError
from sparse_control.settings import ProtocolSettings, Selector, Settings, Task

CONDITIONS = ("P", "F")


def asked_for(
    settings: Settings,
    *,
    tasks: Sequence[str] = (),
    selectors: Sequence[str] = (),
    conditions: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> Settings:
    """The settings with these tasks, selectors, direction rules and seeds in place of their own; none: their own.

    A record depends on none of the four, so records measured one by one are those of the whole run.

    Raises:
        InputError: an unknown name, a seed that is not a whole number from 0 on, or one that stands twice.
    """
    known = {"tasks": get_args(Task), "selectors": get_args(Selector), "conditions": CONDITIONS, "seeds": None}
    given = {"tasks": tasks, "selectors": selectors, "conditions": conditions, "seeds": seeds}
    changes = {name: list(values) for name, values in given.items() if values}
    for name, values in changes.items():
        for value in values:
            if known[name] is not None and value not in known[name]:
                raise InputError(f"{name[:-1]} must be one of {', '.join(known[name])}, got {value!r}")
            if name == "seeds" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InputError(f"seed must be a whole number from 0 on, got {value!r}")
            if values.count(value) > 1:
                raise InputError(f"{name[:-1]} {value!r} is given twice; once is enough")
    if not changes:
        return settings
    if seeds:
        changes["task_seeds"] = {}
    protocol = ProtocolSettings.model_validate(settings.protocol.model_dump() | changes)
    return settings.model_copy(update={"protocol": protocol})
