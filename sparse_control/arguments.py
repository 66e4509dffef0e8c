"""Checks of whole-number arguments that several packages share."""

from numbers import Integral
from typing import Any


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int in low..high.

    Raises:
        ValueError: not an integer (booleans are refused), or out of range.
    """
    bounds = f"at least {low}" if high is None else f"in {low}..{high}"
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be an integer {bounds}, got {value!r}")
    return int(value)
