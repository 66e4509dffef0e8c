"""`run`: measuring, through the flows."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

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


def _measuring(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that runs a flow."""
    dask = click.option(
        "--dask", metavar="ADDRESS|local:N",
        help="Run the units on a Dask cluster, by its scheduler's address, or on N processes of this machine.",
    )  # fmt: skip
    return preset_options(run_root_option(dask(function)))


def _run_flow(module: str, name: str, preset: str, model: str | None, root: Path | None, **given: Any) -> None:
    """Run a flow in this process and print its steps.

    Args:
        module, name: where the flow is.
        preset, model, root: as every flow takes them.
        given: its further parameters; those that are None are left to the flow.
    """
    check_model(preset, model)
    flow = getattr(import_module(module), name)
    run_in_process = import_module("flows.in_process").run_in_process
    parameters = {"preset": preset, "model": model, "root": str(root or project_folder() / "runs" / preset)}
    parameters |= {key: value for key, value in given.items() if value is not None}
    try:
        result = run_in_process(flow, parameters)
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:  # a task failed; Prefect has logged where
        raise click.exceptions.Exit(fail(f"{type(error).__name__}: {error}", 1)) from error
    for step in result["steps"]:
        click.echo(f"{step['step']}: {'unchanged' if step['skipped'] else 'measured'}, {len(step['files'])} files")
    click.echo(f"{result['flow']}: {result['model']} at preset {result['preset']} in {result['root']}")


def _reason(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise InputError("--accept-code: say why the other code may be accepted, got nothing")
    return value


_accept_code_option = click.option(
    "--accept-code", metavar="REASON", callback=_reason,
    help="Let stage D take a freeze that was made by other code; the reason is saved with the result.",
)  # fmt: skip


@run.command("official-iss")
@_measuring
@_accept_code_option
def run_official_iss(
    preset: str, model: str | None, root: Path | None, dask: str | None, accept_code: str | None
) -> None:
    """Official ISS, stages A to D: is a fact held in one stable internal state, however it is asked for?

    A: exact Jacobians over the corpus. B: sketches of them, validated. C: everything frozen and hashed. D: the score
    on the benchmark, with what was frozen and nothing else.
    """
    _run_flow("flows.official_iss", "official_iss", preset, model, root, dask=dask, accept_code=accept_code)


@run.command("experiment-a")
@_measuring
def run_experiment_a(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Small model: sketches of every rank against the exact Jacobian; how good is Q B, and at which rank?"""
    _run_flow("flows.experiments", "experiment_a", preset, model, root, dask=dask)


@run.command("experiment-b")
@_measuring
def run_experiment_b(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Medium model, without a full reference: ranks, seeds and corpus sizes against each other."""
    _run_flow("flows.experiments", "experiment_b", preset, model, root, dask=dask)


@run.command("experiment-c")
@_measuring
def run_experiment_c(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Validation and freeze: which layers pass at which rank, and every setting and factor hashed (stages B and C)."""
    _run_flow("flows.experiments", "experiment_c", preset, model, root, dask=dask)


@run.command("experiment-d")
@_measuring
@_accept_code_option
def run_experiment_d(
    preset: str, model: str | None, root: Path | None, dask: str | None, accept_code: str | None
) -> None:
    """Official ISS on the benchmark from what experiment-c froze (stage D)."""
    _run_flow("flows.experiments", "experiment_d", preset, model, root, dask=dask, accept_code=accept_code)


@run.command("nulls")
@_measuring
def run_nulls(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """The same tables where nothing is to be found: a corpus of shuffled tokens, and a model of redrawn weights."""
    _run_flow("flows.experiments", "nulls", preset, model, root, dask=dask)


@run.command("alternatives")
@_measuring
def run_alternatives(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Other estimators of the same Jacobians, validated and saved apart; never part of official ISS."""
    _run_flow("flows.experiments", "alternatives", preset, model, root, dask=dask)


@run.command("six-axis")
@_measuring
def run_six_axis(preset: str, model: str | None, root: Path | None, dask: str | None) -> None:
    """Every (task, selector, direction rule) of the preset over its seeds."""
    _run_flow("flows.six_axis", "six_axis", preset, model, root, dask=dask)
