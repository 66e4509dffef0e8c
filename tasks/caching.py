"""When a task may be skipped: a key made of everything its result depends on, and a receipt checked against the files.

Prefect's own policies are not used: `INPUTS` gives two tasks with the same arguments one key, `TASK_SOURCE` does not
see the code a task calls, and an argument that cannot be hashed drops out of a key silently.
"""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.context import TaskRunContext
from pydantic import BaseModel

from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import sha256_file, sha256_json
from sparse_control.receipt import Receipt

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


def content_key(name: str, *, schema: int, modules: tuple[str, ...], without: tuple[str, ...] = ()) -> KeyFunction:
    """A Prefect `cache_key_fn`.

    Args:
        name: of the task; two tasks with the same arguments have different keys.
        schema: raised by hand when old results must not be used again.
        modules: the project modules whose import closure the result depends on.
        without: sections of a settings argument that the stage does not read.
    """

    def key(context: TaskRunContext | None, arguments: dict[str, Any]) -> str:
        shown = {
            argument: value.model_dump(exclude=set(without)) if isinstance(value, BaseModel) else value
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


def run_cached(task: Task, *, below: Path, arguments: dict[str, Any]) -> tuple[Receipt, bool]:
    """Run a task that returns a receipt as JSON, or take its cached receipt if every file is as it was.

    Args:
        task: with a `content_key` as its `cache_key_fn`.
        below: the folder the receipt's paths are relative to.
        arguments: of the task.

    Returns:
        the receipt, and whether the task was skipped.

    Raises:
        TypeError: an argument that has no place in a key.
        InputError: the task reports files it has not written.
    """
    task.cache_key_fn(None, arguments)  # Prefect logs an error in a key function and goes on without a key
    future = task.submit(**arguments)
    receipt = Receipt.from_json(future.result())
    skipped = future.state.name == "Cached"
    if skipped and (broken := receipt.broken(below)):
        for path in broken:  # a stage that resumes would take a changed file for its own
            Path(below, path).unlink(missing_ok=True)
        receipt = Receipt.from_json(task.with_options(refresh_cache=True).submit(**arguments).result())
        skipped = False
    if broken := receipt.broken(below):
        raise InputError(f"{task.name}: reports files that are not there or differ: {', '.join(broken)}")
    return receipt, skipped
