"""Where the units of a flow run: in this process, in further ones beside it, or on the workers of a Dask cluster."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_API_URL
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from flows.workers import end_with_parent
from sparse_control.errors import InputError, NotAvailable

ADDRESS = re.compile(r"(?:(?:tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:\d{1,5}")


def check_dask(dask: str | None) -> None:
    """Refuse what is no address, and one where nobody listens.

    Raises:
        InputError: as said.
        NotAvailable: prefect-dask is not installed.
    """
    if dask is None:
        return
    if not ADDRESS.fullmatch(dask) or dask.startswith("local:"):
        raise InputError(
            f"dask {dask}: is not the address of a scheduler, as tcp://HOST:8786; processes here are --workers N"
        )
    _dask_task_runner(dask)
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


@contextmanager
def started_runners(dask: str | None, workers: int, root: Path, *modules: str) -> Iterator[list[TaskRunner[Any]]]:
    """Started runners, each of which is to be given one unit at a time.

    Here they are this process and `workers - 1` further ones, of one thread each, as a model and its hooks belong to a
    process. Of a cluster it is the same runner for each of its workers, which have been asked what they see.

    Args:
        dask: address of a Dask scheduler; None: this machine.
        workers: how many processes of it.
        root: the folder measured into, which every worker must see under the same path.
        modules: whose code must be the same on every worker.

    Raises:
        InputError: no worker, or one that sees another code, no such folder, or no Prefect API.
        NotAvailable: prefect-dask is not installed.
    """
    with ExitStack() as stack:
        if dask is not None:
            runner = stack.enter_context(_dask_task_runner(dask)(address=dask))
            yield [runner] * _check_workers(runner, dask, root, modules)
            return
        further = [ProcessPoolTaskRunner(1, initializer=end_with_parent) for _ in range(workers - 1)]
        yield [stack.enter_context(runner) for runner in (ThreadPoolTaskRunner(max_workers=1), *further)]


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


def _check_workers(runner: TaskRunner[Any], dask: str, root: Path, modules: tuple[str, ...]) -> int:
    """How many workers the cluster has, all of which see what they must."""
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
    return len(seen)
