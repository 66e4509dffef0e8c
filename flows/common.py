"""What the flows share: settings checked before any work, one line of progress per step, the runner."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from prefect import Task
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.interrupt import interruptible
from sparse_control.errors import InputError, NotAvailable
from sparse_control.models.fetch import registry
from sparse_control.project import project_folder
from sparse_control.receipt import Receipt
from sparse_control.settings import Settings, load_settings
from tasks.caching import run_cached


def checked_settings(preset: str, model: str | None) -> Settings:
    """The settings of a preset; against the model's shape, too, where the registry knows it.

    Raises:
        InputError: one line that names the file, the field and the mend.
    """
    settings = load_settings(project_folder() / "params.yaml", preset, model)
    if source := registry().get(settings.model):
        settings.check_width(source.width, source.layers)
    return settings


def resolved(name: str, folder: str) -> Path:
    """An absolute path; `~` and `~user` are expanded.

    Raises:
        InputError: an unknown user.
    """
    try:
        return Path(folder).expanduser().resolve()
    except RuntimeError as error:
        raise InputError(f"{name} {folder}: {error}; give a path") from error


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
    """The project's own data files that a step reads."""
    folder = Path(__file__).resolve().parent.parent / "sparse_control" / "data"
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def task_runner(dask: str | None = None) -> TaskRunner[Any]:
    """The embedded runner, or a Dask cluster's by its scheduler address.

    Raises:
        NotAvailable: prefect-dask is not installed.
    """
    if dask is None:
        return ThreadPoolTaskRunner(max_workers=1)
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise NotAvailable(f"--dask {dask}: prefect-dask is not installed; run: pip install prefect-dask") from error
    return DaskTaskRunner(address=dask)


@dataclass
class Progress:
    """Runs the steps of one flow, tells of each on stderr and keeps what the summary says of them."""

    flow: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    def run(self, task: Task, label: str, *, below: Path, **arguments: Any) -> Receipt:
        click.echo(f"{self.flow}: {label} ...", err=True)
        start = time.monotonic()
        with interruptible():
            receipt, skipped = run_cached(task, below=below, arguments=arguments)
        spent = "unchanged, skipped" if skipped else f"{time.monotonic() - start:.1f} s"
        click.echo(f"{self.flow}: {label}: {spent}", err=True)
        self.steps.append({"step": label, "skipped": skipped, "files": receipt.as_json()})
        return receipt

    def summary(self, settings: Settings, root: Path) -> dict[str, Any]:
        """What the flow returns: plain values only."""
        return {
            "flow": self.flow,
            "preset": settings.preset,
            "model": settings.model,
            "root": str(root),
            "steps": self.steps,
        }


def merged(receipts: Iterable[Receipt]) -> dict[str, str]:
    """All files of several receipts, as a step takes what came before it."""
    return {path: sha256 for receipt in receipts for path, sha256 in receipt.files}
