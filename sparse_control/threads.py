"""One number of threads for everything a process computes with.

BLAS and LAPACK split long sums over their threads, and another split rounds differently. A process holds several pools:
torch's own (OpenMP, and MKL inside it) and an OpenBLAS each for numpy and scipy, which without a word take every core.
With all of them at one number, the same code on the same processor gives the same bytes, whatever OMP_NUM_THREADS,
OPENBLAS_NUM_THREADS or MKL_NUM_THREADS say, on however many cores, and in however many processes the work is done.

Nothing is promised across kinds of processors: kernels for AVX2, AVX-512 or ARM add up in another order, as do other
builds of these libraries, whose versions are part of a model's identity. There, numbers agree to rounding. Torch's
second pool, of inter-op threads, runs operators beside each other and splits no sum; it is left as it is.
"""

import numpy as np  # noqa: F401  the pools of numpy and scipy exist once they are loaded
import scipy.linalg  # noqa: F401
import torch
from threadpoolctl import threadpool_limits

from sparse_control.arguments import whole_number


def pin_threads(threads: int) -> None:
    """Let torch and every BLAS and OpenMP pool of this process use `threads` threads from here on.

    Raises:
        ValueError: `threads` is not a positive integer.
    """
    threads = whole_number("threads", threads, 1)
    torch.set_num_threads(threads)
    threadpool_limits(threads)
