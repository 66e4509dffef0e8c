"""The command line. Exit codes: 0 fine, 1 a check or a task failed, 2 the input or the call is wrong.

Results go to stdout, progress and errors to stderr. Everything is imported where it is used, so that `reproduce`,
`verify`, `score` and `show` start without torch, Prefect or DVC.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from sparse_control import __version__
from sparse_control.errors import InputError
from sparse_control.project import cache_folder, project_folder

BROKEN_PIPE = 141  # as a shell reports a process that wrote to a closed pipe
INTERRUPTED = 130

EXTRAS = {
    "measure": (
        "torch",
        "transformers",
        "gguf",
        "accelerate",
        "safetensors",
        "mwparserfromhell",
        "scikit-learn",
        "tqdm",
    ),
    "flow": ("prefect",),
    "data": ("dvc",),
}
BASE = ("numpy", "scipy", "pandas", "jinja2", "pyyaml", "pydantic", "click")
IMPORT_NAMES = {"scikit-learn": "sklearn"}


class Folder(click.Path):
    """A folder argument as a `Path`; an empty one is a slip of the shell and not the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty; name a folder", parameter, context)
        return super().convert(value, parameter, context)


def _root_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--root", type=Folder(), default=None, metavar="DIR",
        help="Folder with measurements/, jacobian_iss/ and paper/tables/; the project folder by default.",
    )(function)  # fmt: skip


def _run_root_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--root", type=Folder(), default=None, metavar="DIR",
        help="Folder to measure into; runs/PRESET in the project by default, so that committed results stay.",
    )(function)  # fmt: skip


def _preset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--model", metavar="NAME", help="Registry name, hub id, directory or .gguf file.")(function)
    return click.option("--preset", default="smoke", show_default=True, help="Of params.yaml: smoke, paper.")(function)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sparse-control")
def cli() -> None:
    """Internal state stability and the six-axis control protocol, measured and recomputed."""


# --- recompute ------------------------------------------------------------------------------------------------------


@cli.command()
@_root_option
@click.option(
    "--out", type=Folder(), default=None, metavar="DIR", help="Default: paper/tables of the root."
)
def reproduce(root: Path | None, out: Path | None) -> None:
    """Recompute every table from the saved measurements; LaTeX, CSV and HTML."""
    from sparse_control.artifact.manifest import changed_measurements
    from sparse_control.artifact.render import reproduce as render_root

    root = root or project_folder()
    paths = render_root(root, out)
    if changed := changed_measurements(root):
        click.echo(
            f"warning: {len(changed)} measurements differ from MANIFEST.json, {changed[0]} first; see verify", err=True
        )
    click.echo(f"{len(paths)} files in {paths[0].parent}")


@cli.command()
@_root_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Every check, not only failures, warnings and skips.")
def verify(root: Path | None, as_json: bool, verbose: bool) -> None:
    """Check hashes, records, tables, claims and provenance."""
    from sparse_control.artifact.verify import verify as run_checks

    checks = run_checks(root or project_folder(), project_folder())
    counted = [check for check in checks if check.status in ("ok", "FAIL")]
    failed = sum(check.status == "FAIL" for check in counted)
    if as_json:
        lines = [{"name": check.name, "status": check.status, "detail": check.detail} for check in checks]
        click.echo(
            json.dumps({"checks": len(counted), "failed": failed, "results": lines}, indent=1, ensure_ascii=False)
        )
    else:
        for check in checks:
            if verbose or check.status != "ok":
                click.echo(str(check))
        click.echo(f"verify: {len(counted)} checks, {failed} failed")
    if failed:
        raise click.exceptions.Exit(1)


