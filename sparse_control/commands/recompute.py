"""`reproduce`, `verify` and `score`: from saved numbers, without a model."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from sparse_control.commands.extras import install_command
from sparse_control.commands.options import Folder, root_option, wait_option
from sparse_control.commands.text import json_text
from sparse_control.errors import InputError
from sparse_control.files import read_text
from sparse_control.project import project_folder


@click.command()
@root_option
@click.option("--out", type=Folder(), default=None, metavar="DIR", help="Default: tables/ of the root's paper folder.")
@wait_option
def reproduce(root: Path | None, out: Path | None, wait: bool) -> None:
    """Recompute every table from the saved measurements; LaTeX, CSV and HTML.

    \b
    python -m sparse_control reproduce
    python -m sparse_control reproduce --root runs/smoke
    """
    from sparse_control.paper import reproduce as make
    from sparse_control.paper import undrawn
    from sparse_control.records.manifest import changed_measurements
    from sparse_control.records.paths import committed_root

    root = root or committed_root(project_folder())
    paths = make(root, out, wait=wait)
    if changed := changed_measurements(root):
        click.echo(
            f"warning: {len(changed)} measurements differ from MANIFEST.json, {changed[0]} first; see verify", err=True
        )
    if left_out := undrawn(paths):
        click.echo(
            f"{len(left_out)} figures left out, as matplotlib is not installed ({install_command('plots')})", err=True
        )
    click.echo(f"{len(paths)} files in {paths[0].parent}")


@click.command()
@root_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Every check, not only failures, warnings and skips.")
@click.option("--from-states", is_flag=True, help="Also recompute ISS from the transported states that are kept.")
def verify(root: Path | None, as_json: bool, verbose: bool, from_states: bool) -> None:
    """Check hashes, records, tables, claims and provenance.

    \b
    python -m sparse_control verify
    python -m sparse_control verify --root runs/smoke -v
    """
    from sparse_control.records.paths import committed_root
    from sparse_control.verify import verify as run_checks

    project = project_folder()
    checks = run_checks(root or committed_root(project), project, from_states=from_states)
    counted = [check for check in checks if check.status in ("ok", "FAIL")]
    failed = sum(check.status == "FAIL" for check in counted)
    if as_json:
        lines = [asdict(check) for check in checks]
        click.echo(json_text({"checks": len(counted), "failed": failed, "results": lines}))
    else:
        for check in checks:
            if verbose or check.status != "ok":
                click.echo(str(check))
                for line in check.more if verbose else ():
                    click.echo(f"       {line}")
        told = Counter(check.status for check in checks)
        if told["warn"] or told["skip"]:
            click.echo(f"{told['warn']} warnings, {told['skip']} skipped; -v shows every check and what they count")
        click.echo(f"verify: {len(counted)} checks, {failed} failed")
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "form", flag_value="json", help="Unrounded statistics as JSON.")
@click.option("--tex", "form", flag_value="tex", help="A LaTeX table (longtable, booktabs).")
@click.option("--html", "form", flag_value="html", help="A page of its own.")
@click.option("--schema", "form", flag_value="schema", help="The JSON schema of FILE, and nothing else.")
@click.option("--example", "form", flag_value="example", help="A FILE with every field, to start from.")
def score(file: Path | None, form: str | None) -> None:
    """Six axes for your own intervention, from a FILE of readouts.

    FILE is JSON, or JSON lines with a line per seed (.jsonl). An axis whose readouts are absent is not measured, and
    the table says what it needs; help(sparse_control.records.readouts) says what each field is.

    \b
    python -m sparse_control score --example > mine.json
    python -m sparse_control score mine.json
    """
    from sparse_control.records.base import printable
    from sparse_control.records.readouts import ScoreFile, score_file
    from sparse_control.tables.score import HEADINGS, score_rows, score_table

    if form == "schema":
        click.echo(json_text(ScoreFile.model_json_schema()))
        return
    if form == "example":
        click.echo(read_text(project_folder() / "examples" / "score_example.json"), nl=False)
        return
    if file is None:
        raise InputError("FILE: is missing; `score --example` prints one to start from")
    name, axes = score_file(file)
    if form == "json":
        click.echo(json_text({"name": name, "axes": axes}))
        return
    if form in ("tex", "html"):
        from sparse_control.tables.render import render_one

        click.echo(render_one(score_table(printable(name), axes), project_folder(), html=form == "html"), nl=False)
        return
    rows = [HEADINGS, *score_rows(axes)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    click.echo(printable(name))
    for row in rows:
        click.echo(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
        )
