"""The check of numbers that the protocol's arguments share."""

import math
from typing import Any


def finite_number(name: str, value: Any) -> float:
    """`value` as a Python float.

    Raises:
        ValueError: not a real finite number, or beyond the range of float64; the message names it.
    """
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, got {value!r}") from error
    except OverflowError as error:
        raise ValueError(f"{name} must be a finite number, got one beyond the range of float64") from error
    if isinstance(value, (bool, str, bytes)) or not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number
