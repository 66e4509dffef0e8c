"""Parameters of the flows that measure: checked once, all of them, before anything is started or made.

A command checks what it was given, a deployed flow what it was called with; both hand on a `Run`. Prefect stays out.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flows.workers import AUTO, worker_count
from sparse_control.errors import InputError, NotAvailable
from sparse_control.models.locate import base_label, check_model_name
from sparse_control.project import project_folder
from sparse_control.records.paths import check_label
from sparse_control.settings import Settings, load_settings
from sparse_control.stages.resolve import OFFICIAL, resolved

T = TypeVar("T")

USES = dict.fromkeys(("official-iss", "experiment-a", "experiment-b", "experiment-c", "experiment-d"), OFFICIAL) | {
    "nulls": ("nulls", "estimator"),
    "alternatives": (*OFFICIAL, "alternatives"),
    "six-axis": (),
}


@dataclass(frozen=True)
class Run:
    """Checked parameters.

    Attributes:
        flow: its name.
        settings: of the preset, and of the model where one is named; depths are as params.yaml has them.
        root: the folder measured into; it exists.
        dask: address of the cluster whose workers the units run on; None: on this machine.
        workers: processes of this machine that the units run in.
        wait: for another writer in the root to end, instead of refusing.
        accept_code: why a freeze made by other code is good enough, in words.
        replace: whether official ISS that the root has, of other facts, is set aside; it is refused otherwise.
    """

    flow: str
    settings: Settings
    root: Path
    dask: str | None = None
    workers: int = 1
    wait: bool = False
    accept_code: str | None = None
    replace: bool = False

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of the sections of the settings that the flow reads and that a model may not fit."""
        return USES[self.flow]


def checked_run(
    flow: str,
    preset: str,
    model: str | None,
    root: str,
    dask: str | None = None,
    wait: bool = False,
    workers: int | str = 1,
    *,
    accept_code: str | None = None,
    facts: str | None = None,
    prompts: str | None = None,
    replace: bool = False,
    narrowed: Callable[[Settings], Settings] = lambda settings: settings,
) -> Run:
    """Check every parameter, and only then make the folder that is measured into.

    Args:
        flow: its name.
        preset: of params.yaml.
        model: registry name, hub id, directory or GGUF path; None: the preset's own.
        root: folder to measure into.
        dask: the address of a Dask scheduler.
        wait: see `Run`.
        workers: how many processes of this machine, or `auto`, as of `worker_count`.
        accept_code, replace: see `Run`.
        facts, prompts: files of facts and prompts in place of the project's own, as of `iss.read_facts`.
        narrowed: the settings as they are asked for; raises an InputError for what cannot be.

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

    settings = checked(lambda: narrowed(checked_settings(preset, model, USES[flow], facts, prompts)))
    if model is not None or settings is not None:
        checked(_check_model, settings.model if model is None else model)
    folder = checked(resolved_path, "root", root)
    checked(_check_dask, dask)
    processes = checked(_processes, workers, dask, settings)
    checked(_check_reason, accept_code)
    if settings is not None and folder is not None and not problems:
        return Run(flow, settings, made_root(folder), dask, processes, wait, accept_code, replace)
    told = [f"({number}) {problem}" for number, problem in enumerate(problems, start=1)]
    raise InputError(problems[0] if len(problems) == 1 else f"{len(problems)} parameters are wrong: {'; '.join(told)}")


def checked_settings(
    preset: str, model: str | None, uses: Collection[str], facts: str | None = None, prompts: str | None = None
) -> Settings:
    """The settings of a preset, sections in use held against the data, and the model where its shape is known.

    Raises:
        InputError: one line that names the file, the field and what to do.
    """
    settings = load_settings(project_folder() / "params.yaml", preset, model)
    if settings.null != "none":  # would be measured into the official tree
        raise InputError(f"params.yaml: null: {settings.null}: is no setting of the file; remove it, and run nulls")
    if not uses:
        return settings
    from sparse_control.stages.queries import check_queries, with_facts

    if facts is not None:
        files = [None if path is None else resolved_path("facts", path) for path in (facts, prompts)]
        settings = with_facts(settings, *files)
    elif prompts is not None:
        raise InputError(f"prompts {prompts}: belong to facts of your own; give those with --facts")
    check_queries(settings)
    with suppress(NotAvailable):  # a model that the run will fetch, and be held against then
        resolved(settings, uses)
    return settings


def _check_model(model: str) -> None:
    check_model_name(model)
    check_label(base_label(model))


def _check_dask(dask: str | None) -> None:
    if dask is not None:
        from flows.cluster import check_dask

        check_dask(dask)


def _processes(workers: int | str, dask: str | None, settings: Settings | None) -> int | None:
    if dask is not None and workers != 1 and workers != "1":
        raise InputError(f"workers {workers}: are processes of this machine; the cluster of --dask has its own")
    return None if settings is None and workers == AUTO else worker_count(workers, settings)


def _check_reason(accept_code: str | None) -> None:
    if accept_code is not None and not accept_code.strip():
        raise InputError("accept_code: is empty; say why a freeze made by other code is good enough")


def resolved_path(name: str, folder: str) -> Path:
    """An absolute path; `~` and `~user` are expanded.

    Raises:
        InputError: an unknown user, or no path at all.
    """
    try:
        return Path(folder).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{name} {folder!r}: {error}; give a path") from error


def made_root(path: Path) -> Path:
    """The folder that is measured into, made if it is not there.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"root {path}: cannot be made ({error.strerror}); choose another --root") from error
    return path
