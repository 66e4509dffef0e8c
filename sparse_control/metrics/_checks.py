"""Argument checks shared by the six axes: what is not a plain sequence of finite numbers is refused by name."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np


def is_real(value: Any) -> bool:
    """Whether `value` is a real number, of Python or numpy; booleans are not."""
    return isinstance(value, (Real, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


def real_scalar(name: str, value: Any) -> float:
    """`value` as a finite Python float.

    Raises:
        ValueError: not a real number (strings, booleans and None included), or not finite.
    """
    if not is_real(value):
        raise ValueError(f"{name} must be a real number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def real_array(name: str, values: Any, *, allowed: tuple[float, ...] = ()) -> np.ndarray:
    """`values` as a float64 array (N,), N >= 1; `allowed` lists the infinities that may stand in it.

    Raises:
        ValueError: not a flat sequence of real numbers, empty, or a value that is not finite.
    """
    elements = _elements(name, values)
    if len(elements) == 0:
        raise ValueError(f"{name} must not be empty, got {values!r}")
    if not isinstance(elements, np.ndarray):
        for index, value in enumerate(elements):
            if not is_real(value):
                raise ValueError(f"{name}[{index}] must be a real number, got {value!r}")
    try:
        array = np.array(elements, dtype=np.float64)
    except OverflowError as error:
        raise ValueError(f"{name} holds an integer beyond the range of float64") from error
    bad = ~np.isfinite(array) & ~np.isin(array, allowed)
    if bad.any():
        index = int(np.argmax(bad))
        raise ValueError(f"{name}[{index}] must be finite, got {array[index].item()!r}")
    return array


def _elements(name: str, values: Any) -> list[Any] | np.ndarray:
    """The elements of a flat sequence, as they are; an array of a real dtype whole, of any other as Python objects."""
    if isinstance(values, (str, bytes)):
        raise ValueError(f"{name} must be a sequence of real numbers, got {values!r}")
    if isinstance(values, Sequence):
        return list(values)
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must not hold masked values, got {values!r}")
    if not hasattr(values, "__array__"):
        raise ValueError(f"{name} must be a sequence of real numbers, got {values!r}")
    try:
        array = np.asarray(values)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{name} must be convertible to a numpy array ({error}), got {values!r}") from error
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    return array if array.dtype.kind in "fiu" else array.tolist()


def equal_lengths(**arrays: Sequence[Any] | np.ndarray) -> None:
    """Refuse arrays whose length is not that of the first.

    Raises:
        ValueError: names the first argument that differs, and both lengths.
    """
    (first, reference), *others = arrays.items()
    for name, array in others:
        if len(array) != len(reference):
            raise ValueError(f"{name} must have the length of {first} ({len(reference)}), got {len(array)}")


def distance(**arrays: np.ndarray) -> float:
    """Euclidean distance of two arrays of one length.

    Raises:
        ValueError: names both where it is beyond float64; an infinite distance would make a ratio 0.
    """
    (first, a), (second, b) = arrays.items()
    value = math.dist(a, b)
    if not math.isfinite(value):
        raise ValueError(f"{first} and {second} are too far apart for float64, got {a[0]!r} and {b[0]!r}")
    return value


def mean(name: str, array: np.ndarray) -> float:
    """Mean of the correctly rounded sum: the same for any order of the values.

    Raises:
        ValueError: the sum is beyond float64; the message names the argument.
    """
    try:
        return math.fsum(array.tolist()) / len(array)
    except OverflowError as error:
        raise ValueError(f"{name} has a sum beyond float64, its largest value is {float(array.max())!r}") from error
