"""`run generate`: text under an intervention, from a six-axis record or from a file of one's own."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparse_control.commands.options import ModelName, Text, layer_options, source_options, template_option
from sparse_control.commands.recorded import loaded, measured_record, recorded_intervention
from sparse_control.commands.text import json_text
from sparse_control.errors import InputError

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.protocol import Intervention
    from sparse_control.protocol.generation import Generation
    from sparse_control.protocol.panels import PanelSources

SYSTEM = "You are a helpful assistant."


@click.command("generate")
@click.option("--prompt", type=Text(), metavar="TEXT", help="Text to go on with.")
@click.option("--chat", type=Text(), metavar="TEXT", help="Or a request, put into the model's chat template.")
@click.option("--system", type=Text(), metavar="TEXT", default=SYSTEM, show_default=True,
              help="System prompt of --chat.")  # fmt: skip
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="FILE",
    help="Support and strengths of this six-axis record (measurements/MODEL/six_axis/TASK.SELECTOR.CONDITION.jsonl); "
    "the directions are the mean contrasts of its fitting split (F), computed anew.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Which seed of the record; its first by default.")
@click.option(
    "--intervention", type=click.Path(path_type=Path), metavar="FILE",
    help="Or an intervention of your own, as of `run six-axis`: .gguf, .safetensors, .npz, .pt or .json.",
)  # fmt: skip
@layer_options
@click.option(
    "--dose", "doses", type=float, multiple=True, metavar="G",
    help="Repeat for several; -1, 0 and 1 by default. 0 is the unpatched model, -1 the opposite push.",
)  # fmt: skip
@click.option("--phases", type=click.Choice(["prompt", "generation", "both"]), default="both", show_default=True,
              help="Where it acts: at the sites' positions in the prompt, at every new token, or both.")  # fmt: skip
@click.option("--tokens", type=int, default=40, show_default=True, metavar="N", help="Most new tokens.")
@click.option("--temperature", type=float, default=0.0, show_default=True, metavar="T",
              help="0: always the likeliest token; above 0 tokens are drawn.")  # fmt: skip
@click.option("--sampling-seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="Of the draws; the same random numbers at every dose.")  # fmt: skip
@template_option
@source_options()
@click.option("--model", type=ModelName(), metavar="NAME",
              help="As in the other commands; the record's own model by default.")  # fmt: skip
@click.option("--together", is_flag=True, help="All doses in one batch: faster, equal to one by one up to rounding.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, token ids and log-probabilities included.")
def generate(
    prompt: str | None, chat: str | None, system: str, template: dict[str, Any], record: Path | None, seed: int | None,
    intervention: Path | None, layer: int | None, row: int | None, doses: tuple[float, ...], phases: str, tokens: int,
    temperature: float, sampling_seed: int, sources: "PanelSources", model: str | None, together: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Let the model write on under an intervention, once per dose.

    Each dose starts afresh, so that nothing computed under one dose serves another.

    \b
    python -m sparse_control run generate --prompt "The film was" --dose -1 --dose 0 --dose 1 \\
        --record measurements/smollm2-135m-instruct/six_axis/sentiment.driver_omp.F.jsonl --seed 0
    """
    if (prompt is None) is (chat is None):
        raise InputError("give the text to go on with: either --prompt TEXT or --chat TEXT")
    if (record is None) is (intervention is None):
        raise InputError("give what is applied: either --record FILE or --intervention FILE")
    if seed is not None and record is None:
        raise InputError("--seed says which seed of --record; for the draws there is --sampling-seed")
    if template and chat is None:
        raise InputError("--template is of the chat template, which --prompt does not go through; use --chat")
    if (layer, row) != (None, None) and intervention is None:
        raise InputError("--layer and --row say how --intervention FILE is read; give one")
    from sparse_control.protocol.given import GivenFile

    measured = None if record is None else measured_record(record, seed)
    given = None if intervention is None else GivenFile.of(intervention, layer=layer, row=row)

    from sparse_control.protocol.generation import generate as continue_prompt

    lm = loaded(model, measured)
    try:
        if measured is not None:
            applied, _ = recorded_intervention(lm, record, measured, sources)
        else:
            applied = given.intervention(lm)
        lm = lm.with_template_arguments(lm.template_arguments | template)
        ids = lm.encode(prompt) if chat is None else lm.encode_chat(chat, system=system)
        done = continue_prompt(
            lm, applied, ids, doses or (-1.0, 0.0, 1.0), phases=phases, max_tokens=tokens,
            temperature=temperature, seed=sampling_seed, together=together,
        )  # fmt: skip
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
    if as_json:
        report = _as_json(lm, applied, prompt or chat, phases, done)
        click.echo(json_text(report))
        return
    for one in done:
        click.echo(f"dose {one.dose:g}" + (" (unpatched)" if one.dose == 0 else ""))
        for line in (one.text or "").splitlines() or [""]:
            click.echo(("  " + _printable(line)).rstrip())


def _printable(line: str) -> str:
    from sparse_control.records.base import printable

    return printable(line)


def _as_json(
    lm: "LanguageModel", applied: "Intervention", text: str, phases: str, done: tuple["Generation", ...]
) -> dict[str, Any]:
    return {
        "model": lm.provenance,
        "prompt": text,
        "phases": phases,
        "support": [site.name for site in applied.support],
        "strengths": list(applied.strengths),
        "direction_norms": [_norm(direction) for direction in applied.directions],
        "generations": [
            {
                "dose": one.dose,
                "text": one.text,
                "token_ids": list(one.token_ids),
                "log_probabilities": list(one.log_probabilities),
                "stop_reason": one.stop_reason,
            }
            for one in done
        ],
    }


def _norm(direction: Any) -> float | None:
    """Null where the squares overflow."""
    value = float(direction.norm())
    return value if math.isfinite(value) else None
