"""How many processes of this machine measure side by side, and how each of them ends."""

import os
import signal
import threading
from contextlib import suppress
from multiprocessing import parent_process

from sparse_control.errors import InputError, NotAvailable
from sparse_control.settings import Settings

AUTO = "auto"
MOST_PER_CORE = 4  # each process holds a model
BESIDE_WEIGHTS = 2  # a run holds at most this many times the weights (docs/cluster.md), and the libraries
LIBRARIES_BYTES = 1 << 30
DTYPE_BYTES = {"float64": 8, "float32": 4}  # 2 for all others


def worker_count(workers: int | str, settings: Settings | None) -> int:
    """The number of processes that `--workers` asks for; `auto` is one per core, as far as memory goes.

    With `auto` there is one where the machine has a GPU, which processes would share, and where the weights are not on
    this machine, so that nothing is known of the memory they take; it needs the settings.

    Raises:
        InputError: neither a whole number that is fair for this machine nor `auto`.
    """
    cores = _cores()
    if workers == AUTO:
        by_memory = _by_memory(settings.model, settings.dtype)
        return max(1, min(cores // settings.threads, by_memory))
    most = MOST_PER_CORE * cores
    text = str(workers)
    if isinstance(workers, bool) or not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= most):
        raise InputError(f"workers {workers}: must be a whole number from 1 to {most}, or {AUTO}")
    return int(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _by_memory(model: str, dtype: str) -> int:
    """How many processes with the model fit into the memory that is free."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return 1
    with suppress(NotAvailable):
        bytes_each = LIBRARIES_BYTES + BESIDE_WEIGHTS * _weights_bytes(model, dtype)
        return int(psutil.virtual_memory().available // bytes_each)
    return 1


def _weights_bytes(model: str, dtype: str) -> int:
    """Bytes of a model's weights in the dtype that it computes in.

    Raises:
        NotAvailable: as `locate`.
    """
    from math import prod

    from safetensors import safe_open

    from sparse_control.models.gguf_file import read_header
    from sparse_control.models.locate import locate

    location = locate(model)
    numbers = 0
    for path in map(location.folder.joinpath, location.files):
        if location.is_gguf:
            numbers += sum(prod(tensor.shape) for tensor in read_header(path).tensors.values())
        elif path.suffix == ".safetensors":
            with safe_open(path, "numpy") as tensors:
                numbers += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())
    return numbers * DTYPE_BYTES.get(dtype, 2)


def end_with_parent() -> None:
    """In a worker process: leave Ctrl-C to the parent, and end when it ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
