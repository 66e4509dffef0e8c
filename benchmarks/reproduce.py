"""`reproduce` and `verify` in fresh processes, against their limits of 10 s and 20 s.

    python -m benchmarks.reproduce [--root DIR] [--out FILE]

No torch, Prefect or DVC may be loaded. The last line is the smaller of limit / seconds, so above 1 is within both.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.common import report
from sparse_control.project import project_folder

LIMITS = {"reproduce": 10.0, "verify": 20.0}
HEAVY = ("torch", "transformers", "prefect", "dvc")
CHILD = f"""
import json, sys
from sparse_control.cli import main
code = main(sys.argv[2:])
json.dump({{"code": code, "heavy": [name for name in {HEAVY!r} if name in sys.modules]}}, open(sys.argv[1], "w"))
"""


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=project_folder(), help="Default: this project.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Default: a file in benchmarks/results.")
def main(root: Path, out: Path | None) -> None:
    """Time both commands."""
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        calls = {"reproduce": ["--root", str(root), "--out", f"{folder}/tables"], "verify": ["--root", str(root)]}
        for command, options in calls.items():
            note = Path(folder, "note.json")
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", CHILD, str(note), command, *options], check=True, stdout=subprocess.DEVNULL
            )
            result[f"{command}_seconds"] = time.perf_counter() - start
            found = json.loads(note.read_text("utf-8"))
            result[f"{command}_exit_code"], result[f"{command}_heavy_modules"] = found["code"], found["heavy"]
        result["files"] = len(list(Path(folder, "tables").rglob("*")))
    result["ratio"] = min(limit / result[f"{command}_seconds"] for command, limit in LIMITS.items())
    report("reproduce", result, "ratio", out)


if __name__ == "__main__":
    main()
