"""`code/{code_sha256}.json`: the hash of every file a measurement's code was made of, left by the run that measured."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from sparse_control.code_hash import closure_hashes
from sparse_control.errors import InputError
from sparse_control.files import sha256_json
from sparse_control.records.base import Record, RelativePath, Sha256, read_record

Module = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]


class CodeClosure(Record):
    """The files that the modules reach by imports."""

    modules: Annotated[list[Module], Field(min_length=1)]
    files: dict[RelativePath, Sha256]


def read_closure(root: Path, sha256: str) -> CodeClosure | None:
    """The closure a measurement names; None where the run left none.

    Raises:
        InputError: the file is broken, or its content is not what its name says.
    """
    path = Path(root, "code", f"{sha256}.json")
    if not path.exists():
        return None
    closure = read_record(CodeClosure, path)
    if (found := sha256_json(closure.files)) != sha256:
        raise InputError(f"{path}: its files have SHA-256 {found}, another than its name says; restore it from git")
    return closure


def changed_files(closure: CodeClosure) -> dict[str, list[str]]:
    """What stands here otherwise than in the closure: paths that changed, are new, or are gone."""
    try:
        now = closure_hashes(*closure.modules)
    except ValueError:  # a module of that time is no module any more
        now = {}
    return {
        "changed": sorted(name for name in closure.files.keys() & now if closure.files[name] != now[name]),
        "new": sorted(now.keys() - closure.files),
        "gone": sorted(closure.files.keys() - now),
    }


def counted(changed: dict[str, list[str]]) -> str:
    """How many files changed, are new, or are gone, in words."""
    return ", ".join(f"{len(names)} files {what}" for what, names in changed.items() if names)
