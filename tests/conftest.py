"""Shared by all tests: no hub, a fixed number of threads, and the default model loaded once."""

import importlib.util
import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Small models are slower on several threads, and threads stall on busy cores."""
    if importlib.util.find_spec("torch") is not None:
        from sparse_control.threads import pin_threads

        pin_threads(1)


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


@pytest.fixture(scope="session")
def built_root(tmp_path_factory):
    """A complete small measured root, built once and copied for each test that changes it."""
    from tests.support.measured_root import build_root

    return build_root(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="session")
def built_whole_root(tmp_path_factory):
    """With the nulls and the medium model."""
    from tests.support.measured_root import build_root

    return build_root(tmp_path_factory.mktemp("whole_root"), whole=True)


@pytest.fixture
def root(built_root, tmp_path):
    return Path(shutil.copytree(built_root, tmp_path / "root"))


@pytest.fixture
def whole_root(built_whole_root, tmp_path):
    return Path(shutil.copytree(built_whole_root, tmp_path / "whole_root"))
