"""Steps of a flow and their units of work, and one line of progress for each."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from prefect import Task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.parameters import Run
from flows.reports import ProgressBar
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
        order: in which units are started, the lowest first, those of several steps among each other.
    """

    task: Task
    label: str
    arguments: dict[str, Any]
    units: Callable[[], Sequence["Step"]] = tuple
    order: tuple[int, ...] = ()


@dataclass
class Progress:
    """Runs the steps of one flow, tells of each on stderr and keeps what the summary says of them."""

    flow: str
    runner: TaskRunner[Any]
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
        receipt = standing or finished(step.task, started(step.task, self.runner, step.arguments), below=below)
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
            # one process is given one unit at a time, so that the first that fails is the last
            batch = 1 if isinstance(self.runner, ThreadPoolTaskRunner) else len(waiting)
            for first in range(0, len(waiting), batch):
                several = waiting[first : first + batch]
                start = time.monotonic()
                futures = [started(unit.task, self.runner, unit.arguments) for unit in several]
                for unit, future in zip(several, futures, strict=True):
                    finished(unit.task, future, below=below)
                    bar.advance()
                    self.say(f"{unit.label}: {time.monotonic() - start:.1f} s ({bar.done} of {bar.total})")

    def say(self, line: str) -> None:
        """One line on stderr, in the flow's name."""
        click.echo(f"{self.flow}: {line}", err=True)

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
