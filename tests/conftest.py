"""Shared by all tests: no hub, a fixed number of threads, and the default model loaded once."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


@pytest.fixture(scope="session")
def default_model():
    """The default model with its weights; skipped where they have not been fetched."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(2)
    from sparse_control.errors import NotAvailable
    from sparse_control.models import load_model

    try:
        return load_model("smollm2-135m-instruct")
    except NotAvailable as error:
        pytest.skip(str(error))
