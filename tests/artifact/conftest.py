"""A complete small root, built once and copied for each test that changes it."""

import shutil
from pathlib import Path

import pytest

from tests.artifact_root import build_root


@pytest.fixture(scope="session")
def built_root(tmp_path_factory):
    return build_root(tmp_path_factory.mktemp("root"))


@pytest.fixture
def root(built_root, tmp_path):
    return Path(shutil.copytree(built_root, tmp_path / "root"))
