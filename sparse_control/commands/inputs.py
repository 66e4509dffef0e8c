"""`models` and `corpus`: what a run needs before it can measure."""

from pathlib import Path

import click

from sparse_control.commands.options import Folder, preset_options
from sparse_control.notes import note
from sparse_control.project import project_folder


@click.group()
def models() -> None:
    """Model weights: which there are, and how to get them.

    \b
    python -m sparse_control models list
    """


@models.command("list")
def models_list() -> None:
    """The registry, and what is in the cache.

    \b
    python -m sparse_control models list
    """
    from sparse_control.models.fetch import model_path
    from sparse_control.registry import registry

    for name, source in registry().items():
        state = "fetched" if model_path(source).is_file() else f"python -m sparse_control models fetch {name}"
        click.echo(f"{name}  {source.architecture}, width {source.width}, {source.layers} layers, "
                   f"{source.bytes // 1_000_000} MB, {source.licence}: {state}")  # fmt: skip


@models.command("fetch")
@click.argument("name")
def models_fetch(name: str) -> None:
    """Download the weights of NAME and check their hash.

    \b
    python -m sparse_control models fetch smollm2-135m-instruct
    """
    from sparse_control.models.fetch import fetch_model

    click.echo(fetch_model(name, progress=note))


@click.group()
def corpus() -> None:
    """The Jacobian corpus: the text the Jacobians are averaged over.

    \b
    python -m sparse_control corpus build
    """


@corpus.command("build")
@preset_options
@click.option("--out", type=Folder(), metavar="DIR", help="Copy it into this folder, too; the cache has it anyway.")
def corpus_build(preset: str, model: str | None, out: Path | None) -> None:
    """Build the corpus from its pinned source for the tokenizer of the model.

    \b
    python -m sparse_control corpus build --preset paper
    """
    from sparse_control.corpus import METADATA, WINDOWS, build
    from sparse_control.files import write_bytes
    from sparse_control.models import load_model
    from sparse_control.settings import load_settings

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    built = build(settings, load_model(settings.model), progress=note)
    if out is not None:
        for name in (WINDOWS, METADATA):
            write_bytes(out / name, (built / name).read_bytes())
    click.echo(built if out is None else out)
