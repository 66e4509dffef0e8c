"""Every pool of a process at one number of threads: the same bytes whatever the environment says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from sparse_control.threads import pin_threads

PROJECT = Path(__file__).parent.parent
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# sizes at which OpenBLAS and MKL split their sums, through the functions whose numbers are kept
WORK = """
import hashlib, sys
from sparse_control.threads import pin_threads
if sys.argv[1] != "none":
    pin_threads(int(sys.argv[1]))
import numpy as np, torch
from sparse_control.iss import internal_state_stability
from sparse_control.iss.shrinkage import shrinkage_lam_rel
from sparse_control.jacobian import DenseOperator, randomized_qb
from sparse_control.jacobian.alternatives import activation_factors, svd_factors
random = np.random.default_rng(0)
z, matrix = random.standard_normal((720, 640)), random.standard_normal((640, 640))
relations = [f"r{row // 120}" for row in range(720)]
families = [f"t{row % 4}" for row in range(720)]
parts = [
    internal_state_stability(z, [f"f{row // 20}" for row in range(720)], relations, families, 0.1).iss.to_numpy(),
    shrinkage_lam_rel(z, relations, families),
    *((factors.Q, factors.B) for factors in (
        randomized_qb(DenseOperator(matrix), 96),
        activation_factors(DenseOperator(matrix), z, 64),
        svd_factors(torch.from_numpy(matrix), 64),
    )),
]
for part in parts:
    arrays = part if isinstance(part, tuple) else (part,)
    print(hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest())
"""


def hashes(pinned: str, threads: str) -> list[str]:
    environment = os.environ | dict.fromkeys(LIMITS, threads)
    done = subprocess.run(
        [sys.executable, "-c", WORK, pinned], capture_output=True, text=True, env=environment, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_same_bytes_whatever_the_environment_says():
    one, two = hashes("1", "1"), hashes("1", "2")
    assert len(one) == 5 and one == two


def test_every_pool_follows_and_bad_numbers_are_refused():
    import torch

    try:
        pin_threads(2)
        assert torch.get_num_threads() == 2 and {pool["num_threads"] for pool in threadpool_info()} == {2}
    finally:
        pin_threads(1)
    assert torch.get_num_threads() == 1 and {pool["num_threads"] for pool in threadpool_info()} == {1}
    assert {pool["internal_api"] for pool in threadpool_info()} >= {"openblas", "openmp"}
    for bad in (0, -1, True, 1.0, "1", None):
        with pytest.raises(ValueError, match="threads must be an integer at least 1"):
            pin_threads(bad)


def test_nothing_else_sets_a_number_of_threads():
    own = re.compile(r"set_num_threads|set_num_interop_threads|threadpool_limits|_NUM_THREADS")
    for folder in ("sparse_control", "tasks", "flows", "benchmarks"):
        for path in (PROJECT / folder).rglob("*.py"):
            if path != PROJECT / "sparse_control/threads.py":
                assert not own.search(path.read_text("utf-8")), path
