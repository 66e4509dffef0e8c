"""Permissions that hold: an administrator who runs the tests gives up the right to pass over them."""

import os
import shutil

import pytest


def bound_by_permissions() -> list[str]:
    """What to put before a command so that read-only folders are read-only to it."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("an administrator without setpriv cannot be refused")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
