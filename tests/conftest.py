"""Shared by all tests: no hub, a fixed number of threads, and the default model loaded once."""

import importlib.util
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small models are slower on several threads, and threads stall on busy cores."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def default_model():
    """The default model with its weights; skipped where they have not been fetched."""
    pytest.importorskip("torch")
    from sparse_control.errors import NotAvailable
    from sparse_control.models import load_model

    try:
        return load_model("smollm2-135m-instruct")
    except NotAvailable as error:
        pytest.skip(str(error))
