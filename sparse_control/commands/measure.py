"""`run`: measuring, through the flows."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparse_control.commands.entry import fail
from sparse_control.commands.generate import generate
from sparse_control.commands.options import (
    Folder,
    Strength,
    Text,
    known,
    layer_options,
    model_option,
    preset_option,
    run_root_option,
    source_options,
    template_option,
    wait_option,
)
from sparse_control.errors import InputError
from sparse_control.notes import note
from sparse_control.project import project_folder

if TYPE_CHECKING:
    from sparse_control.protocol.given import GivenFile
    from sparse_control.protocol.panels import PanelSources


WEAK = 0.02  # of the activations' norm: a push below it is told of


@click.group(commands=[generate])
def run() -> None:
    """Measure on a model, or let it write; an interrupted measurement goes on where it stopped.

    \b
    python -m sparse_control run six-axis --preset smoke --task ioi
    """


def _run_flow(
    name: str,
    function: str,
    where: dict[str, Any],
    more: dict[str, Any] | None = None,
    quiet: bool = False,
    **checked: Any,
) -> dict[str, Any]:
    """Check the parameters of a flow, then run it in this process and print its steps; gives what the flow returns.

    Args:
        name: of the flow.
        function: `module:function` that takes the checked parameters.
        where: preset, model, root, workers, dask and wait.
        more: further arguments of the function.
        quiet: whether the steps are not printed.
        checked: further arguments of `flows.parameters.checked_run`.
    """
    root = where["root"] or project_folder() / "runs" / where["preset"]
    run = import_module("flows.parameters").checked_run(name, **where | {"root": str(root)}, **checked)
    module, _, attribute = function.partition(":")
    run_as_flow = import_module("flows.in_process").run_as_flow
    try:
        result = run_as_flow(name, getattr(import_module(module), attribute), {"run": run} | (more or {}))
    except (InputError, ModuleNotFoundError):
        raise
    except Exception as error:  # a task failed; Prefect has logged where
        raise click.exceptions.Exit(fail(f"{type(error).__name__}: {error}", 1)) from error
    if not quiet:
        for step in result["steps"]:
            click.echo(f"{step['step']}: {'unchanged' if step['skipped'] else 'measured'}, {len(step['files'])} files")
        click.echo(f"{result['flow']}: {result['model']} at preset {result['preset']} in {result['root']}")
    return result


def _where_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Model, folder and machines, as every command that runs a flow takes them."""
    workers = click.option(
        "--workers", metavar="N|auto", default="1", show_default=True,
        help="Processes of this machine that measure side by side, to the same bytes; auto: one per core, as far as "
        "memory goes.",
    )  # fmt: skip
    dask = click.option(
        "--dask", metavar="ADDRESS", help="Measure on the workers of a Dask cluster, by its scheduler's address."
    )
    return model_option(run_root_option(workers(dask(wait_option(function)))))


