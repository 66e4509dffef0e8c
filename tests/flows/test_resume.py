"""A killed run goes on where it was, and a change in a helper module runs the step again: in a copied project."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

HELPER = "VALUE = 1\n"
STAGE = """
import time
from pathlib import Path
from sparse_control.receipt import Receipt
from sparse_control.small import helper

def run(name, root, wait=0.0):
    root = Path(root)
    with open(root / "bodies.log", "a") as log:
        log.write(name + "\\n")
    time.sleep(wait)
    (root / f"{name}.txt").write_text(f"{name} {helper.VALUE}")
    return Receipt.of(root, [f"{name}.txt"])
"""
FLOW = """
import sys
from pathlib import Path
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from flows.common import Progress, Step
from flows.in_process import run_in_process
from tasks.caching import content_key

def cached(name):
    return {"name": name, "persist_result": True, "result_serializer": "json",
            "cache_key_fn": content_key(name, schema=1, modules=("sparse_control.small.small",))}

@task(**cached("one"))
def one(root: str) -> dict[str, str]:
    from sparse_control.small import small
    return small.run("one", root).as_json()

@task(**cached("two"))
def two(root: str) -> dict[str, str]:
    from sparse_control.small import small
    return small.run("two", root, wait=60.0 if (Path(root) / "slow").exists() else 0.0).as_json()

@flow(name="small", persist_result=False)
def small_flow(root: str) -> list[bool]:
    with ThreadPoolTaskRunner(max_workers=1) as runner:
        progress = Progress("small", [runner])
        for step in (one, two):
            progress.run([Step(step, step.name, {"root": root})], below=Path(root))
    return [step["skipped"] for step in progress.steps]

if __name__ == "__main__":
    print(run_in_process(small_flow, {"root": sys.argv[1]}))
"""


@pytest.fixture
def project(tmp_path):
    """A copy of the library and the tasks, with a flow of two small steps."""
    folder = tmp_path / "project"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "data")
    for package in ("sparse_control", "tasks", "flows"):
        shutil.copytree(PROJECT / package, folder / package, ignore=ignored)
    shutil.copy(PROJECT / "params.yaml", folder)
    stages = folder / "sparse_control" / "small"
    stages.mkdir()
    (stages / "__init__.py").write_text('"""Stages."""\n')
    (stages / "small.py").write_text(STAGE)
    (stages / "helper.py").write_text(HELPER)
    (folder / "flows" / "small.py").write_text(FLOW)
    (tmp_path / "root").mkdir()
    return folder


def _start(project):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.small", str(project.parent / "root")], cwd=project, text=True,
        env=environment | {"PYTHONPATH": str(project)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def _run(project):
    process = _start(project)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out.strip(), err


def _wait_for_bodies(process, project, wanted):
    deadline = time.monotonic() + 180
    while _bodies(project) != wanted:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)


def _bodies(project):
    log = project.parent / "root" / "bodies.log"
    return log.read_text().split() if log.exists() else []


@pytest.mark.slow
def test_ctrl_c_ends_a_run_at_once_in_one_line(project):
    (project.parent / "root" / "slow").touch()
    process = _start(project)
    _wait_for_bodies(process, project, ["one", "two"])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted; the same command goes on where it stopped"
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_killed_run_resumes_and_a_changed_helper_runs_again(project):
    root = project.parent / "root"
    (root / "slow").touch()
    process = _start(project)
    _wait_for_bodies(process, project, ["one", "two"])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (root / "two.txt").exists()

    (root / "slow").unlink()
    out, err = _run(project)
    assert out == "[True, False]" and _bodies(project) == ["one", "two", "two"]
    assert "small: one: unchanged, skipped" in err and "telemetry" not in err.lower() and "locked" not in err
    assert (project / ".prefect").is_dir()

    (project / "sparse_control" / "small" / "helper.py").write_text("VALUE = 2\n")
    assert _run(project)[0] == "[False, False]"
    assert (root / "one.txt").read_text() == "one 2"
