"""Running a flow in this process, as the command line does."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from prefect import Flow, flow
from prefect.settings import PREFECT_API_URL

from flows.interrupt import interruptible
from flows.server import temporary_server
from sparse_control.code_hash import code_closure


def run_in_process(started: Flow, parameters: dict[str, Any]) -> dict[str, Any]:
    """Run a flow to its end; its server and, where Dask is local, its workers end with this process.

    Args:
        started: one of the flows.
        parameters: of the flow.

    Returns:
        the flow's summary.

    Raises:
        InputError, NotAvailable: as the flow.
    """
    lasting = bool(PREFECT_API_URL.value())  # a lasting server is told of an interrupt, in Prefect's own way
    with nullcontext() if lasting else interruptible(), temporary_server():
        return started(**parameters)


def run_as_flow(name: str, function: Callable[..., dict[str, Any]], parameters: dict[str, Any]) -> dict[str, Any]:
    """Run a function of checked parameters as a flow of this name; otherwise as `run_in_process`."""
    code_closure(function.__module__)  # kept: Python 3.11 fails where two threads parse sources, as Prefect's also do
    return run_in_process(flow(function, name=name, persist_result=False, validate_parameters=False), parameters)
