"""One stage by itself, as dvc.yaml calls it: `python -m sparse_control.stages reference --preset paper`.

`run official-iss` orders the stages, works in units, skips what is unchanged and is what a person types; here each
stage runs once, in this process. `store` prints measurements/store.dvc.
"""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import click

from sparse_control.errors import InputError
from sparse_control.project import project_folder
from sparse_control.records.lock import root_lock
from sparse_control.records.paths import NULL_NAMES, committed_root
from sparse_control.settings import Settings, load_settings

STAGES = {
    "reference": "a_reference",
    "validate": "b_validate",
    "freeze": "c_freeze",
    "official": "d_official",
    "alternatives": "alternatives",
}
STUDY = ("reference", "validate", "freeze", "official")


@click.command()
@click.argument("step", type=click.Choice(["corpus", *STAGES, "study", "store", "curves"]))
@click.option("--preset", default="smoke", show_default=True, help="Of params.yaml.")
@click.option(
    "--root", type=click.Path(path_type=Path), default=Path("."), help="Folder that gets MODEL/jacobian_iss/."
)
@click.option("--corpus", type=click.Path(path_type=Path), default=Path("corpus"), help="Folder of the built corpus.")
@click.option("--null", type=click.Choice(NULL_NAMES), help="Measure a null, into MODEL/nulls/NAME.")
def main(step: str, preset: str, root: Path, corpus: Path, null: str | None) -> None:
    """Run one STEP of official ISS, or stages A to D as `study`, and print the files it wrote.

    `store` prints what measurements/store.dvc must be for what was measured; `curves` writes what `dvc plots` draws.
    """
    try:
        settings = load_settings(project_folder() / "params.yaml", preset)
        if step == "store":
            from sparse_control.records.store import store_text

            click.echo(store_text(committed_root(project_folder())), nl=False)
        elif step == "curves":
            from sparse_control.figures.curves import write_curves

            with root_lock(root):
                for path in write_curves(root):
                    click.echo(path)
        elif step == "corpus":
            _place_corpus(settings, corpus)
        else:
            steps = STUDY if step == "study" else (step,)
            _run(steps, settings if null is None else settings.as_null(null), root, corpus)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _run(steps: tuple[str, ...], settings: Settings, root: Path, corpus: Path) -> None:
    with root_lock(root):
        for step in steps:
            stage = import_module(f"sparse_control.stages.{STAGES[step]}")
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