@cli.command()
@click.argument("table", required=False)
@_root_option
def show(table: str | None, root: Path | None) -> None:
    """Print tables: one by name, `iss`, `protocol`, or the two main ones."""
    from sparse_control.artifact.layout import LAYOUTS, shown
    from sparse_control.artifact.manifest import check_root
    from sparse_control.artifact.render import plain_text
    from sparse_control.artifact.tables import TABLES, read_records

    groups = {group: [name for name in TABLES if LAYOUTS[name].group == group] for group in ("iss", "protocol")}
    chosen = ["summary", "official_iss"] if table is None else groups.get(table, [table])
    if unknown := [name for name in chosen if name not in TABLES]:
        raise InputError(f"no table {unknown[0]!r}; there are: iss, protocol, {', '.join(TABLES)}")
    root = root or project_folder()
    check_root(root)
    records = read_records(root, project_folder())
    click.echo("\n".join(plain_text(shown(name, TABLES[name](records), records)) for name in chosen), nl=False)
    if table is None:
        click.echo(f"\nmore: show iss, show protocol, show {{{', '.join(TABLES)}}}")


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Unrounded statistics as JSON.")
def score(file: Path, as_json: bool) -> None:
    """Six axes for your own intervention, from a JSON FILE of readouts.

    examples/score_example.json has every field; help(sparse_control.artifact.scoring) says what each one is. An axis
    whose readouts are absent is reported as not measured.
    """
    from sparse_control.artifact.layout import score_rows
    from sparse_control.artifact.scoring import score_file

    name, axes = score_file(file)
    if as_json:
        click.echo(json.dumps({"name": name, "axes": axes}, indent=1, ensure_ascii=False, allow_nan=False))
        return
    rows = [("axis", "statistic", "value", "pass"), *score_rows(axes)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    click.echo("".join(character if character.isprintable() else " " for character in name))
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip())


# --- measure --------------------------------------------------------------------------------------------------------


@cli.group()
def run() -> None:
    """Measure; an interrupted run goes on where it stopped."""


def _check_model(preset: str, model: str | None) -> None:
    """Refuse a model that cannot be named so, before anything is started; nothing is loaded.

    Raises:
        InputError: neither a registry name, a hub id (owner/name), a directory nor a file; or an unknown preset.
    """
    from sparse_control.models.fetch import find_source
    from sparse_control.settings import load_settings

    name = load_settings(project_folder() / "params.yaml", preset, model).model
    if Path(name).is_dir() or Path(name).is_file():
        return
    if name.endswith(".gguf"):
        raise InputError(f"model {name}: no such file")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        find_source(name)


