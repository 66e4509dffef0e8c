"""One line of the report, and checks that fail instead of crashing."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sparse_control.errors import InputError

# what reading content of another shape than expected can raise, beside InputError
MALFORMED = (OSError, csv.Error, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, RecursionError)
Status = Literal["ok", "FAIL", "warn", "skip"]


@dataclass(frozen=True)
class Check:
    """One line of the report; `warn` and `skip` say something without failing."""

    name: str
    status: Status
    detail: str = ""
    more: tuple[str, ...] = ()  # what the detail counts, one by one

    def __str__(self) -> str:
        return f"{self.status:4} {self.name}" + (f": {self.detail}" if self.detail else "")


def attempt(name: str, action: Callable[[], Any]) -> tuple[Any, Check]:
    """The value of `action`, None where it fails, and the check that says so."""
    try:
        return action(), Check(name, "ok")
    except InputError as error:
        return None, Check(name, "FAIL", str(error))
    except MALFORMED as error:
        return None, Check(name, "FAIL", f"{type(error).__name__}: {error}")


def named(name: str, verdict: Callable[[], tuple[Status, str]]) -> Check:
    """A check of this name with what `verdict` says."""
    found, check = attempt(name, verdict)
    return Check(name, *found) if found else check
