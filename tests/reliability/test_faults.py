"""A full disk, a read-only folder, a second run on the same folder, a server without its parent."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.server import answers, temporary_server
from sparse_control.errors import InputError, NotAvailable
from sparse_control.files import TEMPORARY
from sparse_control.records.lock import root_lock
from sparse_control.stages.checkpoint import SUFFIX, Checkpoint
from sparse_control.stages.states import load_tensors
from tests.reliability.conftest import PROJECT, content_of

SERVED = """
import sys, time
from flows.server import temporary_server
with temporary_server() as url:
    print(url, flush=True)
    time.sleep(600)
"""


OUTLIVED = """
import sys
from pathlib import Path
from flows.common import Progress, Step
from flows.in_process import run_in_process
import psutil
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from sparse_control.receipt import Receipt
from tasks.caching import content_key

def cached(name):
    key = content_key(name, schema=1, modules=("sparse_control.receipt",))
    return task(name=name, persist_result=True, result_serializer="json", cache_key_fn=key)

def written(name, root):
    path = Path(root) / name
    path.write_text(name)
    return Receipt.of(Path(root), [path]).as_json()

@cached("first")
def first(root: str) -> dict[str, str]:
    (server,) = (one for one in psutil.Process().children() if "flows.server" in one.cmdline())
    server.kill()
    return written("first", root)

@cached("second")
def second(root: str) -> dict[str, str]:
    return written("second", root)

@flow(name="small", persist_result=False)
def small(root: str) -> list[str]:
    with ThreadPoolTaskRunner(max_workers=1) as runner:
        progress = Progress("small", [runner])
        progress.run([Step(one, one.name, {"root": root}) for one in (first, second)], below=Path(root))
    return [step["step"] for step in progress.steps]

print(run_in_process(small, {"root": sys.argv[1]}))
"""


def log(root: Path) -> str:
    return root.with_suffix(".log").read_text()


# --- one run at a time ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_whole_run_is_refused_while_another_holds_the_folder(launcher, tmp_path, faults):
    root = tmp_path / "six_axis"
    root.mkdir()
    with root_lock(root):
        assert launcher.run("six_axis", root) == 2
    assert "another command is writing into it" in log(root)
    assert content_of(root) == {}
    faults.inject("second run on one folder")
    faults.survive("second run on one folder")


# --- disks ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "most"), [("official_iss", 20), ("six_axis", 3)])
def test_a_full_disk_is_one_line_and_what_stands_stays(launcher, tmp_path, flow, most, faults):
    whole, root = tmp_path / "whole", tmp_path / flow
    assert launcher.run(flow, whole) == 0, log(whole)
    wanted, kept, full = content_of(whole), {}, 0
    draw = random.Random(0)
    while (code := launcher.run(flow, root, full_after=draw.randint(0, most))) != 0:
        faults.inject(f"full disk during {flow}")
        assert code == 2, log(root)
        lines = log(root).splitlines()
        assert lines[-1].startswith("error: ") and "cannot be written (No space left on device)" in lines[-1]
        assert "Traceback" not in log(root)
        full += 1
        results = set(wanted) - {
            "MANIFEST.json",
            "README.md",
        }  # they list what there is, and are written after each step
        standing = {path: sha256 for path, sha256 in content_of(root).items() if path in results}
        assert kept.items() <= standing.items(), "earlier results are intact"
        assert standing.items() <= wanted.items(), "and nothing half-written is among them"
        assert full < 60
        kept = standing
    assert content_of(root) == wanted
    assert full > 3
    faults.survive(f"full disk during {flow}", full)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_a_read_only_folder_is_one_line(launcher, tmp_path, begun, faults):
    root = tmp_path / "official_iss"
    if begun:
        assert launcher.run("official_iss", root, kill=["B", 3]) == -9
    before = content_of(root)
    assert launcher.run("official_iss", root, read_only=True) == 2
    assert log(root).splitlines()[-1].startswith(f"error: root {root}: cannot be written (Read-only file system")
    assert content_of(root) == before
    faults.inject("read-only folder")
    faults.survive("read-only folder")


@pytest.mark.parametrize("root", ["/proc/sparse_control", "/dev/null/sparse_control"])
def test_a_folder_that_cannot_be_made_is_one_line(root):
    from flows.parameters import made_root

    with pytest.raises(InputError, match="cannot be made"):
        made_root(Path(root))


# --- unfinished work ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unfinished_work_is_no_result_and_goes_on_only_as_it_was_begun(launcher, tiny_folder, tmp_path, faults):
    root = tmp_path / "official_iss"
    assert launcher.run("official_iss", root, kill=["A", 12]) == -9
    (begun, *_) = sorted(root.rglob(f"*{SUFFIX}"))
    with pytest.raises(InputError, match="is unfinished work and no result"):
        load_tensors(begun)
    assert not (root / "MANIFEST.json").exists()
    for name in ("model", "corpus", "dtype", "code"):
        with pytest.raises(InputError, match="holds unfinished work with another"):
            Checkpoint(begun.with_name(begun.name.removesuffix(SUFFIX)), {name: "another"}, {}, every=60).load()
    before = {path: sha256 for path, sha256 in content_of(root).items() if not path.endswith(TEMPORARY)}
    params = tiny_folder / "params.yaml"
    text = params.read_text()
    try:
        params.write_text(text.replace("dtype: float32", "dtype: float64"))
        assert launcher.run("official_iss", root) == 2
    finally:
        params.write_text(text)
    assert "holds unfinished work with another dtype (float32, now float64)" in log(root)
    assert {path: sha256 for path, sha256 in content_of(root).items() if path in before} == before
    faults.inject("unfinished work begun with other settings")
    faults.survive("unfinished work begun with other settings")


# --- the temporary server -------------------------------------------------------------------------------------------


def test_a_lasting_server_that_is_gone_is_one_line():
    gone = {PREFECT_API_URL: "http://127.0.0.1:9/api"}
    with temporary_settings(gone), pytest.raises(NotAvailable, match="no server answers there; start one .make serve."):
        with temporary_server():
            pass


@pytest.mark.slow
def test_the_temporary_server_ends_with_a_killed_run(tmp_path, faults):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVED], cwd=PROJECT, stdout=subprocess.PIPE, text=True,
        env=environment | {"PREFECT_HOME": str(tmp_path)},
    )  # fmt: skip
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:") and answers(url, timeout=5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 15
    while answers(url, timeout=5):
        assert time.monotonic() < end, "left behind"
        time.sleep(0.2)
    faults.inject("SIGKILL of a run with its own server")
    faults.survive("SIGKILL of a run with its own server")


@pytest.mark.slow
def test_a_run_outlives_its_server(tmp_path, faults):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    root = tmp_path / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVED, root], cwd=PROJECT, capture_output=True, text=True, timeout=240,
        env=environment | {"PREFECT_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "['first', 'second']\n"), done.stderr
    (note,) = (line for line in done.stderr.splitlines() if not line.startswith("small: "))
    assert note == "note: Prefect's server has ended; another one takes over, the run goes on"
    assert sorted(path.name for path in root.iterdir()) == ["first", "second"]
    faults.inject("SIGKILL of a run's own server")
    faults.survive("SIGKILL of a run's own server")
