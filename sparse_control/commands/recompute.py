"""`reproduce`, `verify` and `score`: from saved numbers, without a model."""

import json
from pathlib import Path

import click

from sparse_control.commands.options import Folder, root_option, wait_option
from sparse_control.project import project_folder


@click.command()
@root_option
@click.option("--out", type=Folder(), default=None, metavar="DIR", help="Default: tables/ of the root's paper folder.")
@wait_option
def reproduce(root: Path | None, out: Path | None, wait: bool) -> None:
    """Recompute every table from the saved measurements; LaTeX, CSV and HTML."""
    from sparse_control.records.manifest import changed_measurements
    from sparse_control.records.paths import committed_root
    from sparse_control.tables.render import reproduce as render_root

    root = root or committed_root(project_folder())
    paths = render_root(root, out, wait=wait)
    if changed := changed_measurements(root):
        click.echo(
            f"warning: {len(changed)} measurements differ from MANIFEST.json, {changed[0]} first; see verify", err=True
        )
    click.echo(f"{len(paths)} files in {paths[0].parent}")


@click.command()
@root_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@click.option("-v", "--verbose", is_flag=True, help="Every check, not only failures, warnings and skips.")
def verify(root: Path | None, as_json: bool, verbose: bool) -> None:
    """Check hashes, records, tables, claims and provenance."""
    from sparse_control.records.paths import committed_root
    from sparse_control.verify import verify as run_checks

    project = project_folder()
    checks = run_checks(root or committed_root(project), project)
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


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Unrounded statistics as JSON.")
def score(file: Path, as_json: bool) -> None:
    """Six axes for your own intervention, from a JSON FILE of readouts.

    examples/score_example.json has every field; help(sparse_control.records.readouts) says what each one is. An axis
    whose readouts are absent is reported as not measured.
    """
    from sparse_control.records.readouts import score_file
    from sparse_control.tables.score import score_rows

    name, axes = score_file(file)
    if as_json:
        click.echo(json.dumps({"name": name, "axes": axes}, indent=1, ensure_ascii=False, allow_nan=False))
        return
    rows = [("axis", "statistic", "value", "pass"), *score_rows(axes)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    click.echo("".join(character if character.isprintable() else " " for character in name))
    for row in rows:
        click.echo(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]]).rstrip()
        )
