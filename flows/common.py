"""Steps of a flow and their units of work, and one line of progress for each."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from flows.parameters import Run
from flows.reports import ProgressBar
from sparse_control.notes import note
from sparse_control.receipt import Receipt
from tasks.caching import finished, standing_receipt, started


def data_files(*patterns: str) -> list[Path]:
    """The project's own data files that a step reads, by glob patterns, in order."""
    folder = Path(__file__).resolve().parent.parent / "sparse_control" / "data"
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


@dataclass(frozen=True)
class Step:
    """A task with its arguments.

    Attributes:
        task: with a content key; returns a receipt as JSON.
        label: what a person reads.
        arguments: of the task.
        units: gives the steps that do its work piece by piece, in any order and on any machine; the task then puts
            the pieces together. It is not asked for them where the task's own result stands.
        order: in which units are started, the lowest first, those of several steps among each other. Units of the
            same order share work that a process does once, so they follow each other in one; of () each is alone.
    """

    task: Task
    label: str
    arguments: dict[str, Any]
    units: Callable[[], Sequence["Step"]] = tuple
    order: tuple[int, ...] = ()


@dataclass
class Progress:
    """Runs the steps of one flow, tells of each on stderr and keeps what the summary says of them.

    Attributes:
        flow: its name.
        runners: started ones; units run on all of them, steps on the first.
        steps: what the summary says of each.
    """

    flow: str
    runners: Sequence[TaskRunner[Any]]
    steps: list[dict[str, Any]] = field(default_factory=list)

    def run(self, steps: Sequence[Step], *, below: Path) -> list[Receipt]:
        """The receipts of the steps, in order; what is unchanged and whole is skipped.

        Raises:
            InputError: as the tasks, or a task reports files it has not written.
        """
        standing = [standing_receipt(step.task, below=below, arguments=step.arguments) for step in steps]
        pairs = list(zip(steps, standing, strict=True))
        units = [unit for step, receipt in pairs if receipt is None for unit in step.units()]
        self._run_units(sorted(units, key=lambda unit: unit.order), below)
        return [self._run_step(step, receipt, below) for step, receipt in pairs]

    def _run_step(self, step: Step, standing: Receipt | None, below: Path) -> Receipt:
        start = time.monotonic()
        if standing is None:
            self.say(f"{step.label} ...")
        receipt = standing or finished(step.task, started(step.task, self.runners[0], step.arguments), below=below)
        self.say(f"{step.label}: " + ("unchanged, skipped" if standing else f"{time.monotonic() - start:.1f} s"))
        self.steps.append({"step": step.label, "skipped": standing is not None, "files": receipt.as_json()})
        return receipt

    def _run_units(self, units: list[Step], below: Path) -> None:
        waiting = [unit for unit in units if not _stands(unit, below)]
        if done := len(units) - len(waiting):
            self.say(f"{done} of {len(units)} units stand already")
        if not waiting:
            return
        with ProgressBar(self.flow, total=len(units), done=len(units) - len(waiting)) as bar:
            for unit, seconds in self._finished_units(waiting, below):
                bar.advance()
                self.say(f"{unit.label}: {seconds:.1f} s ({bar.done} of {bar.total})")

    def _finished_units(self, units: Sequence[Step], below: Path) -> Iterator[tuple[Step, float]]:
        """Units and the seconds each took, as they finish.

        A runner has one unit at a time, so after the first that fails no other is started.
        """
        alone = count()
        groups = deque(list(group) for _, group in groupby(units, lambda unit: unit.order or next(alone)))
        own: list[deque[Step]] = [deque() for _ in self.runners]
        ended: SimpleQueue[tuple[int, Step, PrefectFuture[Any], float]] = SimpleQueue()

        def start(index: int) -> bool:
            if not own[index] and groups:
                own[index].extend(groups.popleft())
            if not own[index]:
                return False
            unit, begun = own[index].popleft(), time.monotonic()
            future = started(unit.task, self.runners[index], unit.arguments)
            future.add_done_callback(lambda _: ended.put((index, unit, future, begun)))
            return True

        running = sum(map(start, range(len(self.runners))))
        while running:
            index, unit, future, begun = ended.get()
            finished(unit.task, future, below=below)
            yield unit, time.monotonic() - begun
            running += start(index) - 1

    def say(self, line: str) -> None:
        """One line on stderr, in the flow's name."""
        note(f"{self.flow}: {line}")

    def summary(self, run: Run) -> dict[str, Any]:
        """What the flow returns: plain values only."""
        return {
            "flow": self.flow,
            "preset": run.settings.preset,
            "model": run.settings.model,
            "root": str(run.root),
            "steps": self.steps,
        }


def _stands(unit: Step, below: Path) -> bool:
    return standing_receipt(unit.task, below=below, arguments=unit.arguments) is not None


def files_of(receipts: Iterable[Receipt]) -> list[str]:
    """The paths of several receipts."""
    return [path for receipt in receipts for path, _ in receipt.files]
