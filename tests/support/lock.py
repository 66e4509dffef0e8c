"""The lock of a root in the hands of another process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
HOLDER = """
import sys
from pathlib import Path
from sparse_control.records.lock import root_lock
with root_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(root: Path) -> Iterator[subprocess.Popen]:
    """While another process holds the lock of `root`; it ends with its standard input."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, root], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
