"""The metrics start in a bare process: nothing heavy comes along."""

import subprocess
import sys

MODULES = ["reachability", "reversal", "dose", "cost", "feedback", "preservation", "reuse"]


def test_metrics_load_numpy_alone():
    program = (
        "import sys\n"
        + "".join(f"import sparse_control.metrics.{name}\n" for name in MODULES)
        + "print(sorted({'torch', 'prefect', 'pandas', 'pydantic', 'scipy', 'sklearn', 'dvc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
