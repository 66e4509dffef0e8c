"""Distances and means of readouts; what is beyond the range of float64 is refused by the argument's name."""

import math

import numpy as np


def finite(name: str, value: float) -> float:
    """`value`, computed from the arguments `name`.

    Raises:
        ValueError: it is beyond float64; the message names the arguments.
    """
    if not math.isfinite(value):
        raise ValueError(f"{name} are too far apart for float64")
    return value


def distance(**arrays: np.ndarray) -> float:
    """Euclidean distance of two arrays of one length.

    Raises:
        ValueError: names both where it is beyond float64; an infinite distance would make a ratio 0.
    """
    (first, a), (second, b) = arrays.items()
    return finite(f"{first} and {second}", math.dist(a, b))


def mean(name: str, array: np.ndarray) -> float:
    """Mean of the correctly rounded sum: the same for any order of the values.

    Raises:
        ValueError: the sum is beyond float64; the message names the argument.
    """
    try:
        return math.fsum(array.tolist()) / len(array)
    except OverflowError as error:
        raise ValueError(f"{name} has a sum beyond float64, its largest value is {float(array.max())!r}") from error
