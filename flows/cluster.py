"""Where the units of a flow run: in this process, one after the other, or on the workers of a Dask cluster."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_API_URL
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from sparse_control.errors import InputError, NotAvailable

LOCAL = re.compile(r"local:([1-9]\d{0,3})")
LOCAL_PER_CORE = 4  # each process holds a model
ADDRESS = re.compile(r"(?:(?:tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:\d{1,5}")


def check_dask(dask: str | None) -> None:
    """Refuse what is neither an address nor a fair `local:N`, and an address where nobody listens.

    Raises:
        InputError: as said.
        NotAvailable: prefect-dask is not installed.
    """
    if dask is None:
        return
    local = dask.split(":")[0] == "local"
    if not (LOCAL if local else ADDRESS).fullmatch(dask):
        raise InputError(f"dask {dask}: is neither local:N nor the address of a scheduler, as tcp://HOST:8786")
    _dask_task_runner(dask)
    if local:
        most = LOCAL_PER_CORE * (os.cpu_count() or 1)
        if int(dask.partition(":")[2]) > most:
            raise InputError(f"dask {dask}: is too many processes for this machine; use local:1 to local:{most}")
        return
    host, _, port = dask.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the latter of a name that no host can have
        raise InputError(f"dask {dask}: no scheduler answers there ({error}); start it with: dask scheduler") from error


def _dask_task_runner(dask: str) -> type[TaskRunner[Any]]:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise NotAvailable(f"dask {dask}: prefect-dask is not installed; run: pip install prefect-dask") from error
    return DaskTaskRunner


def task_runner(dask: str | None = None) -> TaskRunner[Any]:
    """The embedded runner; or the runner of a Dask cluster, by its scheduler's address or `local:N` processes here.

    Raises:
        NotAvailable: prefect-dask is not installed.
    """
    if dask is None:
        return ThreadPoolTaskRunner(max_workers=1)
    runner = _dask_task_runner(dask)
    if not (local := LOCAL.fullmatch(dask)):
        return runner(address=dask)
    # processes of one thread each: hooks stand on a model, and one process has one
    workers = {"n_workers": int(local[1]), "threads_per_worker": 1, "processes": True}
    return runner(
        cluster_kwargs=workers | {"host": "127.0.0.1", "dashboard_address": None, "silence_logs": logging.ERROR}
    )


@contextmanager
def started_runner(dask: str | None, root: Path, *modules: str) -> Iterator[TaskRunner[Any]]:
    """A started runner; of a cluster, every worker has been asked what it sees.

    Args:
        dask: as for `task_runner`.
        root: the folder measured into, which every worker must see under the same path.
        modules: whose code must be the same on every worker.

    Raises:
        InputError: no worker, or one that sees another code, no such folder, or no Prefect API.
    """
    with task_runner(dask) as runner:
        if dask is not None:
            _check_workers(runner, dask, root, modules)
        yield runner


@dataclass(frozen=True)
class Sight:
    """What a worker sees."""

    code: str
    root: bool
    api: bool


def _sight(root: str, modules: tuple[str, ...], api: str | None) -> Sight:
    from flows.server import answers
    from sparse_control.code_hash import code_sha256

    return Sight(code_sha256(*modules), Path(root).is_dir(), api is None or answers(api, timeout=10))


def _check_workers(runner: TaskRunner[Any], dask: str, root: Path, modules: tuple[str, ...]) -> None:
    api = PREFECT_API_URL.value()
    here = _sight(str(root), modules, api)
    seen = runner.client.run(_sight, str(root), modules, api)
    if not seen:
        raise InputError(f"dask {dask}: the cluster has no workers; start one with: dask worker ADDRESS --nthreads 1")
    for worker, sight in sorted(seen.items()):
        if sight.code != here.code:
            raise InputError(f"dask {dask}: worker {worker} has other code; give it this version of the project")
        if not sight.root:
            raise InputError(f"dask {dask}: worker {worker} does not see {root}; use a folder that all machines share")
        if not sight.api:
            raise InputError(
                f"dask {dask}: worker {worker} cannot reach the Prefect API at {api}; see docs/cluster.md on tunnels"
            )
