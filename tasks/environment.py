"""Prefect's own settings, made before it is imported: home in the project, no analytics, quiet logs, patient start."""

import logging
import os
import tempfile
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.project import project_folder


def settle() -> None:
    """Set what the environment leaves open; a variable that is set already wins."""
    for name, value in {
        "PREFECT_HOME": str(_home()),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_CLI_PROMPT": "false",
        "DASK_LOGGING__DISTRIBUTED": "error",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(_is_no_input_error)


def _home() -> Path:
    """`.prefect` in the project; where that cannot be written, a folder of this user below the temporary folder."""
    project = project_folder()
    if os.access(project, os.W_OK):
        return project / ".prefect"
    owner = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"sparse-control-{owner}" / ".prefect"


def _is_no_input_error(record: logging.LogRecord) -> bool:
    """An error the caller can mend is reported once, by the caller, in one line and without a traceback."""
    raised = record.exc_info[1] if record.exc_info else None
    return not (isinstance(raised, InputError) or f"exception {InputError.__name__}:" in record.getMessage())
