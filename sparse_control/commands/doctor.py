"""`doctor`: what is installed, fetched and missing."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator

import click

from sparse_control import __version__
from sparse_control.commands.extras import BASE, EXTRAS, install_command
from sparse_control.project import cache_folder, project_folder


@click.command()
def doctor() -> None:
    """Versions, models, corpus and disk; what is missing, and the command that mends it."""
    for state, subject, detail in _examine():
        click.echo(f"{state:8}{subject}: {detail}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _examine() -> Iterator[tuple[str, str, str]]:
    yield "ok", "python", f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    yield "ok", "sparse-control", __version__
    yield from _packages()
    yield from _program("pdflatex", "only for the PDF; apt-get install texlive-latex-base texlive-latex-recommended")
    yield from _project()
    yield from _models()
    yield from _cache()


def _packages() -> Iterator[tuple[str, str, str]]:
    for extra, packages in {"": BASE, **EXTRAS}.items():
        for package in packages:
            found = _version(package)
            yield ("ok", package, found) if found else ("missing", package, install_command(extra))
    if torch := _version("torch"):
        build = torch.partition("+")[2] or "default"
        yield "ok", "torch build", build + ("" if build == "cpu" else "; CPU-only wheels are smaller, see the README")


def _program(name: str, mend: str) -> Iterator[tuple[str, str, str]]:
    path = shutil.which(name)
    yield ("ok", name, path) if path else ("missing", name, mend)


def _project() -> Iterator[tuple[str, str, str]]:
    from sparse_control.records.manifest import measured_files, where_measured
    from sparse_control.records.paths import committed_root

    project = project_folder()
    if os.access(project, os.W_OK):
        yield "ok", "project folder", str(project)
    else:
        yield "note", "project folder", f"{project}, read-only; use --root and --out"
    count = len(measured_files(committed_root(project)))
    yield ("ok", "measurements", f"{count} files") if count else ("missing", "measurements", where_measured())


def _models() -> Iterator[tuple[str, str, str]]:
    from sparse_control.models.fetch import model_path
    from sparse_control.registry import registry

    for name, source in registry().items():
        path = model_path(source)
        if path.is_file() and path.stat().st_size == source.bytes:
            yield "ok", f"model {name}", str(path)
        else:
            yield "missing", f"model {name}", f"python -m sparse_control models fetch {name}"


def _cache() -> Iterator[tuple[str, str, str]]:
    cache = cache_folder()
    corpora = sorted((cache / "corpus").glob("*/corpus.json"))
    if corpora:
        yield "ok", "corpus", ", ".join(str(path.parent) for path in corpora)
    else:
        yield "missing", "corpus", "python -m sparse_control corpus build"
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    yield "ok", "cache folder", f"{cache}, {shutil.disk_usage(place).free // 1_000_000} MB free"
