"""What was measured: sizes, seeds, corpus, weights."""

from collections.abc import Iterator, Sequence

from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.columns import Column, Row, in_words, label
from sparse_control.tables.table import Table

SPLITS = ("fit", "evaluate", "reuse")


def _setup(model: ModelRecords) -> Iterator[Row]:
    """One quantity a row, of models with a frozen study or six axes."""
    if not (model.iss.freeze or model.six_axis):
        return
    quantities = {"model": model.name} | _weights(model) | _iss_setup(model) | _protocol_setup(model.six_axis)
    for name, value in quantities.items():
        yield {"quantity": name, "value": value}


def _weights(model: ModelRecords) -> dict[str, str]:
    found = [record.provenance.model for record in model.six_axis]
    if model.iss.summary:
        found.append(model.iss.summary.provenance.model)
    sha256 = next((str(entry["weights_sha256"]) for entry in found if entry.get("weights_sha256")), None)
    return {"weights, SHA-256": f"{sha256[:12]}..."} if sha256 else {}


def preset(model: ModelRecords) -> str | None:
    """The preset the ISS half was frozen at; None where nothing says so."""
    return model.iss.freeze.settings.model_dump().get("preset") if model.iss.freeze else None


def _iss_setup(model: ModelRecords) -> dict[str, str]:
    if model.iss.freeze is None:
        return {}
    settings = model.iss.freeze.settings.model_dump()
    iss, corpus = settings["iss"], settings.get("corpus", {})
    facts = {(fact.relation, fact.fact) for fact in model.iss.facts}
    found: dict[str, str] = {}
    if name := preset(model):
        found["preset"] = name
    if model.iss.comparison:
        tokens = f" windows of {corpus['sequence_length']} tokens" if "sequence_length" in corpus else ""
        found["corpus of the exact reference, n"] = f"{model.iss.comparison.corpus_size}{tokens}"
    most = "up to " * (own := model.iss.freeze.settings.facts is not None)  # of one's own facts there may be fewer
    if own:
        found["facts"] = f"{settings['facts']['file']}, SHA-256 {settings['facts']['sha256'][:12]}..."
    if {"calibration_relations", "facts_per_relation"} <= set(iss):
        sizes = f"{iss['calibration_relations']} relations, up to {iss['facts_per_relation']} facts each"
        found["calibration"] = most + sizes
    found["benchmark"] = f"{len({relation for relation, _ in facts})} relations, {len(facts)} facts"
    if {"families", "templates"} <= set(iss):
        found["prompts of a fact"] = f"{most}{iss['families']} families, {most}{iss['templates']} templates each"
    if seeds := settings.get("estimator", {}).get("sketch_seeds"):
        found["sketch seeds"] = ", ".join(map(str, seeds))
    return found


def _protocol_setup(measurements: Sequence[Measurement]) -> dict[str, str]:
    """Pairs over seeds; every selector and direction rule of a task and seed has the same ones."""
    if not measurements:
        return {}
    found = {"six-axis seeds": ", ".join(map(str, sorted({record.seed for record in measurements})))}
    for task in sorted({record.task for record in measurements}):
        gates = {record.seed: record.gate for record in measurements if record.task == task and record.gate}.values()
        if not gates:
            continue
        counts = {split: [getattr(gate, split) for gate in gates] for split in SPLITS}
        found[f"{task}: pairs kept of built"] = ", ".join(
            f"{split} {sum(count.kept for count in each)}/{sum(count.built for count in each)}"
            for split, each in counts.items()
        )
    prompts = {len(record.preservation.prompts) for record in measurements if record.supported}
    if prompts:
        found["off-target prompts"] = " or ".join(map(str, sorted(prompts)))
    return found


def _task_in_words(quantity: str) -> str:
    task, colon, rest = quantity.partition(":")
    return f"{in_words(task)}{colon}{rest}" if colon else quantity


SETUP = Table(
    name="setup",
    title="What was measured",
    caption="Sizes as the records have them; pairs of a task are counted over its seeds.",
    section="Jacobian-Transported ISS, 8, 9 and 13; Six-axis protocol, What every axis needs",
    group="setup",
    reads=("six_axis", "freeze", "comparison", "facts", "summary"),
    rows=_setup,
    fields=("quantity", "value"),
    columns=(
        Column("Quantity", lambda row: _task_in_words(row["quantity"]), "l"),
        label("value", "Value"),
    ),
)

TABLES = (SETUP,)
