"""Ctrl-C and termination end an in-process run at once.

A task runs in a thread that Python cannot interrupt. All files are written by rename, and the temporary server ends
with this process, so there is nothing to wait for.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    click.echo("error: interrupted; the same command goes on where it stopped", err=True)
    os._exit(128 + number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, Ctrl-C ends the process with 130, termination with 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
