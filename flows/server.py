"""A Prefect server on loopback: it answers this user alone, and a temporary one ends with the process that started it.

Whoever can create a flow run can run a command. So the server wants an authentication string, which neither other
users nor web pages know; it lets pages of its own origin alone read its answers; and it takes no request under another
host name, as of a page whose own name has come to resolve to loopback.

Prefect's own temporary server is left behind when its parent is killed. This one holds the read end of a pipe whose
other end only the parent has: end of file is the parent's end.
"""

import base64
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import click
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from sparse_control.errors import InputError, NotAvailable
from sparse_control.serving import client_environment, new_auth_string

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
POLL_SECONDS = 0.1
ANSWER_SECONDS = 2  # the socket listens before the server does, so an early question is never answered
REPLACEMENTS = 3  # of a temporary server that ends before its time
TEMPORARY = "temporary"  # tells the process of a server that standard input is its parent's pipe
EPHEMERAL = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}


def api_of(listening: socket.socket) -> str:
    """The API address of the server on a loopback socket."""
    return f"http://{HOST}:{listening.getsockname()[1]}/api"


def start_server(
    listening: socket.socket, auth_string: str, *arguments: str, environment: Mapping[str, str] = {}, **streams: Any
) -> subprocess.Popen[bytes]:
    """Start a server, in a process of its own, on a loopback socket that listens already.

    Args:
        listening: the socket.
        auth_string: that the server wants from everyone.
        arguments: further ones of `main`.
        environment: further variables of the process.
        streams: `stdin`, `stdout`, `stderr` and `start_new_session` of `subprocess.Popen`.
    """
    port = listening.getsockname()[1]
    folder = str(Path(__file__).resolve().parent.parent)  # where this module is found by its name
    own = {
        "PREFECT_SERVER_API_AUTH_STRING": auth_string,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in HOST_NAMES),
        "PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH")))),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "flows.server", str(listening.fileno()), *arguments],
        env=os.environ | client_environment(api_of(listening), auth_string) | own | environment,
        pass_fds=[listening.fileno()],
        **streams,
    )


@contextmanager
def temporary_server() -> Iterator[str]:
    """The API address of the server that PREFECT_API_URL names, or else of one for as long as this lasts.

    Raises:
        NotAvailable: PREFECT_API_URL names a server that does not answer, or not to this user.
        InputError: the server did not start in Prefect's home.
    """
    if lasting := PREFECT_API_URL.value():
        check_lasting(lasting)
        yield lasting
        return
    auth_string = new_auth_string()
    with socket.create_server((HOST, 0)) as listening, closing(_Temporary(listening, auth_string)) as server:
        url = api_of(listening)
        wait_until_it_answers(server.process, url, server.said)
        server.keep()
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: auth_string}):
            yield url


class _Temporary:
    """The process of a temporary server; where it ends before its time, another one takes over its socket."""

    def __init__(self, listening: socket.socket, auth_string: str) -> None:
        self._listening, self._auth_string = listening, auth_string
        self._last: deque[bytes] = deque(maxlen=20)
        self._over, self._turn = False, threading.Lock()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._start()

    def _start(self) -> None:
        self.process = start_server(
            self._listening, self._auth_string, TEMPORARY, environment=EPHEMERAL,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        threading.Thread(target=self._last.extend, args=(self.process.stderr,), daemon=True).start()

    def said(self) -> bytes:
        """The last that the server wrote to standard error."""
        return b"".join(self._last)

    def keep(self) -> None:
        """Replace the server whenever it ends, a few times at most; the database stands in Prefect's home."""
        self._keeper.start()

    def _keep(self) -> None:
        for again in range(REPLACEMENTS + 1):
            self.process.wait()
            with self._turn:
                if self._over:
                    return
                if again == 0:
                    click.echo("note: Prefect's server has ended; another one takes over, the run goes on", err=True)
                if again == REPLACEMENTS:
                    self._listening.close()  # or requests would wait for an answer
                    return
                self._start()

    def close(self) -> None:
        """End the server."""
        with self._turn:
            self._over = True
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()


def answers(url: str, *, timeout: float) -> bool:
    """Whether a server speaks HTTP at an API address."""
    return _status(f"{url}/health", timeout) is not None


def check_lasting(url: str) -> None:
    """Refuse an API address where no server answers, or where it does not answer to this user.

    Raises:
        NotAvailable: as said.
    """
    if not answers(url, timeout=10):
        mend = "start one (make serve), or do without (unset PREFECT_API_URL)"
        raise NotAvailable(f"PREFECT_API_URL {url}: no server answers there; {mend}")
    auth_string, key = PREFECT_API_AUTH_STRING.value(), PREFECT_API_KEY.value()
    if key is None and _status(f"{url}/version", 10, auth_string) in (401, 403):
        mend = "type the exports that `make serve` prints, or do without (unset PREFECT_API_URL)"
        raise NotAvailable(f"PREFECT_API_URL {url}: the server there wants another PREFECT_API_AUTH_STRING; {mend}")


def _status(url: str, timeout: float, auth_string: str | None = None) -> int | None:
    """The HTTP status that a GET has; None without an answer."""
    try:
        request = urllib.request.Request(url)
        if auth_string is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(auth_string.encode()).decode()}")
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return None


def wait_until_it_answers(server: subprocess.Popen[bytes], url: str, said: Callable[[], bytes]) -> None:
    """Return once a server that was started speaks HTTP.

    Args:
        server: its process.
        url: of its API.
        said: gives what it wrote.

    Raises:
        InputError: it ended, or gave no answer in time; the message names Prefect's home.
    """
    seconds = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        if answers(url, timeout=ANSWER_SECONDS):
            return
        time.sleep(POLL_SECONDS)
    lines = [line for line in said().decode(errors="replace").splitlines() if line.strip()]
    reason = f"no answer in {seconds} s" if server.poll() is None else lines[-1].strip() if lines else "it ended"
    home, mend = PREFECT_HOME.value(), "or set PREFECT_HOME to another folder"
    raise InputError(
        f"PREFECT_HOME {home}: Prefect's server did not start there ({reason[:200]}); "
        f"remove prefect.db in it, which holds no measurement, {mend}"
    )


# --- in the server's own process ------------------------------------------------------------------------------------


def _end_with_the_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


@asynccontextmanager
async def _told(lifespan: Any, app: Any) -> AsyncIterator[Any]:
    """The lifespan of an app; why it could not begin is the last line on standard error."""
    try:
        async with lifespan(app) as state:
            yield state
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        raise


def main(descriptor: int, temporary: bool) -> None:
    """Serve on an inherited listening socket; a temporary server until standard input ends."""
    from functools import partial

    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if temporary:
        threading.Thread(target=_end_with_the_parent, daemon=True).start()
    app = create_app(final=True)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOST_NAMES))
    app.router.lifespan_context = partial(_told, app.router.lifespan_context)
    config = uvicorn.Config(app, log_level="critical", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), TEMPORARY in sys.argv[2:])
