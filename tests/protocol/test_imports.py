"""What the package offers, whichever module is imported first."""

import subprocess
import sys

import pytest

NAMES = "Site, Intervention, Pair, driver_omp, coverage_driver, patched, measure"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_public_names_after_the_modules_that_hold_them():
    code = f"import sparse_control.protocol.study\nfrom sparse_control.protocol import {NAMES}\n"
    assert python(code + "print(callable(measure), callable(patched))") == "True True\n"


def test_selectors_and_panels_need_no_torch():
    code = "import sys\nfrom sparse_control.protocol import driver_omp, coverage_driver, Pair\n"
    assert python(code + "print({'torch', 'transformers', 'prefect'} & set(sys.modules))") == "set()\n"
