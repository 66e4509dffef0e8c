"""What was measured: sizes, seeds, corpus, weights."""

from typing import Any

import pandas as pd

from sparse_control.records.six_axis import Measurement
from sparse_control.tables.common import Records, Table, data_frame

SETUP_COLUMNS = ("model", "quantity", "value")
SPLITS = ("fit", "evaluate", "reuse")


def setup(records: Records) -> pd.DataFrame:
    """Sizes of everything that was measured, as the records have them; one quantity a row."""
    freeze = records.iss.freeze
    models = {record.model for record in records.measurements} | ({freeze.model} if freeze else set())
    rows: list[dict[str, Any]] = []
    for model in sorted(models):
        quantities = {"model": model} | _weights(records, model)
        quantities |= _iss_setup(records) if freeze and freeze.model == model else {}
        quantities |= _protocol_setup([record for record in records.measurements if record.model == model])
        rows += [{"model": model, "quantity": name, "value": value} for name, value in quantities.items()]
    return data_frame(SETUP_COLUMNS, rows)


def _weights(records: Records, model: str) -> dict[str, str]:
    summary = records.iss.summary
    found = [record.provenance.model for record in records.measurements if record.model == model]
    if summary and summary.model == model:
        found.append(summary.provenance.model)
    sha256 = next((str(entry["weights_sha256"]) for entry in found if entry.get("weights_sha256")), None)
    return {"weights, SHA-256": f"{sha256[:12]}..."} if sha256 else {}


def preset(records: Records) -> str | None:
    """The preset the ISS half was frozen at; None where nothing says so."""
    freeze = records.iss.freeze
    return freeze.settings.model_dump().get("preset") if freeze else None


def _iss_setup(records: Records) -> dict[str, str]:
    settings = records.iss.freeze.settings.model_dump()
    iss, corpus = settings["iss"], settings.get("corpus", {})
    facts = {(fact.relation, fact.fact) for fact in records.iss.facts}
    found: dict[str, str] = {}
    if name := preset(records):
        found["preset"] = name
    if records.iss.comparison:
        tokens = f" windows of {corpus['sequence_length']} tokens" if "sequence_length" in corpus else ""
        found["corpus of the exact reference, n"] = f"{records.iss.comparison.corpus_size}{tokens}"
    if {"calibration_relations", "facts_per_relation"} <= set(iss):
        found["calibration"] = f"{iss['calibration_relations']} relations, up to {iss['facts_per_relation']} facts each"
    found["benchmark"] = f"{len({relation for relation, _ in facts})} relations, {len(facts)} facts"
    if {"families", "templates"} <= set(iss):
        found["prompts of a fact"] = f"{iss['families']} families, {iss['templates']} templates each"
    if seeds := settings.get("estimator", {}).get("sketch_seeds"):
        found["sketch seeds"] = ", ".join(map(str, seeds))
    return found


def _protocol_setup(measurements: list[Measurement]) -> dict[str, str]:
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


TABLES: dict[str, Table] = {
    "setup": setup,
}
