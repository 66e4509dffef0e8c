"""A complete small root, built once and copied for each test that changes it."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))     # for artifact_root, the builder

from artifact_root import build_root  # noqa: E402


@pytest.fixture(scope="session")
def built_root(tmp_path_factory):
    return build_root(tmp_path_factory.mktemp("root"))


@pytest.fixture
def root(built_root, tmp_path):
    return Path(shutil.copytree(built_root, tmp_path / "root"))
