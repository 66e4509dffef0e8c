"""`make serve`, deployed flows and `make stop`, for real: a server and a worker in a copy of the project."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparse_control.files import read_json
from tests.reliability.conftest import PROJECT

pytestmark = pytest.mark.slow
COPIED = ("sparse_control", "tasks", "flows", "Makefile", "prefect.yaml", "prefect.toml")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Project:
    """A copy of the project with the tiny model, and the environment of its commands."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            place = PROJECT / name
            shutil.copytree(place, folder / name, ignore=ignored) if place.is_dir() else shutil.copy(place, folder)
        shutil.copy(tiny / "params.yaml", folder)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.environment = clean | {
            "PREFECT_HOME": str(folder / "home"),
            "PYTHONPATH": str(folder),
            "SPARSE_CONTROL_CACHE": str(tiny / "cache"),
        }

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment | environment, capture_output=True, text=True, timeout=300
        )

    def make(self, *arguments: str) -> subprocess.CompletedProcess:
        binaries = Path(sys.executable).parent
        return self.run("make", "-s", *arguments, f"PORT={self.port}", f"BIN={binaries}", "ALL=Makefile")

    def processes(self) -> list[str]:
        """Command lines of all processes that carry this project's Prefect home."""
        home, found = f"PREFECT_HOME={self.folder / 'home'}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if home in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_folder):
    project = Project(tmp_path_factory.mktemp("deployed") / "project", tiny_folder)
    try:
        yield project
    finally:
        project.make("stop")


def test_without_a_server_a_deployed_flow_is_refused_with_the_command_to_type(project):
    done = project.make("deployed", "FLOW=official-iss")
    assert done.returncode != 0 and "no Prefect server at" in done.stderr and "type: make serve" in done.stderr
    prefect = str(Path(sys.executable).parent / "prefect")
    done = project.run(prefect, "deployment", "run", "official-iss/official-iss", "--watch")
    assert done.returncode == 1 and "Please set PREFECT_API_URL" in done.stdout + done.stderr
    assert project.processes() == []


def test_served_deployed_watched_and_stopped(project, faults):
    served = project.make("serve")
    assert served.returncode == 0, served.stdout + served.stderr
    address = f"http://127.0.0.1:{project.port}/api"
    assert f"export PREFECT_API_URL={address}" in served.stdout
    for name in ("official-iss", "six-axis", "reproduce"):
        assert f"'{name}/{name}' --watch" in served.stdout
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    own = {place for place in listening if place.endswith(f":{project.port:04X}")}
    assert own == {f"0100007F:{project.port:04X}"}, "UI and API on loopback alone"

    root = project.folder / "measured"
    done = project.make("deployed", "FLOW=official-iss", f"PARAMETERS=-p preset=tiny -p root={root}")
    worker = (project.folder / "home" / "worker.log").read_text
    assert done.returncode == 0, done.stdout + done.stderr + worker()
    summary = read_json(root / "jacobian_iss" / "iss_model_summary.json")
    assert summary["model"] == "tiny" and (root / "MANIFEST.json").exists()

    wrong = f"PARAMETERS=-p preset=none -p dask=nowhere -p root={root}"
    done = project.make("deployed", "FLOW=official-iss", wrong)
    assert done.returncode != 0, "a failed flow is exit 1"
    for told in ("2 parameters are wrong: (1)", "no preset 'none'", "(2) dask nowhere"):
        assert told in worker()
    faults.inject("deployed flow that fails")
    faults.survive("deployed flow that fails")
    kinds = {artifact["type"]: artifact for artifact in artifacts(address)}
    assert kinds["progress"]["data"] == 100.0 and kinds["progress"]["key"] == "official-iss-units"
    assert kinds["markdown"]["key"] == "official-iss-tables" and "Raw-ISS" in kinds["markdown"]["data"]

    assert project.make("stop").returncode == 0
    end = time.monotonic() + 20
    while left := project.processes():
        assert time.monotonic() < end, left
        time.sleep(0.2)


def artifacts(address: str) -> list[dict]:
    import json
    import urllib.request

    request = urllib.request.Request(
        f"{address}/artifacts/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
