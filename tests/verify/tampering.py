"""What somebody may change in a measured root, with every hash renewed that can be, and what `verify` says to it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from sparse_control.records.paths import ModelPaths
from sparse_control.records.six_axis_files import measurement_files
from tests.support.measured_iss import iss_files
from tests.support.measured_root import bless, rehash, write_iss

STUDY = ModelPaths  # of the root, of one of its nulls, or of another model


@dataclass(frozen=True)
class Tampering:
    """One change.

    Attributes:
        what: in words.
        change: made in the folder of a model.
        says: in a line of the report; the first words of the detail.
        hide: renews hashes: those of the manifest, or of records and freezes as well.
    """

    what: str
    change: Callable[[STUDY], None]
    says: str
    hide: Callable[[Path], None] = rehash


def edit(path: Path, change: Callable, *, every: bool = False) -> None:
    """Change a JSON file, or the first row or every row of a JSON-lines file."""
    if path.suffix != ".jsonl":
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        return
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows if every else rows[:1]:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def iss(field: str, change: Callable, *, every: bool = False) -> Callable[[STUDY], None]:
    return lambda study: edit(study.iss_file(field), change, every=every)


def record(change: Callable) -> Callable[[STUDY], None]:
    """The first record of the first six-axis file."""
    return lambda study: edit(measurement_files(study)[0], change)


def scaled(row: dict, *keys: str, by: float) -> None:
    for key in keys[:-1]:
        row = row[key]
    row[keys[-1]] = [by * value for value in row[keys[-1]]]


def shifted(study: STUDY) -> None:
    """ISS moved, and with it every mean, interval and sweep that follows: as a forger would who owns the code."""
    write_iss(study, iss_files(study.model, null=study.null, layers=_layers(study), shift=0.05))


def _layers(study: STUDY) -> dict[int, str]:
    layers = json.loads(study.manifest.read_text())["layers"]
    return {int(number): layer["status"] for number, layer in layers.items()}


def penalty(study: STUDY) -> None:
    """A regularisation of the freeze, and all that copies it from there."""
    edit(study.manifest, lambda content: content["lam_rel"]["2"].update(iss=0.5))
    edit(study.iss_file("summary"), lambda content: content["lam_rel"]["2"].update(iss=0.5))
    edit(study.iss_file("summary"), lambda content: content["per_layer"][0].update(lam_rel_iss=0.5))


def threshold(study: STUDY) -> None:
    path = study.config("validation_thresholds")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"median_cosine": 0.5}))


def factors(study: STUDY) -> None:
    edit(study.factors(2) / "metadata.json", lambda content: content.update(layer=5))


def frozen(change: Callable) -> Callable[[STUDY], None]:
    return lambda study: edit(study.manifest, change)


def unpatched(row: dict) -> None:
    scaled(row, "evaluate", "source", by=1.1)
    row["evaluate"]["wrong_way"] = None


def hit(row: dict) -> None:
    end = row["feedback"]["endpoints"][0]
    end["terminal_margin"] = end["trajectory"][-1][1] = end["target"] + 1


OF_A_STUDY = [
    Tampering(
        "ISS of every fact shifted, with all that is computed of it, while S+ and S- stay",
        shifted,
        "ISS at layer 2: line 1: ",
    ),
    Tampering(
        "`s_plus = 0` in every row",
        iss("fact_layers", lambda row: row.update(s_plus=0.0), every=True),
        "ISS at layer 2: line 1: ",
    ),
    Tampering(
        "one seed of a mean over sketch seeds",
        iss("fact_layers", lambda row: row.get("seeds") and row["seeds"][1].update(iss=0.9), every=True),
        "ISS at layer 5: line ",
    ),
    Tampering(
        "the relation of a fact",
        iss("facts", lambda row: row.update(relation="language")),
        "ISS: fact: capital/0 of capital is not in both",
    ),
    Tampering("a mean over layers", iss("facts", lambda row: row.update(iss=0.9)), "ISS of capital/0: iss: 0.9"),
    Tampering(
        "a mean over facts", iss("summary", lambda content: content["ISS"].update(mean=0.9)), "mean stored [0.9]"
    ),
    Tampering(
        "a bootstrap interval", iss("raw", lambda content: content.update(bca=[0.1, 0.9])), "bca stored [0.1, 0.9]"
    ),
    Tampering("a count of facts", iss("summary", lambda content: content["ISS"].update(n_facts=8)), "ISS: n_facts: 8"),
    Tampering(
        "ISS at a swept regularisation",
        iss("summary", lambda content: content["sweep"][1].update(iss=0.99)),
        "per_layer: layer 2: iss: ",
    ),
    Tampering(
        "Raw-ISS at the regularisation of ISS",
        iss("summary", lambda content: content["per_layer"][0].update(raw_iss_matched_lam=0.95)),
        "per_layer: layer 2: raw_iss_matched_lam: 0.95",
    ),
    Tampering(
        "the share of right answers",
        iss("summary", lambda content: content["answer_accuracy"].update(overall=0.6)),
        "answer_accuracy: overall: 0.6, but per_relation gives 0.5",
    ),
    Tampering(
        "the difference of ISS between k and 2k",
        iss("actions", lambda row: row.update(iss_rank_difference=0.001)),
        "iss_rank_difference: 0.001, but ISS at ",
    ),
    Tampering("k/d", iss("actions", lambda row: row.update(k_over_d=0.1)), "k_over_d: 0.1, but k and d = 256 give"),
    Tampering("columns that are kept", iss("rank_convergence", lambda row: row.update(r=63)), "r: 63, but k + p"),
    Tampering(
        "an error below the best that a rank allows",
        iss("comparison", lambda content: content["rows"][0].update(E_F=0.01)),
        "E_F: 0.01, but no rank 64 is below",
    ),
    Tampering(
        "the distance of an alternative from exact ISS",
        iss("alternatives", lambda row: row.update(E_ISS=0.001)),
        "layer 2: E_ISS: the distances are not from one ISS",
    ),
    Tampering(
        "a criterion that failed",
        iss("actions", lambda row: row.update(passed=True)),
        "passed: True, but the frozen thresholds give False",
    ),
    Tampering(
        "a mean over sketch seeds", iss("seed_stability", lambda row: row.update(mean=0.9)), "mean: 0.9, but its values"
    ),
    Tampering("a threshold in `configs/`", threshold, "median_cosine: 0.5, but freeze_manifest.json has 0.99"),
    Tampering(
        "a regularisation of the freeze, under its old hash",
        frozen(lambda content: content["lam_rel"]["2"].update(iss=5.0)),
        "content_sha256: ",
        bless,
    ),
    Tampering(
        "a regularisation of the freeze and of the summary",
        penalty,
        "lam_rel.2.iss: 0.5, but validation/whitening.json has 0.05",
    ),
    Tampering(
        "a validated layer made unresolved in the freeze",
        frozen(lambda content: content["layers"].update({"2": {"status": "unresolved", "step": None}})),
        "layers.2.status: unresolved, but the rules give validated",
    ),
    Tampering("factors of another layer", factors, "layer: 5, expected 2"),
]
OF_RECORDS = [
    Tampering(
        "KL values halved, under the old hash of the record",
        record(lambda row: scaled(row, "preservation", "kl", by=0.5)),
        "provenance.record_sha256: ",
        bless,
    ),
    Tampering(
        "strengths scaled, under the old hash of the record",
        record(lambda row: scaled(row, "strengths", by=2)),
        "provenance.record_sha256: ",
        bless,
    ),
    Tampering(
        "the hash of a record taken out",
        record(lambda row: row["provenance"].pop("record_sha256")),
        "record_sha256 is missing",
        bless,
    ),
    Tampering("margins without a patch", record(unpatched), "evaluate.patched: at dose 0 other than source"),
    Tampering(
        "margins of the reuse pairs without a patch",
        record(lambda row: scaled(row, "reuse", "source", by=1.1)),
        "reuse.source differs between",
    ),
    Tampering(
        "a pair that the gate drops",
        record(lambda row: row["reuse"]["target"].__setitem__(0, row["reuse"]["source"][0])),
        "reuse: a pair has a gap of",
    ),
    Tampering(
        "pairs that the gate counts",
        record(lambda row: row["gate"]["evaluate"].update(kept=3)),
        "evaluate.pairs: 4, but gate.evaluate.kept is 3",
    ),
    Tampering("the margin a feedback loop ends at", record(hit), "feedback.endpoints.0: stop_reason: hit, but"),
    Tampering(
        "the gain of the feedback loop",
        record(lambda row: row["feedback"].update(gain=0.3)),
        "feedback.endpoints.0: trajectory: dose ",
    ),
    Tampering(
        "a site that was no candidate",
        record(lambda row: row["candidates"].update(components=["head"])),
        "support: L05.mlp@-1 is none of the candidates",
    ),
    Tampering(
        "shares of pairs that move the wrong way",
        record(lambda row: row["evaluate"].update(wrong_way=[0.5] * 10)),
        "evaluate: wrong_way must be the shares",
    ),
]


def table() -> str:
    """The rows as docs/reliability.md has them."""
    of_both = [("`paper/published.yaml`", "a figure of the source document", "a figure or a word of it changed")]
    rows = [("ISS", one.what, one.says) for one in OF_A_STUDY] + [
        ("six axes", one.what, one.says) for one in OF_RECORDS
    ]
    lines = [f"| {where} | {what} | `{says.strip()}` |" for where, what, says in [*rows, *of_both]]
    return "\n".join(["| where | changed | `verify` says |", "| --- | --- | --- |", *lines]) + "\n"
