"""A lasting Prefect server and worker on loopback, and the deployments of prefect.yaml: what `make serve` starts."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from prefect.settings import PREFECT_HOME

from flows.server import HOST, api_of, start_server, wait_until_it_answers
from sparse_control.errors import InputError
from sparse_control.project import project_folder
from sparse_control.serving import Serving, Started, auth_string, client_environment, stop

POOL = "local"
SERVER_LOG, WORKER_LOG = "server.log", "worker.log"


def start(port: int) -> Serving:
    """Start a server, register the deployments and start a worker; both outlive this process. What ran before ends.

    Args:
        port: of 127.0.0.1.

    Returns:
        what runs; it is remembered in Prefect's home, for `stop`.

    Raises:
        InputError: the port is taken, or the server does not start in Prefect's home.
        RuntimeError: Prefect refuses a deployment.
    """
    home = Path(PREFECT_HOME.value())
    stop(home)
    secret = auth_string(home)
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # a job of a plain shell ignores it, and so would a worker started there
    try:
        listening = socket.create_server((HOST, port))
    except OSError as error:
        raise InputError(f"port {port}: {error.strerror}; choose another one: make serve PORT=4201") from error
    environment = client_environment(api_of(listening), secret)
    log = home / SERVER_LOG
    with listening, open(log, "wb") as out:
        server = start_server(
            listening, secret, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    serving = Serving(url=environment["PREFECT_API_URL"], server=Started.of(server.pid))
    serving.write(home)
    try:
        wait_until_it_answers(server, serving.url, log.read_bytes)
        _prefect(environment, "work-pool", "create", POOL, "--type", "process", "--overwrite")
        _prefect(environment, "deploy", "--all")
        telling = environment | {"PREFECT_LOGGING_LEVEL": "INFO"}  # its log is where a flow run says why it failed
        with open(home / WORKER_LOG, "ab") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL],
                cwd=project_folder(), env=os.environ | telling, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        serving = serving.model_copy(update={"worker": Started.of(worker.pid)})
        serving.write(home)
    except BaseException:
        stop(home)
        raise
    return serving


def _prefect(environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        cwd=project_folder(), env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"prefect {' '.join(arguments)}: {' '.join((done.stderr or done.stdout).split())[-300:]}")
