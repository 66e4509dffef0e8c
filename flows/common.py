"""What the flows share: parameters checked before any work, steps and their units, one line of progress for each."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from prefect import Task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.cluster import check_dask
from flows.reports import ProgressBar
from sparse_control.errors import InputError
from sparse_control.models.locate import check_model_name
from sparse_control.project import project_folder
from sparse_control.receipt import Receipt
from sparse_control.registry import registry
from sparse_control.settings import Settings, load_settings
from tasks.caching import finished, standing_receipt, started

T = TypeVar("T")


# --- parameters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Checked parameters of a measuring flow.

    Attributes:
        settings: of the preset, and of the model where one is named.
        root: the folder measured into; it exists.
    """

    settings: Settings
    root: Path


def checked_run(preset: str, model: str | None, root: str, dask: str | None = None) -> Run:
    """Check every parameter of a measuring flow, and only then make the folder it measures into.

    Raises:
        InputError: all that is wrong, in one line.
    """
    problems: list[str] = []

    def checked(check: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return check(*arguments)
        except InputError as error:
            problems.append(str(error))
            return None

    settings = checked(checked_settings, preset, model)
    if model is not None or settings is not None:
        checked(check_model_name, settings.model if model is None else model)
    place = checked(resolved, "root", root)
    checked(check_dask, dask)
    if settings is not None and place is not None and not problems:
        return Run(settings, checked_root(str(place)))
    told = [f"({number}) {problem}" for number, problem in enumerate(problems, start=1)]
    raise InputError(problems[0] if len(problems) == 1 else f"{len(problems)} parameters are wrong: {'; '.join(told)}")


def checked_settings(preset: str, model: str | None) -> Settings:
    """The settings of a preset; against the model's shape, too, where the registry knows it.

    Raises:
        InputError: one line that names the file, the field and the mend.
    """
    settings = load_settings(project_folder() / "params.yaml", preset, model)
    if settings.null != "none":  # would be measured into the official tree
        raise InputError(f"params.yaml: null: {settings.null}: is no setting of the file; remove it, and run nulls")
    if source := registry().get(settings.model):
        settings.check_width(source.width, source.layers)
    return settings


def resolved(name: str, folder: str) -> Path:
    """An absolute path; `~` and `~user` are expanded.

    Raises:
        InputError: an unknown user, or no path at all.
    """
    try:
        return Path(folder).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{name} {folder!r}: {error}; give a path") from error


def checked_root(root: str) -> Path:
    """The folder that is measured into, made if it is not there.

    Raises:
        InputError: it cannot be made.
    """
    path = resolved("root", root)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"root {root}: cannot be made ({error.strerror}); choose another --root") from error
    return path


def data_files(*patterns: str) -> list[Path]:
    """The project's own data files that a step reads, by glob patterns, in order."""
    folder = Path(__file__).resolve().parent.parent / "sparse_control" / "data"
    return sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


# --- steps ----------------------------------------------------------------------------------------------------------


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
            self._say(f"{step.label} ...")
        receipt = standing or finished(step.task, started(step.task, self.runner, step.arguments), below=below)
        self._say(f"{step.label}: " + ("unchanged, skipped" if standing else f"{time.monotonic() - start:.1f} s"))
        self.steps.append({"step": step.label, "skipped": standing is not None, "files": receipt.as_json()})
        return receipt

    def _run_units(self, units: list[Step], below: Path) -> None:
        waiting = [unit for unit in units if not _stands(unit, below)]
        if done := len(units) - len(waiting):
            self._say(f"{done} of {len(units)} units stand already")
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
                    self._say(f"{unit.label}: {time.monotonic() - start:.1f} s ({bar.done} of {bar.total})")

    def _say(self, line: str) -> None:
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
    return standing_receipt(unit.task, below=below, arguments=unit.arguments, together=True) is not None


def files_of(receipts: Iterable[Receipt]) -> list[str]:
    """The paths of several receipts."""
    return [path for receipt in receipts for path, _ in receipt.files]
