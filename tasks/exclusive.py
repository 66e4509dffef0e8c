"""One unit of work at a time in a process, on the model that its key was made for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sparse_control.errors import InputError
from sparse_control.models.identity import model_identity
from sparse_control.settings import Settings

_AT_WORK = threading.Lock()  # models, their hooks and torch's number of threads belong to the whole process


@contextmanager
def exclusive(settings: Settings, weights: str) -> Iterator[None]:
    """Waits while another thread of this process, as of a Dask worker with several, is within.

    Args:
        settings: that name the model.
        weights: `ModelIdentity.sha256` in the key of the work.

    Raises:
        InputError: the model has other files or libraries than that, before the work or after it.
    """
    with _AT_WORK:
        _check_identity(settings, weights)
        yield
        _check_identity(settings, weights)


def _check_identity(settings: Settings, weights: str) -> None:
    """`load_model` itself refuses files that change while it reads them."""
    if (found := model_identity(settings.model, settings.dtype).sha256) != weights:
        raise InputError(
            f"model {settings.model}: its files or the libraries here are not those the run began with (identity "
            f"{found[:12]}, began with {weights[:12]}); run it again, with the same versions on every machine"
        )
