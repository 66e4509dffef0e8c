"""The same flows in two processes and on a Dask cluster: the bytes of the serial run, also after a kill."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from flows.cluster import check_dask
from sparse_control.errors import InputError
from tests.reliability.conftest import PROJECT, content_of

needs_dask = pytest.mark.skipif(importlib.util.find_spec("prefect_dask") is None, reason="needs prefect-dask")


@needs_dask
@pytest.mark.parametrize(
    ("dask", "message"),
    [
        ("local:2", "is not the address of a scheduler.*--workers N"),
        ("here and there", "is not the address of a scheduler"),
        ("tcp://127.0.0.1:9", "no scheduler answers there .*dask scheduler"),
        ("127.0.0.1:99999", "no scheduler answers there"),
    ],
)
def test_addresses_are_checked_before_any_work(dask, message):
    with pytest.raises(InputError, match=message):
        check_dask(dask)


@pytest.fixture
def measure(tiny_folder, api):
    """Starts a flow in a process of its own."""
    started = []

    def start(flow, root, **where):
        parameters = json.dumps({"root": str(root)} | where)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.measuring", str(tiny_folder), flow, parameters],
            cwd=PROJECT, env=os.environ | api, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_official_iss_on_two_processes_is_the_serial_run(launcher, measure, tmp_path):
    serial, both = tmp_path / "serial", tmp_path / "both"
    assert launcher.run("official_iss", serial) == 0, serial.with_suffix(".log").read_text()
    process = measure("official_iss", both, workers=2)
    told = process.stderr.read()
    assert process.wait() == 0, told
    assert "A prompts 6 to 8" in told and "(4 of 4)" in told
    assert content_of(both) == content_of(serial)


@pytest.fixture
def cluster():
    """A cluster that is there already, of two processes."""
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        yield cluster


@needs_dask
@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_by_its_address_loses_nothing(launcher, measure, cluster, tmp_path, faults):
    serial, dasked = tmp_path / "serial", tmp_path / "dasked"
    assert launcher.run("six_axis", serial) == 0, serial.with_suffix(".log").read_text()
    process = measure("six_axis", dasked, dask=cluster.scheduler_address)
    told, victim = [], None
    for line in process.stderr:
        told.append(line)
        if victim is None and (count := re.search(r"\((\d+) of (\d+)\)", line)) and int(count[1]) < int(count[2]):
            victim = next(iter(cluster.workers.values())).pid
            os.kill(victim, signal.SIGKILL)
            faults.inject("SIGKILL of a Dask worker")
    assert process.wait() == 0, "".join(told)
    assert victim is not None
    assert content_of(dasked) == content_of(serial)
    faults.survive("SIGKILL of a Dask worker")


@pytest.mark.slow
def test_a_killed_run_leaves_no_workers_and_goes_on(launcher, measure, tmp_path, faults):
    import psutil

    serial, both = tmp_path / "serial", tmp_path / "both"
    assert launcher.run("six_axis", serial) == 0, serial.with_suffix(".log").read_text()
    process = measure("six_axis", both, workers=2)
    told = []
    for line in process.stderr:
        told.append(line)
        if re.search(r"\((\d+) of (\d+)\)", line):
            break
    assert process.poll() is None, "".join(told)
    left = [psutil.Process(pid) for pid in workers(process.pid)]
    os.kill(process.pid, signal.SIGKILL)
    faults.inject("SIGKILL of a run on two processes")
    assert len(left) == 1 and not psutil.wait_procs(left, timeout=60)[1], "workers are left behind"
    assert launcher.run("six_axis", both) == 0, both.with_suffix(".log").read_text()
    assert content_of(both) == content_of(serial)
    faults.survive("SIGKILL of a run on two processes")


def workers(parent: int) -> list[int]:
    """Process ids of the further processes of a run."""
    import psutil

    children = psutil.Process(parent).children(recursive=True)
    return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