def _facts_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--facts` and `--prompts`, of the commands whose stages ask for facts."""
    facts = click.option(
        "--facts", type=Folder(exists=True), metavar="FILE",
        help="Facts of your own in place of the project's: a .csv or .jsonl of relation, subject, answer, or the "
        "folder of ParaRel or LAMA. Needs three relations; those that share the fewest entities are calibrated on.",
    )  # fmt: skip
    prompts = click.option(
        "--prompts", type=Folder(exists=True), metavar="FILE",
        help="Prompts for them: a .csv or .jsonl of relation, family, prompt, the prompt with {subject}. Every "
        "relation needs two families; ParaRel has its own.",
    )  # fmt: skip
    return facts(prompts(function))


_accept_code_option = click.option(
    "--accept-code", type=Text(), metavar="REASON",
    help="Let stage D take a freeze that was made by other code; the reason is saved with the result.",
)  # fmt: skip


_replace_option = click.option(
    "--replace", is_flag=True,
    help="Move what the folder has of other facts to replaced/ of it, and measure again. Without it such a run is "
    "refused.",
)  # fmt: skip


def _add(
    command: str, function: str, text: str, *, preset: str = "smoke", ends_with_d: bool = False, replaces: bool = False
) -> None:
    """Add the command of a flow that takes model, facts, folder and machines.

    Args:
        ends_with_d: whether it takes a reason for a freeze of other code.
        replaces: whether it sets aside what the folder has of other facts.
    """

    def call(
        preset: str, model: str | None, root: Path | None, workers: str, dask: str | None, wait: bool,
        facts: Path | None, prompts: Path | None, accept_code: str | None = None, replace: bool = False,
    ) -> None:  # fmt: skip
        where = {"preset": preset, "model": model, "root": root, "workers": workers, "dask": dask, "wait": wait}
        own = {"facts": facts and str(facts), "prompts": prompts and str(prompts)}
        _run_flow(command, function, where, accept_code=accept_code, replace=replace, **own)

    call = _facts_options(_accept_code_option(call) if ends_with_d else call)
    call = _where_options(_replace_option(call) if replaces else call)
    run.command(command, help=text)(preset_option(call, preset))


_add(
    "official-iss", "flows.official_iss:measure",
    """Official ISS: is a fact held in one stable internal state, however it is asked for?

    Stage A takes exact Jacobians over the corpus, B validates sketches of them, C freezes and hashes everything, and D
    scores the benchmark with what was frozen and nothing else.

    \b
    python -m sparse_control run official-iss --preset smoke
    python -m sparse_control run official-iss --facts facts.csv --prompts prompts.csv --root runs/mine
    python -m sparse_control run official-iss --facts pararel/data --root runs/pararel""",
    ends_with_d=True, replaces=True,
)  # fmt: skip
_add(
    "experiment-a", "flows.experiments:experiment_a",
    """Sketches of every rank against exact Jacobians (stage A).

    How good is Q B, and at which rank? Full-reference calibration, on a model small enough for it.

    \b
    python -m sparse_control run experiment-a --root runs/by-hand""",
)  # fmt: skip
_add(
    "experiment-b", "flows.experiments:experiment_b",
    """Does the rank of the small model do for a medium one?

    Direct actions and the behaviour of the rank on the medium model, measured into its own folder. With the small
    model's --root, `show rank_transfer` compares the two.

    \b
    python -m sparse_control run experiment-b --root runs/by-hand""",
    preset="medium",
)  # fmt: skip
_add(
    "experiment-c", "flows.experiments:experiment_c",
    """Every layer's estimator by one fixed rule (stage B).

    Held-out activations, nested ranks, several sketch seeds; what no step of the ladder mends stays unresolved.

    \b
    python -m sparse_control run experiment-c --root runs/by-hand""",
)  # fmt: skip
_add(
    "experiment-d", "flows.experiments:experiment_d",
    """Freeze every choice, then measure the benchmark once (stages C and D).

    Needs what experiment-a and experiment-c measured in the same folder.

    \b
    python -m sparse_control run experiment-d --root runs/by-hand""",
    ends_with_d=True,
)  # fmt: skip
_add(
    "nulls", "flows.experiments:nulls",
    """The same tables where nothing is to be found.

    Once with a corpus of shuffled tokens and once with a model of redrawn weights, in nulls/ of the model's folder.

    \b
    python -m sparse_control run nulls --root runs/by-hand""",
)  # fmt: skip
_add(
    "alternatives", "flows.experiments:alternatives",
    """Other estimators of the same Jacobians, kept apart.

    Each is validated and saved under its own name and is never part of official ISS. Needs experiment-a.

    \b
    python -m sparse_control run alternatives --root runs/by-hand""",
)  # fmt: skip


@run.command("six-axis")
@preset_option
@_where_options
@click.option("--task", "tasks", multiple=True, metavar="TASK", shell_complete=known("tasks"),
              help="Only this task; repeat for several.")  # fmt: skip
@click.option("--selector", "selectors", multiple=True, metavar="NAME", shell_complete=known("selectors"),
              help="Only this selector; repeat for several.")  # fmt: skip
@click.option("--condition", "conditions", multiple=True, metavar="P|F|O", shell_complete=known("conditions"),
              help="Only this direction rule.")  # fmt: skip
@click.option("--seed", "seeds", multiple=True, type=int, metavar="N", help="Only this seed; repeat for several.")
@source_options(off_target=True)
@template_option
@click.option(
    "--intervention", "interventions", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="An intervention of your own in place of the selectors, with random controls of equal size: a control vector "
    "of repeng (.gguf), .safetensors, .npz, weights-only .pt, or .json as examples/intervention_example.json. Added at "
    "the last token; repeat for several.",
)  # fmt: skip
@layer_options
@click.option(
    "--strength", type=Strength(), default=1.0, show_default=True, metavar="X|fit",
    help="Factor on the vectors of --intervention at dose 1; fit takes the one that brings the fitting pairs closest "
    "to their targets.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The six numbers unrounded, as one JSON object.")
@click.option("--dry-run", is_flag=True, help="Print sites, forwards and tokens; load and measure nothing.")
@click.option("--timed", is_flag=True, help="With --dry-run: load the model, and estimate the time on a few prompts.")
@click.option("--replace", is_flag=True,
              help="Measure records again that were measured with other settings, code or model files; the old ones "
              "are moved to replaced/ of the folder. Without it such a run is refused.")  # fmt: skip
def run_six_axis(
    preset: str, model: str | None, root: Path | None, workers: str, dask: str | None, wait: bool,
    tasks: tuple[str, ...], selectors: tuple[str, ...], conditions: tuple[str, ...], seeds: tuple[int, ...],
    sources: "PanelSources", template: dict[str, Any], interventions: tuple[Path, ...],
    layer: int | None, row: int | None, strength: float | None, as_json: bool, dry_run: bool, timed: bool,
    replace: bool,
) -> None:  # fmt: skip
    """The six-axis protocol: can a push hit, undo, dial, track, spare and carry over?

    Measures every (task, selector, direction rule) of the preset over its seeds. Options narrow that down, or name
    others; records measured one by one are those of the whole run, and none that is there is lost: one measured with
    other settings, code or model files stays until --replace. `show protocol --plan` says what each name means.

    Pairs of --pairs are a task of their own, alone where no --task is given; pairs that cannot be used are counted
    before anything is measured.

    A vector of --intervention is the same for every pair (F), or turned with the pair's orientation (O) where a task
    has both, as in IOI. Nothing is selected: axis 6 has it as it is (frozen), and with one common factor of its
    strengths that is fitted on the unseen pairs (refit).

    \b
    python -m sparse_control run six-axis --dry-run
    python -m sparse_control run six-axis --task ioi --selector driver_omp --condition F --seed 0
    python -m sparse_control run six-axis --task sentiment --intervention probe.npz --layer 15 --strength fit
    python -m sparse_control run six-axis --pairs reviews.jsonl --selector driver_omp --condition F --seed 0
    """
    from sparse_control.commands.given_files import given_reports
    from sparse_control.protocol.grid import restricted, templated
    from sparse_control.settings import load_settings

    if timed and not dry_run:
        raise InputError("--timed: says how --dry-run estimates; give both")
    given = _given(interventions, layer, row, strength)
    which = {"tasks": tasks, "selectors": selectors, "conditions": conditions, "seeds": seeds}
    which |= {"given": given, "pairs": sources.pairs}
    narrowed = lambda settings: templated(restricted(settings, **which), template)  # noqa: E731
    settings = narrowed(load_settings(project_folder() / "params.yaml", preset, model))
    for line in given_reports(settings, sources):
        note(f"six-axis: {line}")
    if dry_run:
        from sparse_control.commands.dry_run import plan_lines
        from sparse_control.models.locate import check_model_name

        check_model_name(settings.model)
        click.echo("\n".join(plan_lines(settings, sources, given, timed)))
        return
    where = {"preset": preset, "model": model, "root": root, "workers": workers, "dask": dask, "wait": wait}
    more = {"sources": sources, "replace": replace, "given": given}
    result = _run_flow("six-axis", "flows.six_axis:measure", where, more, quiet=as_json, narrowed=narrowed)
    files = [name for step in result["steps"] for name in step["files"] if name.endswith(".jsonl")]
    _say_numbers(Path(result["root"]), files, as_json, fitted=strength is None)


def _given(
    interventions: tuple[Path, ...], layer: int | None, row: int | None, strength: float | None
) -> tuple["GivenFile", ...]:
    """The files of interventions, looked at.

    Raises:
        InputError: as `GivenFile.of`, or how to read a file is said and none is given.
    """
    for name, value, default in (("--layer", layer, None), ("--row", row, None), ("--strength", strength, 1.0)):
        if value != default and not interventions:
            raise InputError(f"{name}: says how --intervention FILE is read; give one")
    if not interventions:
        return ()
    from sparse_control.protocol.given import GivenFile

    read = {"layer": layer, "row": row, "strength": strength}
    return tuple(GivenFile.of(path.resolve(), **read) for path in interventions)


def _say_numbers(root: Path, files: Sequence[str], as_json: bool, fitted: bool) -> None:
    """The six numbers of what was asked for, a row for each (task, selector, direction rule)."""
    from sparse_control.commands.text import aligned, json_text
    from sparse_control.records.given import is_given
    from sparse_control.tables.six_numbers import HEADINGS, number_rows, numbers

    rows = numbers(root, files)
    if as_json:
        click.echo(json_text({"root": str(root), "records": rows}))
    elif rows:
        click.echo()
        for line in aligned([HEADINGS, *number_rows(rows)]):
            click.echo(line)
        for task, reason in dict.fromkeys((row["task"], row["reason"]) for row in rows if row["reason"]):
            click.echo(f"\n{task} is not supported by this model: {reason}")
        click.echo("\nPush: what is added at dose 1, over the norm of what is there.")
    for row in rows:
        if not fitted and is_given(row["selector"]) and row["push"] is not None and row["push"] < WEAK:
            click.echo(f"warning: {row['selector']} adds {row['push']:.2g} of the activations' norm at dose 1, which "
                "hardly any readout can show; give --strength X, or --strength fit", err=True)  # fmt: skip
