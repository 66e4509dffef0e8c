"""`stage`: one stage by itself, in this process and without Prefect, for looking closely and for other tools.

`run official-iss` orders the stages, works in units, skips what is unchanged and is what a person types.
"""

from importlib import import_module
from pathlib import Path

import click

from sparse_control.commands.options import Folder, preset_options, run_root_option, wait_option
from sparse_control.notes import note
from sparse_control.project import project_folder
from sparse_control.records.paths import ALTERNATIVES, NULL_NAMES, STAGES

MODULES = STAGES | {"alternatives": ALTERNATIVES}


@click.command(hidden=True)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice([*MODULES]))
@preset_options
@run_root_option
@click.option("--corpus", type=Folder(exists=True, file_okay=False), required=True, metavar="DIR",
              help="Folder of a built corpus (corpus build).")  # fmt: skip
@click.option("--null", type=click.Choice(NULL_NAMES), help="Of a null, into nulls/NAME of the model's folder.")
@wait_option
def stage(
    names: tuple[str, ...], preset: str, model: str | None, root: Path | None, corpus: Path, null: str | None,
    wait: bool,
) -> None:  # fmt: skip
    """Run stages one after the other and print the files they wrote.

    \b
    python -m sparse_control stage reference validate freeze official --corpus corpus --root runs/by-hand
    """
    from sparse_control.records.lock import root_lock
    from sparse_control.records.manifest import write_manifest
    from sparse_control.settings import load_settings
    from sparse_control.stages.queries import check_queries
    from sparse_control.stages.resolve import shape_of

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    settings = settings if null is None else settings.as_null(null)
    check_queries(settings)
    width, _ = shape_of(settings.model)
    for left_out in settings.ranks_left_out(width):
        note(f"params.yaml: {left_out} of {settings.model}")
    root = root or project_folder() / "runs" / preset
    with root_lock(root, wait=wait):
        for name in names:
            receipt = import_module(MODULES[name]).run(corpus=corpus, root=root, settings=settings)
            write_manifest(root, dict(receipt.files))
            for path, _ in receipt.files:
                click.echo(path)
