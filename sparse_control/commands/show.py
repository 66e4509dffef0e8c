"""`show`: tables and provenance in the terminal."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparse_control.commands.options import ModelName, add_quiet, preset_options, root_option
from sparse_control.commands.text import aligned
from sparse_control.errors import InputError, NotAvailable
from sparse_control.project import project_folder

MAIN = ("summary", "official_iss")
WIDTH = 100  # characters of a line, unless --wide
wide_option = click.option("--wide", is_flag=True, help=f"Lines as long as they are, in place of {WIDTH} characters.")


class Tables(click.Group):
    """A group whose further commands are the tables by name; they are known when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        from sparse_control.tables.registry import TABLES

        return [*super().list_commands(context), *TABLES]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        from sparse_control.tables.registry import TABLES

        if command := super().get_command(context, name):
            return command
        if name not in TABLES:
            raise InputError(f"no table {name!r}; there are: {', '.join([*self.commands, *TABLES])}")

        example = f"\b\npython -m sparse_control show {name}"

        @click.command(name, help=f"{TABLES[name].title}.\n\n{example}", short_help=TABLES[name].title)
        @root_option
        @wide_option
        @click.pass_context
        def table(context: click.Context, root: Path | None, wide: bool) -> None:
            click.echo(_tables([name], context, root, wide), nl=False)

        add_quiet(table)
        return table


def _tables(names: Sequence[str], context: click.Context, root: Path | None, wide: bool) -> str:
    """Tables as text; what a command is not told it takes from `show` before it."""
    from sparse_control.records.paths import committed_root
    from sparse_control.records.read import read_records
    from sparse_control.tables.shown import text_of

    project, group = project_folder(), context.parent.params if context.parent else {}
    root = root or group.get("root") or committed_root(project)
    width = None if wide or group.get("wide") else WIDTH
    return "\n".join(text_of(names, read_records(root, project), width))


def _drawn(name: str, out: Path, root: Path | None) -> Path:
    """Draw a figure of the records below a root into a file."""
    from sparse_control.figures import FIGURES, save
    from sparse_control.records.paths import committed_root
    from sparse_control.records.read import read_records

    if name not in FIGURES:
        raise InputError(f"no figure {name!r}; there are: {', '.join(FIGURES)}")
    figure, project = FIGURES[name], project_folder()
    return save(figure.canvas(figure.frame(read_records(root or committed_root(project), project))), out)


def _in_group(group: str) -> list[str]:
    from sparse_control.tables.registry import TABLES

    return [table.name for table in TABLES.values() if table.group == group]


@click.group(cls=Tables, invoke_without_command=True)
@root_option
@click.option("--plot", metavar="NAME", help="Draw a figure instead, such as dose or rank.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Where the figure goes, as .pdf, .svg or .png; NAME.pdf in the current folder by default.",
)  # fmt: skip
@wide_option
@click.pass_context
def show(context: click.Context, root: Path | None, plot: str | None, out: Path | None, wide: bool) -> None:
    """Tables in the terminal; the two main ones by default.

    \b
    python -m sparse_control show summary --root runs/smoke
    python -m sparse_control show --plot dose --out dose.pdf
    """
    if plot is not None:
        click.echo(_drawn(plot, out or Path(f"{plot}.pdf"), root))
    elif context.invoked_subcommand is None:
        from sparse_control.tables.registry import TABLES

        click.echo(_tables(MAIN, context, root, wide), nl=False)
        click.echo("\n" + textwrap.fill(f"more: show iss, show protocol, or a table: {', '.join(TABLES)}", WIDTH))


@show.command("iss")
@root_option
@wide_option
@click.pass_context
def show_iss(context: click.Context, root: Path | None, wide: bool) -> None:
    """Every table of official ISS.

    \b
    python -m sparse_control show iss
    """
    click.echo(_tables(_in_group("iss"), context, root, wide), nl=False)


@show.command("protocol")
@preset_options
@click.option("--plan", is_flag=True, help="What is measured, without the tables.")
@root_option
@wide_option
@click.pass_context
def show_protocol(
    context: click.Context, root: Path | None, preset: str, model: str | None, plan: bool, wide: bool
) -> None:
    """What the six-axis protocol is on a model, and its tables.

    Axes with their thresholds, tasks, selectors, direction rules and sites come first, as the preset has them.

    \b
    python -m sparse_control show protocol --plan
    """
    from sparse_control.protocol.grid import restricted
    from sparse_control.settings import load_settings

    settings = restricted(load_settings(project_folder() / "params.yaml", preset, model))
    tables = "" if plan else "\n" + _tables(_in_group("protocol"), context, root, wide)
    click.echo("\n".join(_protocol_lines(settings)))
    click.echo(tables, nl=False)


def _protocol_lines(settings: Any) -> list[str]:
    from sparse_control.models.shape import model_shape
    from sparse_control.protocol import description

    protocol = settings.protocol
    lines = [f"The six-axis protocol at preset {settings.preset} on {settings.model}"]
    for rows in (description.axes(protocol), description.tasks(protocol)):
        lines += ["", *aligned(rows)]
    lines += ["", *aligned(description.choices(protocol)), "", click.wrap_text(description.pairs(protocol), 110), ""]
    try:
        shape = model_shape(settings.model)
    except NotAvailable as error:
        return [*lines, f"Sites: {error}"]
    return [*lines, *aligned(description.sites(shape, protocol.components, protocol.positions))]


@show.command("provenance")
@click.argument("file", type=click.Path(path_type=Path))
@root_option
@click.pass_context
def show_provenance(context: click.Context, file: Path, root: Path | None) -> None:
    """Where FILE comes from: inputs, hashes, settings, code, versions, seeds, back to weights and corpus.

    FILE is a table, a page, measurements, the freeze, factors, a reference or the corpus, below the root.

    \b
    python -m sparse_control show provenance paper/tables/official_iss.tex
    """
    from sparse_control.provenance import provenance_lines
    from sparse_control.records.paths import committed_root

    for line in provenance_lines(file, root or context.parent.params["root"] or committed_root(project_folder())):
        click.echo(line)


@show.command("sites")
@click.argument("model", type=ModelName(), required=False)
def show_sites(model: str | None) -> None:
    """Where an intervention can act in MODEL: names, counts and widths; nothing is loaded.

    MODEL is a registry name, a hub id, a directory or a .gguf file; the one of params.yaml by default.

    \b
    python -m sparse_control show sites smollm2-135m-instruct
    """
    from sparse_control.models.shape import model_shape
    from sparse_control.protocol.description import sites
    from sparse_control.settings import load_settings

    shape = model_shape(load_settings(project_folder() / "params.yaml", "smoke", model).model)
    click.echo(f"{shape.name}: {shape.architecture}, {shape.layers} layers of width {shape.width}, {shape.heads} heads")
    click.echo("\n".join(aligned(sites(shape))))
    click.echo(
        "A name is layer, component and token position: L05.head.3@-1 is head 3 of layer 5 at the last token. "
        "Positions count from 0, or from the end where negative."
    )
