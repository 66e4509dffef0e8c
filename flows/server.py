"""A temporary Prefect server on loopback that ends with the process that started it, however that one ends.

Prefect's own temporary server is left behind when its parent is killed. This one holds the read end of a pipe whose
other end only the parent has: end of file is the parent's end.
"""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, temporary_settings

from sparse_control.errors import NotAvailable

HOST = "127.0.0.1"
POLL_SECONDS = 0.1


@contextmanager
def temporary_server() -> Iterator[str]:
    """The API address of the server that PREFECT_API_URL names, or else of one for as long as this lasts.

    Raises:
        NotAvailable: PREFECT_API_URL names a server that does not answer.
        RuntimeError: the server ended while it started, or took too long.
    """
    if lasting := PREFECT_API_URL.value():
        if not answers(lasting, timeout=10):
            mend = "start one (make serve), or do without (unset PREFECT_API_URL)"
            raise NotAvailable(f"PREFECT_API_URL {lasting}: no server answers there; {mend}")
        yield lasting
        return
    with socket.create_server((HOST, 0)) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/api"
        folder = str(Path(__file__).resolve().parent.parent)  # where this module is found by its name
        here = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        environment = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(listening.fileno())],
            env=os.environ | environment | {"PYTHONPATH": here},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
        )
    try:
        _wait_until_it_answers(server, url)
        with temporary_settings({PREFECT_API_URL: url}):
            yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdin.close()


def answers(url: str, *, timeout: float) -> bool:
    """Whether a server speaks HTTP at an API address."""
    try:
        urllib.request.urlopen(f"{url}/health", timeout=timeout).close()
    except urllib.error.HTTPError:  # it is there, and wants something else
        return True
    except (OSError, ValueError):
        return False
    return True


def _wait_until_it_answers(server: subprocess.Popen, url: str) -> None:
    end = time.monotonic() + PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the temporary Prefect server ended with exit code {server.returncode}")
        if answers(url, timeout=end - time.monotonic()):
            return
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"the temporary Prefect server did not answer at {url}")


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main(descriptor: int) -> None:
    """Serve on an inherited listening socket until standard input ends."""
    import uvicorn

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    config = uvicorn.Config("prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
