"""`show`: the tables in the terminal."""

from pathlib import Path

import click

from sparse_control.commands.options import root_option
from sparse_control.errors import InputError
from sparse_control.project import project_folder


@click.command()
@click.argument("table", required=False)
@root_option
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
