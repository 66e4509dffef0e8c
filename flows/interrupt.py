"""Ctrl-C and termination end an in-process run at once.

A task runs in a thread that Python cannot interrupt, and the embedded server, which has the same terminal, is gone by
the time the thread is done; left alone, Prefect then retries its requests for a minute. All files are written by
rename, so there is nothing to wait for.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    click.echo("error: interrupted; the same command goes on where it stopped", err=True)
    for server in list(SubprocessASGIServer._instances.values()):
        server.stop()
    os._exit(128 + number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, Ctrl-C ends the process with 130, termination with 143; a lasting server keeps Prefect's ways."""
    if PREFECT_API_URL.value() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
