"""Models on disk, as a user would save them."""

import pytest

from tests.support.tiny import save_tiny


@pytest.fixture
def directory(tmp_path):
    """A tiny llama with a tokenizer of the words w0 to w99."""
    return save_tiny(tmp_path / "my-model")
