"""`--workers`: how many processes, and which units each of them is given."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest

import tasks  # noqa: F401  settles the environment before Prefect reads it
from flows import common, workers
from flows.common import Progress, Step
from flows.parameters import checked_run
from flows.workers import worker_count
from sparse_control.errors import InputError
from tests.support.tiny import save_tiny, tiny_model
from tests.support.tiny_study import small_settings


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "0", "-1", "two", "", "1e9", "\u00b2", "9" * 5000, 10**6])
def test_bad_numbers_of_workers(wrong):
    with pytest.raises(InputError, match="^workers .*: must be a whole number from 1 to [0-9]+, or auto$"):
        worker_count(wrong, small_settings())
    assert worker_count("2", None) == worker_count(2, None) == 2


def test_a_cluster_has_its_own_workers(tmp_path):
    with pytest.raises(InputError, match="workers 2: are processes of this machine; the cluster of --dask has its own"):
        checked_run("six-axis", "smoke", None, str(tmp_path / "root"), dask="host", workers=2)


@pytest.mark.parametrize(
    ("cores", "threads", "models", "count"), [(8, 1, 3.9, 3), (8, 4, 99, 2), (2, 4, 99, 1), (4, 1, 0.5, 1)]
)
def test_auto_is_a_process_per_core_as_far_as_memory_goes(tmp_path, monkeypatch, cores, threads, models, count):
    import psutil

    class Memory:
        available = models * (workers.LIBRARIES_BYTES + workers.BESIDE_WEIGHTS * 4 * n_weights())

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(workers, "_cores", lambda: cores)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = save_tiny(tmp_path / "model")
    settings = small_settings().model_copy(update={"model": str(folder), "threads": threads})
    assert worker_count("auto", settings) == count
    assert workers._weights_bytes(str(folder), "float32") == 4 * n_weights()
    assert worker_count("auto", settings.model_copy(update={"model": "no/where"})) == 1


def n_weights():
    return sum(parameter.numel() for parameter in tiny_model().model.parameters())


class Runners:
    """Runners of one thread each, in place of Prefect's: which units each was given, and the most at a time."""

    def __init__(self, monkeypatch, n: int, fails: str = "") -> None:
        self.pools = [ThreadPoolExecutor(1) for _ in range(n)]
        self.given: list[list[str]] = [[] for _ in range(n)]
        self.at_work, self.most, self.lock, self.fails = [0] * n, [0] * n, Lock(), fails
        monkeypatch.setattr(common, "started", self.started)
        monkeypatch.setattr(common, "finished", lambda task, future, below: future.result())
        monkeypatch.setattr(common, "standing_receipt", lambda *_, **__: None)

    def started(self, task: str, runner: int, arguments: dict) -> Future:
        self.given[runner].append(task)
        with self.lock:
            self.at_work[runner] += 1
            self.most[runner] = max(self.most[runner], self.at_work[runner])
        return self.pools[runner].submit(self.work, task, runner)

    def work(self, task: str, runner: int) -> None:
        with self.lock:
            self.at_work[runner] -= 1
        if task == self.fails:
            raise InputError(f"{task} failed")

    def run(self, units: list[Step]) -> None:
        Progress("flow", range(len(self.pools)))._run_units(units, Path())


def test_units_of_one_order_follow_each_other_in_one_process(monkeypatch):
    runners = Runners(monkeypatch, 3)
    runners.run([Step(f"{seed}{selector}", "", {}, order=(seed,)) for seed in range(7) for selector in "abcd"])
    assert sorted(sum(runners.given, [])) == sorted(f"{seed}{selector}" for seed in range(7) for selector in "abcd")
    for given in runners.given:
        seeds = [name[0] for name in given]
        assert [name[1] for name in given] == list("abcd") * len(set(seeds)) and seeds == sorted(seeds)
    assert max(runners.most) == 1 and all(runners.given), "a process has one unit at a time, and none is idle"


def test_units_without_an_order_go_to_whichever_process_is_free(monkeypatch):
    runners = Runners(monkeypatch, 2)
    runners.run([Step(str(index), "", {}) for index in range(9)])
    assert all(runners.given) and sorted(sum(runners.given, [])) == sorted(map(str, range(9)))


@pytest.mark.parametrize("n", [1, 2])
def test_after_a_failure_no_unit_is_started(monkeypatch, n):
    runners = Runners(monkeypatch, n, fails="1")
    with pytest.raises(InputError, match="1 failed"):
        runners.run([Step(str(index), "", {}) for index in range(50)])
    assert len(sum(runners.given, [])) < 50
    assert n > 1 or runners.given == [["0", "1"]]
