"""When a task may be skipped: a key made of everything its result depends on, and a receipt checked against the files.

Prefect's own policies are not used: `INPUTS` gives two tasks with the same arguments one key, `TASK_SOURCE` does not
see the code a task calls, and an argument that cannot be hashed drops out of a key silently.
"""

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH
from prefect.task_runners import TaskRunner
from pydantic import BaseModel

from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, sha256_json
from sparse_control.receipt import Receipt
from sparse_control.records.listing import check_below

LIBRARIES = ("numpy", "scipy", "scikit-learn", "torch", "transformers")

KeyFunction = Callable[[TaskRunContext | None, dict[str, Any]], str]


def plain(value: Any) -> Any:
    """A JSON value that stands for an argument in a key.

    Plain values and settings stand for themselves, a `Path` for the bytes of the file or of all files in the folder.

    Raises:
        TypeError: any other type, such as a tensor, an array or a function: nothing is left out of a key silently.
        InputError: a path that does not exist.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Path):
        if value.is_dir():
            inside = sorted(path for path in value.rglob("*") if path.is_file())
            return {"folder": {path.relative_to(value).as_posix(): sha256_file(path) for path in inside}}
        return {"file": sha256_file(value)}
    raise TypeError(f"a cached task takes paths and plain values, got {type(value).__name__}")


def _library_versions() -> dict[str, str]:
    installed = {distribution.name.lower(): distribution.version for distribution in importlib.metadata.distributions()}
    return {name: installed.get(name, "") for name in LIBRARIES}


def content_key(
    name: str, *, schema: int, modules: tuple[str, ...], without: tuple[str, ...] = (), only: tuple[str, ...] = ()
) -> KeyFunction:
    """A Prefect `cache_key_fn`.

    Args:
        name: of the task; two tasks with the same arguments have different keys.
        schema: raised by hand when old results must not be used again.
        modules: the project modules whose import closure the result depends on.
        without: sections of a settings argument that the stage does not read.
        only: the sections it reads, where that is easier to say.
    """

    def key(context: TaskRunContext | None, arguments: dict[str, Any]) -> str:
        shown = {
            argument: value.model_dump(exclude=set(without), include=set(only) or None)
            if isinstance(value, BaseModel)
            else value
            for argument, value in arguments.items()
        }
        parts = {
            "task": name,
            "schema": schema,
            "code": code_sha256(*modules),
            "libraries": _library_versions(),
            "arguments": plain(shown),
        }
        return sha256_json(parts)

    return key


def standing_receipt(task: Task, *, below: Path, arguments: dict[str, Any]) -> Receipt | None:
    """The receipt of an earlier run of the task with the same key, if every file is as it was; else None.

    Nothing is removed: another run may have written the files since, and a stage that resumes checks its own.

    Args:
        task: with a `content_key` as its `cache_key_fn`.
        below: the folder the receipt's paths are relative to.
        arguments: of the task.

    Raises:
        TypeError: an argument that has no place in a key.
        InputError: a path among the arguments that cannot be read, the result under the key is not JSON, or a link
            leads one of its files out of `below`.
    """
    key = task.cache_key_fn(None, arguments)  # Prefect logs an error in a key function and goes on without a key
    receipt = _saved_receipt(key)
    if receipt is None:
        return None
    for path, _ in receipt.files:
        check_below(below, Path(below, path))
    return None if receipt.broken(below) else receipt


def _saved_receipt(key: str) -> Receipt | None:
    """The receipt that Prefect has saved under a key; None where there is none, or one cut short.

    Read as plain JSON and not by Prefect, whose records name the code that reads them: to unpickle, or to import.

    Raises:
        InputError: a result of another serializer.
    """
    path = PREFECT_LOCAL_STORAGE_PATH.value() / key
    if not path.is_file():
        return None
    try:
        record = read_json(path)
        serializer = record["metadata"]["serializer"]["type"]
    except (InputError, LookupError, TypeError):  # cut short by the end of its process
        return None
    if serializer != "json":
        raise InputError(
            f"{path}: serializer: expected json, got {serializer!r:.80}; nothing of this project's: remove it"
        )
    try:
        return Receipt.from_json(json.loads(record["result"]))
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def started(task: Task, runner: TaskRunner[Any], arguments: dict[str, Any]) -> PrefectFuture[Any]:
    """Submit a task, whatever stands under its key."""
    return runner.submit(task.with_options(refresh_cache=True), arguments)


def finished(task: Task, future: PrefectFuture[Any], *, below: Path) -> Receipt:
    """The receipt of a submitted task.

    Raises:
        InputError: the task reports files it has not written, or as the task.
    """
    receipt = Receipt.from_json(future.result())
    if broken := receipt.broken(below):
        raise InputError(f"{task.name}: reports files that are not there or differ: {', '.join(broken)}")
    return receipt
