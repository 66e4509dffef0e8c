"""One random stream per (seed, task, split, purpose); nothing in the project uses global random state."""

import hashlib
import json

import numpy as np


def stream(seed: int, task: str, split: str, purpose: str) -> np.random.Generator:
    """Return the generator of one (seed, task, split, purpose).

    Streams are independent of the order in which they are asked for, so adding a split or a purpose
    never changes the draws of another one.

    Raises:
        ValueError: `seed` is not a non-negative integer (booleans are refused).
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed must be a non-negative integer, got {seed!r}")
    key = json.dumps([int(seed), task, split, purpose]).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key).digest(), "little")))
