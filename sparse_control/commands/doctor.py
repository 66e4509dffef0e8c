"""`doctor`: what is installed, fetched and missing; and whether a model can be measured."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import click

from sparse_control import __version__
from sparse_control.commands.extras import BASE, EXTRAS, install_command
from sparse_control.commands.options import ModelName, preset_option
from sparse_control.commands.text import json_text
from sparse_control.errors import InputError
from sparse_control.notes import note
from sparse_control.project import cache_folder, project_folder

RECOMPUTE, MEASURE = "reproduce, verify, show, score", "run"  # what a thing is needed for
NEEDED = {"": RECOMPUTE, "measure": MEASURE, "flow": MEASURE}  # extra -> for what; others are optional


class Finding(NamedTuple):
    """One line.

    Attributes:
        state: `ok`, `note`, `optional` where what is not there is needed for nothing else, or `missing`.
        subject: of what.
        detail: its version or where it is; where it is not there, the command that brings it.
        needed_for: the commands that do not work without it; empty of what is optional.
    """

    state: str
    subject: str
    detail: str
    needed_for: str = ""

    @classmethod
    def absent(cls, subject: str, detail: str, needed_for: str = "") -> "Finding":
        return cls("missing" if needed_for else "optional", subject, detail, needed_for)


@click.command()
@click.option(
    "--model", type=ModelName(), metavar="NAME",
    help="Examine this model instead: registry name (models list), hub id, directory or .gguf file.",
)  # fmt: skip
@preset_option
@click.option("--threads", type=click.IntRange(min=1, max=1024), metavar="N",
              help="Threads a model is timed with; those of params.yaml by default.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def doctor(model: str | None, preset: str, threads: int | None, as_json: bool) -> None:
    """What is here and what is missing, or whether a model can be measured.

    Without --model: versions, models, corpus and disk; of what is missing, what it is needed for and the command that
    brings it. Exits with 1 where something needed is missing; what is optional says so.

    With --model: loads it, holds its Jacobians, a patch of dose 0 and every site against the model itself, and times a
    corpus prompt and a six-axis record. Exits with 1 where a check fails, with 2 where the model cannot be read.

    \b
    python -m sparse_control doctor
    python -m sparse_control doctor --model ./my-model --threads 4
    """
    passed = _examine_model(model, preset, threads, as_json) if model else _report(as_json)
    if not passed:
        raise click.exceptions.Exit(1)


def _examine_model(model: str, preset: str, threads: int | None, as_json: bool) -> bool:
    from sparse_control.commands.examination import examine, told
    from sparse_control.settings import load_settings

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    if threads is not None:
        settings = settings.model_copy(update={"threads": threads})
    found = examine(settings, progress=note)
    click.echo(json_text(found) if as_json else "\n".join(told(found)))
    return all(check["ok"] for check in found["checks"])


def _report(as_json: bool) -> bool:
    found = list(_examine())
    lacking = {purpose: [one.subject for one in found if one.state == "missing" and one.needed_for == purpose]
               for purpose in (RECOMPUTE, MEASURE)}  # fmt: skip
    lacking[MEASURE] = [*lacking[RECOMPUTE], *lacking[MEASURE]]
    if as_json:
        ready = {purpose: not names for purpose, names in lacking.items()}
        click.echo(json_text({"findings": [one._asdict() for one in found], "ready": ready}))
    else:
        for one in found:
            purpose = f" (needed for {one.needed_for})" if one.state == "missing" else ""
            click.echo(f"{one.state:9}{one.subject}: {one.detail}{purpose}")
        for purpose, names in lacking.items():
            click.echo(f"{purpose}: " + (f"not ready, needs {', '.join(names)}" if names else "ready"))
    return not lacking[MEASURE]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _examine() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    yield Finding("ok", "sparse-control", __version__)
    yield from _packages()
    path = shutil.which("pdflatex")
    how = "only for the PDF; apt-get install texlive-latex-base texlive-latex-recommended"
    yield Finding("ok", "pdflatex", path) if path else Finding.absent("pdflatex", how)
    yield from _project()
    yield from _models()
    yield from _cache()


def _packages() -> Iterator[Finding]:
    for extra, packages in {"": BASE, **EXTRAS}.items():
        for package in packages:
            found = _version(package)
            absent = Finding.absent(package, install_command(extra), NEEDED.get(extra, ""))
            yield Finding("ok", package, found) if found else absent
    if torch := _version("torch"):
        build = torch.partition("+")[2] or "default"
        smaller = "" if build == "cpu" else "; CPU-only wheels are smaller, see the README"
        yield Finding("ok", "torch build", build + smaller)


def _project() -> Iterator[Finding]:
    from sparse_control.records.manifest import measured_files, where_measured
    from sparse_control.records.paths import committed_root

    project = project_folder()
    if os.access(project, os.W_OK):
        yield Finding("ok", "project folder", str(project))
    else:
        yield Finding("note", "project folder", f"{project}, read-only; use --root and --out")
    if count := len(measured_files(committed_root(project))):
        yield Finding("ok", "measurements", f"{count} files")
    else:
        yield Finding.absent("measurements", where_measured(), RECOMPUTE)


def _models() -> Iterator[Finding]:
    from sparse_control.models.fetch import model_path
    from sparse_control.registry import registry

    default = _default_model()
    for name, source in registry().items():
        path = model_path(source)
        if path.is_file() and path.stat().st_size == source.bytes:
            yield Finding("ok", f"model {name}", str(path))
        else:
            fetch = f"python -m sparse_control models fetch {name}"
            yield Finding.absent(f"model {name}", fetch, MEASURE if name == default else "")


def _default_model() -> str | None:
    """That of params.yaml; None where the file cannot be read."""
    with suppress(InputError, ModuleNotFoundError):
        from sparse_control.settings import load_settings

        return load_settings(project_folder() / "params.yaml").model
    return None


def _cache() -> Iterator[Finding]:
    cache = cache_folder()
    if corpora := sorted((cache / "corpus").glob("*/corpus.json")):
        yield Finding("ok", "corpus", ", ".join(str(path.parent) for path in corpora))
    else:
        yield Finding.absent("corpus", "a run builds it; or python -m sparse_control corpus build")
    folder = next(folder for folder in (cache, *cache.parents) if folder.exists())
    yield Finding("ok", "cache folder", f"{cache}, {shutil.disk_usage(folder).free // 1_000_000} MB free")