def _run_flow(module: str, name: str, preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    from importlib import import_module

    _check_model(preset, model)
    flow = getattr(import_module(module), name)
    if dask is not None:
        from flows.common import task_runner

        flow = flow.with_options(task_runner=task_runner(dask))
    try:
        result = flow(preset=preset, model=model, root=str(root or project_folder() / "runs" / preset))
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:  # a task failed; Prefect has logged where
        raise click.exceptions.Exit(_fail(f"{type(error).__name__}: {error}", 1)) from error
    for step in result["steps"]:
        click.echo(f"{step['step']}: {'unchanged' if step['skipped'] else 'measured'}, {len(step['files'])} files")
    click.echo(f"{result['flow']}: {result['model']} at preset {result['preset']} in {result['root']}")


_dask_option = click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster to run the tasks on.")


@run.command("official-iss")
@_preset_options
@_run_root_option
@_dask_option
def run_official_iss(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Stages A to D: reference, validation, freeze, official ISS."""
    _run_flow("flows.official_iss", "official_iss", preset, model, root, dask)


@run.command("six-axis")
@_preset_options
@_run_root_option
@_dask_option
def run_six_axis(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Every (task, selector, direction rule) of the preset over its seeds."""
    _run_flow("flows.six_axis", "six_axis", preset, model, root, dask)


@cli.group()
def models() -> None:
    """Model weights."""


@models.command("list")
def models_list() -> None:
    """The registry, and what stands in the cache."""
    from sparse_control.models.fetch import model_path, registry

    for name, source in registry().items():
        state = "fetched" if model_path(source).is_file() else f"python -m sparse_control models fetch {name}"
        click.echo(f"{name}  {source.architecture}, width {source.width}, {source.layers} layers, "
                   f"{source.bytes // 1_000_000} MB, {source.licence}: {state}")  # fmt: skip


@models.command("fetch")
@click.argument("name")
def models_fetch(name: str) -> None:
    """Download the weights of NAME and check their hash."""
    from sparse_control.models.fetch import fetch_model

    click.echo(fetch_model(name, progress=_log))


@cli.group()
def corpus() -> None:
    """The Jacobian corpus."""


@corpus.command("build")
@_preset_options
def corpus_build(preset: str, model: str | None) -> None:
    """Build the corpus from its pinned source for the tokenizer of the model."""
    from sparse_control.corpus import build
    from sparse_control.models import load_model
    from sparse_control.settings import load_settings

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    click.echo(build(settings, load_model(settings.model), progress=_log))


def _log(line: str) -> None:
    click.echo(line, err=True)


# --- doctor ---------------------------------------------------------------------------------------------------------


@cli.command()
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
    from sparse_control.artifact.manifest import measured_files, where_measured
    from sparse_control.models.fetch import model_path, registry

    project, cache = project_folder(), cache_folder()
    yield "ok", "python", f"{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
    yield "ok", "sparse-control", __version__
    for extra, packages in {"": BASE, **EXTRAS}.items():
        for package in packages:
            found = _version(package)
            yield ("ok", package, found) if found else ("missing", package, _install(extra))
    torch = _version("torch")
    if torch:
        build = torch.partition("+")[2] or "default"
        yield "ok", "torch build", build + ("" if build == "cpu" else "; CPU-only wheels are smaller, see the README")
    yield from _program("pdflatex", "only for the PDF; apt-get install texlive-latex-base texlive-latex-recommended")
    writable = os.access(project, os.W_OK)
    yield (
        "ok" if writable else "note",
        "project folder",
        str(project) + ("" if writable else ", read-only; use --root and --out"),
    )
    count = len(measured_files(project))
    yield (
        ("ok", "measurements", f"{count} files")
        if count
        else ("missing", "measurements", where_measured())
    )
    for name, source in registry().items():
        path = model_path(source)
        whole = path.is_file() and path.stat().st_size == source.bytes
        yield ("ok", f"model {name}", str(path)) if whole else (
            "missing", f"model {name}", f"python -m sparse_control models fetch {name}"
        )  # fmt: skip
    corpora = sorted((cache / "corpus").glob("*/corpus.json"))
    yield ("ok", "corpus", ", ".join(str(path.parent) for path in corpora)) if corpora else (
        "missing", "corpus", "python -m sparse_control corpus build"
    )  # fmt: skip
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    yield "ok", "cache folder", f"{cache}, {shutil.disk_usage(place).free // 1_000_000} MB free"


def _program(name: str, mend: str) -> Iterator[tuple[str, str, str]]:
    path = shutil.which(name)
    yield ("ok", name, path) if path else ("missing", name, mend)


def _install(extra: str) -> str:
    """The pip command that brings an extra, or the base dependencies: from the checkout where there is one."""
    project = project_folder()
    if not (project / "pyproject.toml").is_file():
        return f"python -m pip install 'sparse-control[{extra}]'" if extra else "python -m pip install sparse-control"
    pinned = "-c constraints.txt " if (project / "constraints.txt").is_file() else ""
    return f"python -m pip install {pinned}-e " + (f"'.[{extra}]'" if extra else ".")


# --- errors ---------------------------------------------------------------------------------------------------------


def _extra_of(module: str) -> str | None:
    """The extra that brings an importable module; "" for a base dependency, None for a stranger."""
    for extra, packages in {"": BASE, **EXTRAS}.items():
        if module in {IMPORT_NAMES.get(package, package) for package in packages}:
            return extra
    return None


def _fail(message: str, code: int = 2) -> int:
    from sparse_control.artifact.records import printable

    click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors a person can mend are one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(arguments, prog_name="sparse-control", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Abort:  # what click makes of a keyboard interrupt
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except InputError as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        extra = _extra_of(module)
        if module in ("flows", "tasks"):
            return _fail(f"{module}/ is not beside the package; run this from the project folder")
        if extra is None:
            raise
        return _fail(f"{module} is not installed; run: {_install(extra)}")
    except SystemExit as leaving:  # click ends with 1 where the reader of a pipe has gone
        return BROKEN_PIPE if isinstance(sys.stdout, click.utils.PacifyFlushWrapper) else leaving.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return BROKEN_PIPE
