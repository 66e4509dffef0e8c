"""Running a flow in this process, as the command line does."""

from contextlib import nullcontext
from typing import Any

from prefect import Flow
from prefect.settings import PREFECT_API_URL

from flows.interrupt import interruptible
from flows.server import temporary_server


def run_in_process(flow: Flow, parameters: dict[str, Any]) -> dict[str, Any]:
    """Run a flow to its end; its server and, where Dask is local, its workers end with this process.

    Args:
        flow: one of the flows.
        parameters: of the flow.

    Returns:
        the flow's summary.

    Raises:
        InputError, NotAvailable: as the flow.
    """
    lasting = bool(PREFECT_API_URL.value())  # a lasting server is told of an interrupt, in Prefect's own way
    with nullcontext() if lasting else interruptible(), temporary_server():
        return flow(**parameters)
