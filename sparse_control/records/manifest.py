"""The SHA-256 of every measured and of every rendered file, in two ledgers with one writer each.

`ROOT/MANIFEST.json` holds measurements and binaries and is written by the runs that measured them;
`PAPER/MANIFEST.json` holds rendered files and is written by `reproduce`. So a measurement that changed after it was
made is never blessed by rendering it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from sparse_control.errors import InputError
from sparse_control.files import sha256_file, write_json, write_text
from sparse_control.project import project_folder
from sparse_control.records.base import Record, RelativePath, Sha256, read_record, validate
from sparse_control.records.listing import files_below
from sparse_control.records.paths import (
    FIGURES,
    JACOBIAN_ISS,
    NULLS,
    SIX_AXIS,
    TABLES,
    committed_root,
    model_folders,
)
from sparse_control.records.readme import NAME as README
from sparse_control.records.readme import readme

NAME = "MANIFEST.json"
MEASURED = (".json", ".jsonl", ".yaml")
BINARY = (".pt", ".safetensors")  # references, factors, states: large, and not in git
RENDERED = (".tex", ".csv", ".html", ".json", ".pdf", ".svg", ".png")

_MODEL = rf"^[^/]+/(({JACOBIAN_ISS}|{SIX_AXIS})/|{NULLS}/[^/]+/{JACOBIAN_ISS}/)"
Measured = Annotated[RelativePath, Field(pattern=_MODEL)]
Rendered = Annotated[RelativePath, Field(pattern=f"^({TABLES}|{FIGURES})/")]


class Manifest(Record):
    """ROOT/MANIFEST.json: path relative to the root, with forward slashes -> SHA-256."""

    schema_: Literal["manifest/1"] = Field(default="manifest/1", alias="schema")
    measurements: dict[Measured, Sha256] = {}
    binaries: dict[Measured, Sha256] = {}


class RenderedManifest(Record):
    """PAPER/MANIFEST.json: path relative to the paper folder -> SHA-256."""

    schema_: Literal["rendered/1"] = Field(default="rendered/1", alias="schema")
    files: dict[Rendered, Sha256] = {}


# --- listings -------------------------------------------------------------------------------------------------------


def _of_models(root: Path, suffixes: tuple[str, ...]) -> list[str]:
    found = [path for model in model_folders(root) for path in files_below(Path(root, model), *suffixes)]
    return [path.relative_to(root).as_posix() for path in found]


def measured_files(root: Path) -> list[str]:
    """Paths relative to `root` of every measurement: the json, jsonl and yaml files of its models."""
    return _of_models(root, MEASURED)


def binary_files(root: Path) -> list[str]:
    """Paths relative to `root` of every tensor file of its models."""
    return _of_models(root, BINARY)


def rendered_files(paper: Path) -> list[str]:
    """Paths relative to `paper` of every file that is rendered, or has been put among those."""
    found = [path for folder in (TABLES, FIGURES) for path in files_below(Path(paper, folder), *RENDERED)]
    return [path.relative_to(paper).as_posix() for path in found]


def where_measured() -> str:
    """Where measurements are to be had: the committed ones, those of a run, or from git or a new run."""
    project = project_folder()
    roots = (committed_root(project), *sorted((project / "runs").glob("*")))
    found = [path for path in roots if path.is_dir() and model_folders(path)]
    if not found:
        return "restore them from git (`git checkout -- measurements`), or `make run` and then --root runs/smoke"
    names = [str(path.relative_to(project) if project == Path.cwd() else path) for path in found]
    return f"there are some in {', '.join(names)}: add --root {names[0]}"


def check_root(root: Path) -> None:
    """Refuse a folder without measurements.

    Raises:
        InputError: no such folder, no measurements of any model in it, or one that a link leads out of.
    """
    if not Path(root).is_dir():
        raise InputError(f"{root}: no such folder with measurements; {where_measured()}")
    if not measured_files(root):
        raise InputError(f"{root}: no measurements of any model; {where_measured()}")


# --- ledgers --------------------------------------------------------------------------------------------------------

Ledger = TypeVar("Ledger", Manifest, RenderedManifest)


def read_manifest(root: Path) -> Manifest | None:
    """The manifest of `root`; None where there is none.

    Raises:
        InputError: it is not JSON, or not a manifest.
    """
    path = Path(root, NAME)
    return read_record(Manifest, path) if path.exists() else None


def read_rendered_manifest(paper: Path) -> RenderedManifest | None:
    """The manifest of the rendered files; None where there is none.

    Raises:
        InputError: as `read_manifest`.
    """
    path = Path(paper, NAME)
    return read_record(RenderedManifest, path) if path.exists() else None


def _write(folder: Path, ledger: Ledger) -> Path:
    path = Path(folder, NAME)
    value = ledger.model_dump(by_alias=True)
    validate(type(ledger), value, str(path))  # never one that cannot be read again
    write_json(path, value)
    return path


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: sha256_file(Path(folder, name)) for name in sorted(names)}


def write_manifest(root: Path, names: Iterable[str]) -> Path:
    """Record what a run measured into `root`, and tell of it in its README.md; for the run that made it.

    Args:
        root: the folder measured into.
        names: what the run measured, relative to `root`; every other entry stays as it is.

    Raises:
        InputError: a file cannot be read, the old manifest is broken, or the new one cannot be written.
    """
    old, names = read_manifest(root) or Manifest(), set(names)
    parts = {}
    for part, present in (("measurements", measured_files(root)), ("binaries", binary_files(root))):
        parts[part] = dict(sorted((getattr(old, part) | _hashes(root, names.intersection(present))).items()))
    path = _write(root, old.model_copy(update=parts))
    write_text(Path(root, README), readme(parts["measurements"], parts["binaries"]))
    return path


def forget(root: Path, folder: Path) -> None:
    """Drop what the manifest says of the files in a folder below `root` that has been moved away.

    Raises:
        InputError: as `write_manifest`.
    """
    if (old := read_manifest(root)) is None:
        return
    prefix = Path(folder).relative_to(root).as_posix() + "/"
    parts = {
        part: {name: sha256 for name, sha256 in getattr(old, part).items() if not name.startswith(prefix)}
        for part in ("measurements", "binaries")
    }
    _write(root, old.model_copy(update=parts))


def write_rendered_manifest(paper: Path, names: Iterable[str]) -> Path:
    """Record every file that `reproduce` rendered; for `reproduce` alone.

    Args:
        paper: the folder rendered into.
        names: all that was rendered, relative to `paper`; no other entry stays.

    Raises:
        InputError: as `write_manifest`.
    """
    return _write(paper, RenderedManifest(files=_hashes(paper, names)))


def changed_measurements(root: Path) -> list[str]:
    """Measurements that are missing, changed or unlisted, in order.

    Raises:
        InputError: the manifest is broken.
    """
    listed = (read_manifest(root) or Manifest()).measurements
    present = _hashes(root, measured_files(root))
    return sorted(name for name in {*listed, *present} if listed.get(name) != present.get(name))
