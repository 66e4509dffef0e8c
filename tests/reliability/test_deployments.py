"""`make serve`, deployed flows and `make stop`, for real: a server and a worker in a copy of the project."""

import base64
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sparse_control.files import read_json
from sparse_control.records.paths import ModelPaths, model_folders
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
        return self.run(
            "make", "-s", *arguments, f"PORT={self.port}", f"BIN={binaries}", "ALL=Makefile", "BASE=Makefile"
        )

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
    project = Project(tmp_path_factory.mktemp("deployed") / "a project", tiny_folder)
    for name in ("a", "project"):  # what an unquoted path names beside the checkout, and in it
        (project.folder.parent / name).write_text("not ours")
        (project.folder / name).write_text("not ours")
    try:
        yield project
    finally:
        project.make("stop")


def bystanders(project) -> list[str]:
    folders = (project.folder.parent, project.folder)
    return [(folder / name).read_text() for folder in folders for name in ("a", "project")]


def test_without_a_server_a_deployed_flow_is_refused_with_the_command_to_type(project):
    done = project.make("deployed", "FLOW=official-iss")
    assert done.returncode != 0 and "no Prefect server of this project runs; type: make serve" in done.stderr
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
    (line,) = (line for line in served.stdout.splitlines() if line.startswith("export PREFECT_API_AUTH_STRING="))
    secret = project.run("sh", "-c", f'{line}; printf %s "$PREFECT_API_AUTH_STRING"').stdout
    file = project.folder / "home" / "auth_string"
    assert secret == file.read_text().strip() and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in served.stdout + (project.folder / "home" / "serve.json").read_text()
    assert not any(secret in command for command in project.processes())
    with pytest.raises(urllib.error.HTTPError, match="401"):
        artifacts(address, "sparse-control:guess")

    root = project.folder / "measured"
    done = project.make("deployed", "FLOW=official-iss", f"PARAMETERS=-p preset=tiny -p 'root={root}'")
    worker = (project.folder / "home" / "worker.log").read_text
    assert done.returncode == 0, done.stdout + done.stderr + worker()
    (model,) = model_folders(root)  # called by its identity
    summary = read_json(ModelPaths(root, model).result("iss_model_summary.json"))
    assert summary["model"] == model and (root / "MANIFEST.json").exists()

    wrong = f"PARAMETERS=-p preset=none -p dask=nowhere -p 'root={root}'"
    done = project.make("deployed", "FLOW=official-iss", wrong)
    assert done.returncode != 0, "a failed flow is exit 1"
    for told in ("2 parameters are wrong: (1)", "no preset 'none'", "(2) dask nowhere"):
        assert told in worker()
    faults.inject("deployed flow that fails")
    faults.survive("deployed flow that fails")
    kinds = {artifact["type"]: artifact for artifact in artifacts(address, secret)}
    assert kinds["progress"]["data"] == 100.0 and kinds["progress"]["key"] == "official-iss-units"
    assert kinds["markdown"]["key"] == "official-iss-tables" and "Raw-ISS" in kinds["markdown"]["data"]

    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "prefect", "server"])
    try:
        remembered = project.folder / "home" / "serve.json"
        known = json.loads(remembered.read_text())
        assert project.make("stop").returncode == 0
        end = time.monotonic() + 20
        while left := project.processes():
            assert time.monotonic() < end, left
            time.sleep(0.2)
        # the numbers belong to another process by now
        remembered.write_text(
            json.dumps(known | {name: known[name] | {"pid": stranger.pid} for name in ("server", "worker")})
        )
        assert project.make("clean").returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not remembered.exists() and bystanders(project) == ["not ours"] * 4
    assert (root / "MANIFEST.json").exists(), "what was measured stays"


def artifacts(address: str, secret: str) -> list[dict]:
    request = urllib.request.Request(
        f"{address}/artifacts/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    request.add_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
