"""One random stream per (seed, task, split, purpose); nothing in the project uses global random state."""

import hashlib
import json

import numpy as np

from sparse_control.arguments import instance, whole_number


def stream(seed: int, task: str, split: str, purpose: str) -> np.random.Generator:
    """Return the generator of one (seed, task, split, purpose).

    Streams are independent of the order in which they are asked for, so adding a split or a purpose
    never changes the draws of another one.

    Raises:
        ValueError: `seed` is not an integer in 0..2^63-1 (booleans are refused), or a name is no text.
    """
    names = [instance(name, text, str) for name, text in (("task", task), ("split", split), ("purpose", purpose))]
    key = json.dumps([whole_number("seed", seed, 0), *names]).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(key).digest(), "little")))
