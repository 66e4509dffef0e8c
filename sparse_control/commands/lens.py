"""`lens`: published Jacobian-lens files, written, shown, and scored beside Raw-ISS. Never official ISS."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparse_control.commands.options import model_option, preset_option, wait_option
from sparse_control.commands.text import json_text
from sparse_control.errors import InputError
from sparse_control.notes import note
from sparse_control.project import project_folder

if TYPE_CHECKING:
    from sparse_control.models.identity import ModelIdentity


class Layers(click.ParamType):
    """Layers as `6,15,24`."""

    name = "layers"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
            self.fail(f"{value!r} is not a list of layers; write them like 6,15,24", parameter, context)
        layers = tuple(int(part) for part in parts)
        if len(set(layers)) < len(layers):
            self.fail(f"{value!r} names a layer twice", parameter, context)
        return layers


_file_argument = click.argument("file", type=click.Path(path_type=Path))
_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")


@click.group()
def lens() -> None:
    """Jacobian lenses in their published file form: write, show, score. Not official ISS.

    Layers count as in those files: layer l is the output of block l, the state h^(l+1).

    \b
    python -m sparse_control lens show FILE
    """


@lens.command("write")
@preset_option
@model_option
@click.option("--prompts", type=click.IntRange(min=1), required=True, metavar="N", help="First N corpus windows.")
@click.option("--layers", type=Layers(), required=True, help="Layers to fit, such as 6,15,24.")
@click.option("--skip-first", type=click.IntRange(min=0), default=16, show_default=True, metavar="N",
              help="First position that counts.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The lens file.")
@wait_option
def lens_write(
    preset: str, model: str | None, prompts: int, layers: tuple[int, ...], skip_first: int, out: Path, wait: bool
) -> None:
    """Fit a lens with exact Jacobians and write it to FILE.

    A fit that was ended goes on where it was when the command is given again.

    \b
    python -m sparse_control lens write --prompts 32 --layers 6,15,24 --out lens.pt
    """
    from sparse_control.jacobian.lens import check_target
    from sparse_control.records.lock import lock_around
    from sparse_control.settings import load_settings

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    check_target(out)
    from tqdm import tqdm

    from sparse_control.corpus import build, load_corpus
    from sparse_control.models import load_model
    from sparse_control.stages.lens_iss import fit_lens
    from sparse_control.threads import pin_threads

    pin_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    windows = load_corpus(build(settings, lm, progress=note))
    if prompts > len(windows):
        raise InputError(f"--prompts: {prompts} asked for, the corpus has {len(windows)} windows")
    numbers = len(layers) * lm.width**2
    note(
        f"lens: {lm.width} products through {windows.input_ids.shape[1]} tokens for each of {prompts} prompts; "
        f"about {20 * numbers / 1e6:.0f} MB of memory beside the model, {4 * numbers / 1e6:.0f} MB on disk, "
        f"and {8 * numbers / 1e6:.0f} MB more until it is done"
    )
    with (
        lock_around(out, wait=wait),
        tqdm(total=prompts, desc="lens", unit="prompt", mininterval=1.0) as bar,
    ):
        path = fit_lens(
            lm, windows.first(prompts), layers, out, skip_first=skip_first,
            checkpoint_seconds=settings.estimator.checkpoint_seconds, progress=bar.update,
        )  # fmt: skip
    click.echo(path)


@lens.command("show")
@_file_argument
@_json_option
def lens_show(file: Path, as_json: bool) -> None:
    """Print what FILE says of itself; no model is loaded.

    \b
    python -m sparse_control lens show lens.pt
    """
    from sparse_control.files import sha256_file
    from sparse_control.jacobian.lens import read_lens
    from sparse_control.records.base import printable

    read = read_lens(file)
    facts = {
        "file": file.name, "sha256": sha256_file(file), "d_model": read.width, "n_prompts": read.n_prompts,
        "source_layers": list(read.layers), "stored_as": read.dtype, "position": read.position,
    }  # fmt: skip
    facts |= {key: value for key, value in read.metadata.items() if key not in facts}
    if as_json:
        click.echo(json_text(facts))
        return
    for key, value in facts.items():
        click.echo(printable(f"{key}: {value if isinstance(value, (str, int)) else json.dumps(value)}"))
    if not read.metadata:
        click.echo("target layer, model and corpus: not recorded in the file")


@lens.command("score")
@_file_argument
@preset_option
@model_option
@click.option("--facts", type=click.Choice(["benchmark", "calibration"]), default="benchmark", show_default=True,
              help="Set of facts that is scored.")  # fmt: skip
@click.option("--layers", type=Layers(), default=None, help="Layers of the lens; all of them by default.")
@_json_option
def lens_score(
    file: Path, preset: str, model: str | None, facts: str, layers: tuple[int, ...] | None, as_json: bool
) -> None:
    """ISS with the lens in FILE as the transport, beside Raw-ISS of the same states.

    Says so where the lens was fitted on another model: other files, dtype or libraries.

    \b
    python -m sparse_control lens score lens.pt --layers 15
    """
    from sparse_control.files import sha256_file
    from sparse_control.jacobian.lens import read_lens
    from sparse_control.records.base import printable
    from sparse_control.settings import load_settings

    settings = load_settings(project_folder() / "params.yaml", preset, model)
    read = read_lens(file)
    from sparse_control.models import load_model
    from sparse_control.stages.lens_iss import lens_iss
    from sparse_control.threads import pin_threads

    pin_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    if difference := _difference(read.metadata, lm.identity):
        note(printable(f"warning: the lens was fitted on another model than {lm.name}: {difference}"))
    result = lens_iss(lm, read, settings, facts=facts, layers=layers)
    if as_json:
        result |= {"lens_sha256": sha256_file(file), "preset": preset, "provenance": lm.provenance}
        click.echo(json_text(result))
        return
    click.echo(f"{result['metric']}: {result['model']}, lens of {result['n_prompts']} prompts, "
               f"{result['n_facts']} {facts} facts, preset {preset}")  # fmt: skip
    rows = [("layer", "state", "Lens-ISS", "Raw-ISS", "Raw-ISS at the lens' lam_rel", "lam_rel", "raw lam_rel")]
    for row in result["per_layer"]:
        penalties = _cell(row["lam_rel_lens"]), _cell(row["lam_rel_raw"])
        rows.append((str(row["layer"]), row["state"], *_columns(row), *penalties))
    _print_table([*rows, ("mean", "", *_columns(result), "", "")])
    sweep = [("lam_rel", "Lens-ISS", "Raw-ISS")]
    sweep += [(f"{row['lam_rel']:g}", _cell(row["lens_iss"]), _cell(row["raw_iss"])) for row in result["sweep"]]
    _print_table(sweep)


def _difference(metadata: Mapping[str, Any], identity: "ModelIdentity") -> str:
    """What the model that a lens was fitted on is not, in words; empty where nothing differs or nothing is said."""
    from sparse_control.models.identity import ModelIdentity

    if "model_identity" in metadata:
        try:
            fitted_on = ModelIdentity.from_provenance(metadata["model_identity"])
        except (ValueError, LookupError, TypeError, AttributeError):
            return "its model_identity is not readable"
        return fitted_on.difference(identity) if fitted_on else "its model_identity is not readable"
    fitted_on = metadata.get("weights_sha256")  # all that other writers keep
    return "" if fitted_on in (None, identity.weights_sha256) else f"its weights have SHA-256 {fitted_on}"


def _columns(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_cell(row[name]) for name in ("lens_iss", "raw_iss", "raw_iss_matched_lam"))


def _cell(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
