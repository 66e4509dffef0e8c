"""Prefect's own settings, made before it is imported: a home of this user's, no analytics, JSON, quiet logs."""

import logging
import os
import tomllib

from sparse_control.errors import InputError
from sparse_control.project import own_folder, prefect_home

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def settle() -> None:
    """Set what the environment leaves open; a variable that is set already wins.

    Raises:
        InputError: Prefect's home is not this user's alone, cannot be written to, or is broken.
    """
    home = own_folder("PREFECT_HOME", prefect_home())
    _check_profiles(home)
    for name, value in {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_CLI_PROMPT": "false",
        "DASK_LOGGING__DISTRIBUTED": "error",
    }.items():
        os.environ.setdefault(name, value)
    _reach_loopback_directly()
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(_is_no_input_error)


def _check_profiles(home: os.PathLike[str]) -> None:
    path = os.path.join(home, "profiles.toml")
    try:
        with open(path, "rb") as profiles:
            tomllib.load(profiles)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read by Prefect ({error}); remove it") from error


def _reach_loopback_directly() -> None:
    """A proxy of the environment has no way to this machine's own addresses."""
    named = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",")  # the first hides the second
    known = [host.strip() for host in named if host.strip()]
    if "*" not in known:
        known += [host for host in LOOPBACK if host not in known]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(known)


def _is_no_input_error(record: logging.LogRecord) -> bool:
    """An error the caller can mend is reported once, by the caller, in one line and without a traceback."""
    raised = record.exc_info[1] if record.exc_info else None
    return not (isinstance(raised, InputError) or f"exception {InputError.__name__}:" in record.getMessage())
