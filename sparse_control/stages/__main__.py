"""One stage by itself, as dvc.yaml calls it: `python -m sparse_control.stages reference --preset paper`.

`run official-iss` orders the stages, skips what is unchanged and is what a person types; here each one runs once.
"""

import shutil
import sys
from pathlib import Path

import click

from sparse_control.errors import InputError
from sparse_control.project import project_folder
from sparse_control.settings import Settings, load_settings

STEPS = ("corpus", "reference", "validate", "freeze", "official")


@click.command()
@click.argument("step", type=click.Choice(STEPS))
@click.option("--preset", default="smoke", show_default=True, help="Of params.yaml.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("."), help="Folder that gets jacobian_iss/.")
@click.option("--corpus", type=click.Path(path_type=Path), default=Path("corpus"), help="Folder of the built corpus.")
def main(step: str, preset: str, root: Path, corpus: Path) -> None:
    """Run one STEP of official ISS and print the files it wrote."""
    try:
        _run(step, load_settings(project_folder() / "params.yaml", preset), root, corpus)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _run(step: str, settings: Settings, root: Path, corpus: Path) -> None:
    if step == "corpus":
        _place_corpus(settings, corpus)
        return
    from sparse_control.stages import a_reference, b_validate, c_freeze, d_official

    stage = {"reference": a_reference, "validate": b_validate, "freeze": c_freeze, "official": d_official}[step]
    for path, _ in stage.run(corpus=corpus, root=root, settings=settings).files:
        click.echo(path)


def _place_corpus(settings: Settings, corpus: Path) -> None:
    from sparse_control.corpus import METADATA, WINDOWS, build
    from sparse_control.models import load_model

    built = build(settings, load_model(settings.model), progress=lambda line: click.echo(line, err=True))
    corpus.mkdir(parents=True, exist_ok=True)
    for name in (WINDOWS, METADATA):
        shutil.copyfile(built / name, corpus / name)
        click.echo(corpus / name)


if __name__ == "__main__":
    main()
