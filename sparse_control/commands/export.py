"""`export`: what a selector of the project found, as a file for other tools."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparse_control.commands.options import Folder, ModelName, root_option, source_options
from sparse_control.errors import InputError
from sparse_control.notes import note

if TYPE_CHECKING:
    from sparse_control.protocol.panels import PanelSources


@click.command()
@click.option("--task", required=True, metavar="TASK", help="Of the record.")
@click.option("--selector", required=True, metavar="NAME", help="Of the record.")
@click.option("--seed", type=click.IntRange(min=0), required=True, metavar="N", help="Of the record.")
@click.option("--condition", default="F", show_default=True, metavar="F", help="The direction rule: only F has one "
              "vector for every pair.")  # fmt: skip
@click.option("--out", type=Folder(), required=True, metavar="FILE", help="Ends in .gguf (repeng, llama.cpp), "
              ".safetensors, .npz or .pt (steering-vectors).")  # fmt: skip
@source_options()
@root_option
@click.option(
    "--model", type=ModelName(), metavar="NAME", help="Whose record; the model of the smoke preset by default."
)
def export(
    task: str, selector: str, seed: int, condition: str, out: Path, sources: "PanelSources", root: Path | None,
    model: str | None,
) -> None:  # fmt: skip
    """Write a measured direction as a vector per layer, for repeng, llama.cpp and steering-vectors.

    Layer l is the output of block l, counted from 0. A record has sites and strengths and no vectors: these are the
    mean contrasts of its fitting split, computed anew with the model. What is added to a head becomes the mean change
    at the output of its block, and the lines printed say how far the readouts move by the sites and by the vectors.
    Records are measured with the push at the last token of a prompt; repeng and llama.cpp add it to every token.

    \b
    python -m sparse_control export --task sentiment --selector driver_omp --seed 0 --out sentiment.gguf
    """
    from sparse_control.protocol.direction_writing import check_writable, write_directions
    from sparse_control.protocol.grid import check_names
    from sparse_control.protocol.selectors.table import SELECTORS

    check_names(tasks=[task], selectors=[selector], conditions=[condition], pairs=sources.pairs)
    if condition != "F":
        raise InputError(f"--condition {condition}: has a vector for each pair; only F can be exported")
    if SELECTORS[selector].random_directions:
        raise InputError(f"--selector {selector}: its vectors are drawn at random; export those of driver_omp")
    check_writable(out)

    from sparse_control.commands.recorded import loaded, measured_record, recorded_intervention, study_file

    path = study_file(root, model, task, selector, condition)
    measured = measured_record(path, seed)
    lm = loaded(model, measured)
    applied, pairs = recorded_intervention(lm, path, measured, sources)

    from sparse_control.protocol.exported import exported

    note("vectors at the outputs of the blocks ...")
    found = exported(lm, applied, pairs)
    write_directions(out, found.by_layer, model_hint=lm.model.config.model_type)
    layers = ", ".join(map(str, found.by_layer))
    click.echo(f"{measured.key}: {len(applied.support)} sites as vectors of layers {layers}, in {out}")
    if found.measured:
        means = ", ".join(map(str, found.measured))
        click.echo(f"layers {means}: heads, mean change of the block's output over {len(pairs)} prompts")
    click.echo(
        f"readout, mean over the {len(pairs)} fitting pairs: {found.moved:+.3f} logits by the sites, "
        f"{found.moved_by_vectors:+.3f} by the vectors at the last token, of a gap of {found.gap:.3f}"
    )
    if out.suffix == ".gguf" and 0 in found.by_layer:
        note("note: llama.cpp takes no vector of layer 0; repeng does")
