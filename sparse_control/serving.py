"""What `make serve` left running, and the secret of its server; both are kept in Prefect's home.

A process is known by its number, the time of its start and its arguments: the number in an old file may belong to
another process by now, whatever words that one was started with.
"""

import os
import secrets
import stat
from pathlib import Path
from typing import Self

import psutil

from sparse_control.errors import InputError
from sparse_control.files import read_text, write_json
from sparse_control.records.base import Count, Record, read_record

STATE = "serve.json"
SECRET = "auth_string"
SECONDS = 20  # for a process to end by itself
CLOCK = 2.0  # seconds between two readings of one start: the time of the boot is an estimate


class Started(Record):
    """One process that was started.

    Attributes:
        pid: its number.
        started: Unix time of its start, seconds.
        command: its arguments.
    """

    pid: Count
    started: float
    command: list[str]

    @classmethod
    def of(cls, pid: int) -> Self:
        """What is to be remembered of a running process."""
        process = psutil.Process(pid)
        return cls(pid=pid, started=process.create_time(), command=process.cmdline())

    def running(self) -> psutil.Process | None:
        """The process, where it is still there; another one that has its number is not it."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < CLOCK and process.cmdline() == self.command
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def end(self) -> None:
        """Let the process end, and then what it started; what has not after 20 seconds is killed."""
        if (process := self.running()) is not None:
            children = process.children(recursive=True)
            _end([process])
            _end(children)


def _end(processes: list[psutil.Process]) -> None:
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                signal(process)  # psutil asks first whether it is the same process
            except psutil.NoSuchProcess:
                continue
        _, processes = psutil.wait_procs(processes, timeout=SECONDS)


class Serving(Record):
    """A server and its worker.

    Attributes:
        url: of the server's API.
        server, worker: their processes; without a worker while the server is starting.
    """

    url: str
    server: Started
    worker: Started | None = None

    def write(self, home: Path) -> None:
        """Remember it in Prefect's home."""
        write_json(home / STATE, self.model_dump())


def known(home: Path) -> Serving | None:
    """What is remembered in Prefect's home.

    Raises:
        InputError: it cannot be read.
    """
    path = home / STATE
    return read_record(Serving, path) if path.exists() else None


def stop(home: Path) -> None:
    """End what is remembered in Prefect's home, and forget it.

    Raises:
        InputError: it cannot be read.
    """
    serving = known(home)
    for process in (serving.worker, serving.server) if serving else ():
        if process is not None:
            process.end()
    (home / STATE).unlink(missing_ok=True)


def new_auth_string() -> str:
    """`user:password` with a password that cannot be guessed."""
    return f"sparse-control:{secrets.token_urlsafe(32)}"


def auth_string(home: Path) -> str:
    """The secret of the server in Prefect's home, made once, in a file that nobody else can read.

    Raises:
        InputError: others can read the file, or it cannot be read or made.
    """
    path = home / SECRET
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_auth_string() + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    state = path.lstat()
    if not stat.S_ISREG(state.st_mode) or state.st_mode & 0o077:
        raise InputError(f"{path}: others can read it; remove it, and another one is made")
    text = read_text(path).strip()
    if not text:
        raise InputError(f"{path}: is empty; remove it, and another one is made")
    return text


def client_environment(url: str, secret: str) -> dict[str, str]:
    """What a process needs to talk to a server."""
    return {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": secret}
