"""`run`: measuring, through the flows."""

import re
from importlib import import_module
from pathlib import Path

import click

from sparse_control.commands.entry import fail
from sparse_control.commands.generate import generate
from sparse_control.commands.options import preset_options, run_root_option
from sparse_control.errors import InputError
from sparse_control.project import project_folder


@click.group(commands=[generate])
def run() -> None:
    """Measure on a model, or let it write; an interrupted measurement goes on where it stopped."""


def check_model(preset: str, model: str | None) -> None:
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
    check_model(preset, model)
    flow = getattr(import_module(module), name)
    if dask is not None:
        from flows.common import task_runner

        flow = flow.with_options(task_runner=task_runner(dask))
    try:
        result = flow(preset=preset, model=model, root=str(root or project_folder() / "runs" / preset))
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:  # a task failed; Prefect has logged where
        raise click.exceptions.Exit(fail(f"{type(error).__name__}: {error}", 1)) from error
    for step in result["steps"]:
        click.echo(f"{step['step']}: {'unchanged' if step['skipped'] else 'measured'}, {len(step['files'])} files")
    click.echo(f"{result['flow']}: {result['model']} at preset {result['preset']} in {result['root']}")


_dask_option = click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster to run the tasks on.")


@run.command("official-iss")
@preset_options
@run_root_option
@_dask_option
def run_official_iss(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Stages A to D: reference, validation, freeze, official ISS."""
    _run_flow("flows.official_iss", "official_iss", preset, model, root, dask)


@run.command("six-axis")
@preset_options
@run_root_option
@_dask_option
def run_six_axis(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Every (task, selector, direction rule) of the preset over its seeds."""
    _run_flow("flows.six_axis", "six_axis", preset, model, root, dask)
