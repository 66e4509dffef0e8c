"""MANIFEST.json: the SHA-256 of every measurement, binary and rendered table of a root.

Its parts have two writers. A measuring run records measurements and binaries (`write_manifest`), `reproduce` records
tables (`write_table_manifest`); so a measurement that changed after it was made is never blessed by rendering it.
The nulls and the medium model are roots of their own below a root, each with its manifest; their tables stand among
those of the root.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sparse_control.errors import InputError
from sparse_control.files import sha256_file, write_json
from sparse_control.project import project_folder
from sparse_control.records.base import Record, RelativePath, Sha256, read_record, validate

NAME = "MANIFEST.json"
SCHEMA = "manifest/1"
MEASURED = (".json", ".jsonl", ".yaml")
BINARY = (".pt", ".safetensors")  # references, factors, states: large, and not in git
RENDERED = (".tex", ".csv", ".html")
UNFINISHED = "jacobian_iss/checkpoints/"  # work of a run, never a result
SUB_ROOTS = ("nulls/shuffled_tokens", "nulls/redrawn_weights", "experiment_b")


class Manifest(Record):
    """Relative path -> SHA-256, forward slashes."""

    schema_: str = Field(default=SCHEMA, alias="schema", pattern=r"^manifest/1$")
    measurements: dict[Annotated[RelativePath, Field(pattern=r"^(measurements|jacobian_iss)/")], Sha256] = {}
    binaries: dict[Annotated[RelativePath, Field(pattern="^jacobian_iss/")], Sha256] = {}
    tables: dict[Annotated[RelativePath, Field(pattern="^paper/tables/")], Sha256] = {}


def _files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> list[str]:
    found = (path for folder in folders for path in Path(root, folder).rglob("*"))
    return sorted(
        name
        for path in found
        if path.suffix in suffixes and path.is_file() and not path.name.startswith(".")
        if not (name := path.relative_to(root).as_posix()).startswith(UNFINISHED)
    )


def measured_files(root: Path) -> list[str]:
    """Relative paths of every measurement: json, jsonl and yaml files below measurements/ and jacobian_iss/."""
    return _files(Path(root), ("measurements", "jacobian_iss"), MEASURED)


def binary_files(root: Path) -> list[str]:
    """Relative paths of every tensor file below jacobian_iss/."""
    return _files(Path(root), ("jacobian_iss",), BINARY)


def sub_roots(root: Path) -> list[str]:
    """The roots of the nulls and of the medium model below `root`, those with measurements."""
    return [name for name in SUB_ROOTS if measured_files(Path(root, name))]


def where_measured() -> str:
    """Where measurements are to be had: in a folder below runs/ of the project, or from git or a new run."""
    project = project_folder()
    found = [path for path in sorted((project / "runs").glob("*")) if measured_files(path)]
    if not found:
        return (
            "restore them from git (`git checkout -- measurements jacobian_iss`), "
            "or `make run` and then --root runs/smoke"
        )
    names = [str(path.relative_to(project) if project == Path.cwd() else path) for path in found]
    return f"there are some in {', '.join(names)}: add --root {names[0]}"


def check_root(root: Path) -> None:
    """Refuse a folder without measurements.

    Raises:
        InputError: no such folder, or nothing below measurements/ and jacobian_iss/.
    """
    if not Path(root).is_dir():
        raise InputError(f"{root}: no such folder with measurements/ and jacobian_iss/; {where_measured()}")
    if not measured_files(root):
        raise InputError(f"{root}: no measurements below measurements/ or jacobian_iss/; {where_measured()}")


def table_files(root: Path) -> list[str]:
    """Relative paths of every rendered file below paper/tables/."""
    return _files(Path(root), ("paper/tables",), RENDERED)


def read_manifest(root: Path) -> Manifest | None:
    """The manifest of `root`; None where there is none.

    Raises:
        InputError: it is not JSON, or not a manifest.
    """
    path = Path(root, NAME)
    return read_record(Manifest, path) if path.exists() else None


def _write(root: Path, content: Manifest) -> Path:
    path = Path(root, NAME)
    value = content.model_dump(by_alias=True)
    validate(Manifest, value, str(path))  # never one that cannot be read again
    write_json(path, value)
    return path


def _hashes(root: Path, names: list[str]) -> dict[str, str]:
    return {name: sha256_file(Path(root, name)) for name in names}


def write_manifest(root: Path, names: Iterable[str]) -> Path:
    """Record what a run measured into `root`, as it stands; for the run that made it. Tables keep their entries.

    Args:
        root: the folder measured into.
        names: what the run measured, relative to `root`; every other entry stays as it is.

    Raises:
        InputError: a file cannot be read, the old manifest is broken, or the new one cannot be written.
    """
    old, names = read_manifest(root) or Manifest(), set(names)
    parts = {}
    for part, present in (("measurements", measured_files(root)), ("binaries", binary_files(root))):
        hashes = _hashes(root, sorted(names.intersection(present)))
        parts[part] = dict(sorted((getattr(old, part) | hashes).items()))
    return _write(root, old.model_copy(update=parts))


def write_table_manifest(root: Path) -> Path:
    """Record the tables of `root` as they stand. Measurements keep their entries, changed or not.

    Raises:
        InputError: as `write_manifest`.
    """
    old = read_manifest(root) or Manifest()
    return _write(root, old.model_copy(update={"tables": _hashes(root, table_files(root))}))


def changed_measurements(root: Path) -> list[str]:
    """Measurements that are missing, changed or unlisted, in order.

    Raises:
        InputError: the manifest is broken.
    """
    listed = (read_manifest(root) or Manifest()).measurements
    present = _hashes(root, measured_files(root))
    return sorted(name for name in {*listed, *present} if listed.get(name) != present.get(name))
