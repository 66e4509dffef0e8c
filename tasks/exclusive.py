"""One unit of work at a time in a process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_AT_WORK = threading.Lock()  # models, their hooks and torch's number of threads belong to the whole process


@contextmanager
def exclusive() -> Iterator[None]:
    """Waits while another thread of this process, as of a Dask worker with several, is within."""
    with _AT_WORK:
        yield
