"""Complete small roots, built once and copied for each test that changes one."""

import shutil
from pathlib import Path

import pytest

from tests.artifact_root import build_root


@pytest.fixture(scope="session")
def built_root(tmp_path_factory):
    return build_root(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="session")
def built_whole_root(tmp_path_factory):
    """With the nulls and the medium model."""
    return build_root(tmp_path_factory.mktemp("whole_root"), subroots=True)


@pytest.fixture
def root(built_root, tmp_path):
    return Path(shutil.copytree(built_root, tmp_path / "root"))


@pytest.fixture
def whole_root(built_whole_root, tmp_path):
    return Path(shutil.copytree(built_whole_root, tmp_path / "whole_root"))
