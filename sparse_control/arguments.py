"""Checks of arguments that the packages share: what does not fit is refused by the argument's name and value.

They need numpy alone. A sequence is a list, a tuple, a range, or whatever converts to a numpy array, such as a pandas
column or a tensor on the CPU; sets, mappings, generators and text are none. Booleans, text, complex numbers, missing
and masked values are no real numbers.
"""

import math
import reprlib
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

LARGEST_INTEGER = 2**63 - 1
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 100
Kind = TypeVar("Kind")


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int in low..high; None: as large as 64 bits hold.

    Raises:
        ValueError: not an integer (booleans are refused), or out of range.
    """
    most = LARGEST_INTEGER if high is None else high
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= value <= most:
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name} must be an integer {bounds}, got {brief(value)}")
    return int(value)


def real_number(name: str, value: Any) -> float:
    """`value` as a finite Python float; an array or a tensor without dimensions counts as the number it holds.

    Raises:
        ValueError: not a real number, or not finite in float64.
    """
    number = value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item") and not np.ma.is_masked(value):
        try:
            number = value.item()
        except RuntimeError:  # a tensor without data
            number = None
    converted = _as_float(number) if _is_real(number) else None
    if converted is None or not math.isfinite(converted):
        raise ValueError(f"{name} must be a finite number, got {brief(value)}")
    return converted


def real_array(name: str, values: Any, *, allowed: tuple[float, ...] = ()) -> np.ndarray:
    """`values` as a float64 array (N,), N >= 1; `allowed` lists the infinities that may be in it.

    Raises:
        ValueError: not a flat sequence of real numbers, empty, or a value that is not finite.
    """
    array = _floats(name, elements(name, values))
    if len(array) == 0:
        raise ValueError(f"{name} must not be empty, got {brief(values)}")
    return _finite(name, array, allowed)


def real_matrix(name: str, values: Any) -> np.ndarray:
    """`values`, an array or a sequence of rows, as a float64 array (N, D), N >= 1 and D >= 1.

    Raises:
        ValueError: as `real_tensor`, not of two dimensions, or empty.
    """
    matrix = real_tensor(name, values)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must be (N, D) with N >= 1 and D >= 1, got shape {matrix.shape}")
    return matrix


def real_tensor(name: str, values: Any) -> np.ndarray:
    """`values`, an array or nested sequences, as a float64 array of as many dimensions.

    Raises:
        ValueError: ragged, not of real numbers, or a value that is not finite.
    """
    if not _is_sequence(values):
        return _finite(name, _floats(name, _array(name, values)))
    if not any(_is_sequence(part) or getattr(part, "ndim", 0) for part in values):
        return _finite(name, _floats(name, list(values)))
    parts = [real_tensor(f"{name}[{index}]", part) for index, part in enumerate(values)]
    for index, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise ValueError(f"{name}[{index}] must have the shape of {name}[0], {parts[0].shape}, got {part.shape}")
    return np.stack(parts)


def choice(name: str, value: Any, known: Collection[str]) -> str:
    """`value`, one of the known names.

    Raises:
        ValueError: it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {brief(value)}")
    return value


def file_path(name: str, value: Any) -> Path:
    """`value`, text or a path, as a path.

    Raises:
        ValueError: neither, or empty.
    """
    if not isinstance(value, (str, PathLike)) or not str(value):
        raise ValueError(f"{name} must be a path, got {brief(value)}")
    return Path(value)


def instance(name: str, value: Any, kind: type[Kind]) -> Kind:
    """`value`, an object of a class of this package.

    Raises:
        ValueError: it is of another.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {brief(value)}")
    return value


def labels(name: str, values: Any) -> list[int | str]:
    """`values` as Python integers or strings; whole floats, as pandas makes of integers, become integers.

    Raises:
        ValueError: not a flat sequence, or a label that is missing or neither a whole number nor a string.
    """
    found: list[int | str] = []
    for index, value in enumerate(elements(name, values)):
        if isinstance(value, str):
            found.append(str(value))
        elif _is_real(value) and (isinstance(value, Integral) or float(value).is_integer()):
            found.append(int(value))
        else:
            raise ValueError(f"{name}[{index}] must be a whole number or a string, got {brief(value)}")
    return found


def equal_lengths(**sequences: Sequence[Any] | np.ndarray) -> None:
    """Refuse sequences whose length is not that of the first.

    Raises:
        ValueError: names the first argument that differs, and both lengths.
    """
    (first, reference), *others = sequences.items()
    for name, sequence in others:
        if len(sequence) != len(reference):
            raise ValueError(f"{name} must have the length of {first} ({len(reference)}), got {len(sequence)}")


def elements(name: str, values: Any) -> list[Any] | np.ndarray:
    """The elements of a flat sequence as they are; an array of a real dtype whole, of any other as Python objects.

    Raises:
        ValueError: not a sequence, or one of several dimensions.
    """
    if _is_sequence(values):
        return list(values)
    array = _array(name, values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    return array if array.dtype.kind in "fiu" else array.tolist()


def brief(value: Any) -> str:
    """`value` for an error message: one line, cut where it is long."""
    try:
        return " ".join(_BRIEF.repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        return f"a {type(value).__name__} too long to print"


def _is_sequence(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray, memoryview))


def _is_real(value: Any) -> bool:
    if type(value) is float:  # nearly all of them, and the rest is many times slower
        return True
    return isinstance(value, (Real, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


def _as_float(number: Any) -> float | None:
    """None beyond the range of float64."""
    try:
        return float(number)
    except OverflowError:
        return None


def _array(name: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not hold masked values, got {brief(values)}")
    if not hasattr(values, "__array__"):
        raise ValueError(f"{name} must be a sequence, got {brief(values)}")
    try:
        return np.asarray(values)
    except (TypeError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} must be convertible to a numpy array ({reason}), got {brief(values)}") from error


def _floats(name: str, values: list[Any] | np.ndarray) -> np.ndarray:
    """Real numbers as float64, in the shape of an array."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            converted = values.astype(np.float64)
        beyond = np.isinf(converted) & np.isfinite(values)
        if beyond.any():
            raise ValueError(f"{name} must be within float64, got {brief(values[beyond].flat[0])}")
        return converted
    flat = values.ravel().tolist() if isinstance(values, np.ndarray) else values
    found = []
    for index, value in enumerate(flat):
        if not _is_real(value):
            raise ValueError(f"{name}[{index}] must be a real number, got {brief(value)}")
        found.append(_as_float(value))
        if found[-1] is None:
            raise ValueError(f"{name}[{index}] must be within float64, got {brief(value)}")
    return np.array(found, dtype=np.float64).reshape(values.shape if isinstance(values, np.ndarray) else len(flat))


def _finite(name: str, array: np.ndarray, allowed: tuple[float, ...] = ()) -> np.ndarray:
    bad = ~np.isfinite(array)
    if bad.any():
        bad &= ~np.isin(array, allowed)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise ValueError(
            f"{name}{''.join(f'[{index}]' for index in where)} must be finite, got {array[where].item()!r}"
        )
    return array
