"""What the tables of ISS come to, one number or phrase a row; the prose of the paper quotes nothing else."""

import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.alternatives import ALTERNATIVES, PASSES, QB
from sparse_control.tables.columns import EMPTY, Column, Row, fixed, label
from sparse_control.tables.estimator import CORPUS_CONVERGENCE, CORPUS_HALVES, ESTIMATOR_VALIDATION
from sparse_control.tables.findings_facts import correlations, supports
from sparse_control.tables.layers import UNRESOLVED, VALIDATED
from sparse_control.tables.nulls import COMMON, EACH, NAMES, NULLS_BESIDE_OFFICIAL
from sparse_control.tables.official import (
    ALL_LAYERS,
    CALIBRATION_SIGMA,
    LAM_REL_SWEEP,
    MATCHED,
    OFFICIAL_ISS,
    OWN,
    PER_RELATION,
    ROBUSTNESS,
    SWEPT,
    VALIDATED_LAYERS,
)
from sparse_control.tables.summary import SUMMARY
from sparse_control.tables.table import Table, rows_of
from sparse_control.tables.transfer import RANK_TRANSFER

Found = dict[str, Any]


def _findings(records: Records) -> Iterator[Row]:
    """Counts, ranges and differences over the rows of other tables, for every model whose study is frozen."""
    for model in records.models:
        if model.iss.freeze is None:
            continue
        for source, found in _of_model(model, records):
            for name, value in found.items():
                yield {"model": model.name, "finding": name, "value": value, "source": source.name}


def _of_model(model: ModelRecords, records: Records) -> Iterator[tuple[Table, Found]]:
    alone = Records(models=(model,))

    def rows(table: Table) -> list[Row]:
        return rows_of(table.frame(alone))

    validation = rows(ESTIMATOR_VALIDATION)
    yield ESTIMATOR_VALIDATION, _ladder(validation)
    yield CORPUS_CONVERGENCE, _corpus(rows(CORPUS_CONVERGENCE))
    yield CORPUS_HALVES, _halves(rows(CORPUS_HALVES), validation)
    yield ALTERNATIVES, _alternatives(rows(ALTERNATIVES))
    yield OFFICIAL_ISS, _official(rows(OFFICIAL_ISS))
    yield ROBUSTNESS, _robustness(rows(ROBUSTNESS))
    yield LAM_REL_SWEEP, _sweep(rows(LAM_REL_SWEEP))
    yield NULLS_BESIDE_OFFICIAL, _nulls(rows(NULLS_BESIDE_OFFICIAL))
    yield PER_RELATION, correlations(model)
    yield SUMMARY, supports(model)
    compared = [row for row in rows_of(RANK_TRANSFER.frame(records)) if row["small_model"] == model.name]
    for number, (medium, group) in enumerate(groupby(compared, key=lambda row: row["medium_model"])):
        prefix = f"{medium}: " if number else ""  # the first is the medium model that the paper speaks of
        yield RANK_TRANSFER, {f"{prefix}{name}": value for name, value in _transfer(list(group)).items()}


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values)) or "none"


def _ladder(rows: list[Row]) -> Found:
    if not rows:
        return {}
    validated = [row for row in rows if row["status"] == VALIDATED]
    ends: dict[tuple[int, int], list[int]] = {}
    for row in validated:
        ends.setdefault((row["k"], row["q"]), []).append(row["layer"])
    words = [
        f"k = {k} with q = {q} at layer{'s' if len(layers) > 1 else ''} {_listed(layers)}"
        for (k, q), layers in sorted(ends.items())
    ]
    return {
        "layers of the window": len(rows),
        "validated layers": len(validated),
        "unresolved layers": _listed([row["layer"] for row in rows if row["status"] == UNRESOLVED]),
        "validated layers of low rank": sum(not row["r_is_d"] for row in validated),
        "validated layers with r = d": sum(row["r_is_d"] for row in validated),
        "validated layers without power iterations": sum(row["q"] == 0 for row in validated),
        "validated layers of low rank without power iterations": sum(
            row["q"] == 0 and not row["r_is_d"] for row in validated
        ),
        "where the ladder ended": "; ".join(words) or "at no layer",
        "smallest k": min((row["k"] for row in validated), default=None),
        "largest k": max((row["k"] for row in validated), default=None),
        "smallest k/d": min((row["k_over_d"] for row in validated), default=None),
        "largest k/d": max((row["k_over_d"] for row in validated), default=None),
    }


def _corpus(rows: list[Row]) -> Found:
    chosen = [row for row in rows if row["chosen"]]
    return {"layers where the corpus rule holds": sum(row["converged"] for row in chosen)} if chosen else {}


def _halves(rows: list[Row], frozen: list[Row]) -> Found:
    """The noise floor beside the errors of the frozen estimators, over the window."""
    errors = {row["layer"]: row["median_relative_error"] for row in frozen if row["status"] == VALIDATED}
    floors = {row["layer"]: row["E_vec"] for row in rows if row["layer"] in {row["layer"] for row in frozen}}
    if not floors:
        return {}
    return {
        "smallest E_vec between halves": min(floors.values()),
        "largest E_vec between halves": max(floors.values()),
        "validated layers with an error below that of the halves": sum(
            error is not None and layer in floors and error < floors[layer] for layer, error in errors.items()
        ),
    }


def _alternatives(rows: list[Row]) -> Found:
    """At the fewest power iterations of each estimator."""
    if not rows:
        return {}
    by_estimator: dict[str, dict[int, Row]] = {}
    for row in rows:
        layers = by_estimator.setdefault(row["estimator"], {})
        if row["layer"] not in layers or (row["q"] or 0) < (layers[row["layer"]]["q"] or 0):
            layers[row["layer"]] = row
    plain = by_estimator.get(QB, {})
    found: Found = {"common k": rows[0]["common_k"], "layers with alternatives": len(plain)}
    for name, layers in by_estimator.items():
        ordered = [layers[layer] for layer in sorted(layers)]
        errors = [row["E_vec"] for row in ordered if row["E_vec"] is not None]
        found[f"{name}: median E_vec at the common k"] = statistics.median(errors) if errors else None
        found[f"{name}: layers that pass"] = sum(row["passes"] == PASSES for row in ordered)
        if name != QB:
            ahead = [row for row in ordered if row["qb_fails_at_smallest_k"]]
            found[f"{name}: layers that pass where qb fails"] = len(ahead)
            for which, row in (("first", ordered[0]), ("last", ordered[-1])):
                found[f"{name}: E_vec over that of qb at the {which} layer"] = row["E_vec_over_qb"]
    return found


def _only(rows: list[Row], **where: Any) -> Row:
    """The one row with these values; empty where there is none."""
    found = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return found[0] if len(found) == 1 else {}


def _official(rows: list[Row]) -> Found:
    if not rows:
        return {}
    official, ablation = _only(rows, layer=VALIDATED_LAYERS), _only(rows, layer=ALL_LAYERS)
    return {
        "ISS": official.get("iss"),
        "ISS, BCa low": official.get("iss_bca_low"),
        "ISS, BCa high": official.get("iss_bca_high"),
        "Raw-ISS over validated layers": official.get("raw_iss"),
        "Raw-ISS over all layers": ablation.get("raw_iss"),
        "facts": official.get("n_facts"),
    }


def _robustness(rows: list[Row]) -> Found:
    if not rows:
        return {}
    names = {OWN: "own lam_rel", MATCHED: "matched lam_rel", CALIBRATION_SIGMA: "calibration Sigma"}
    found = {
        f"ISS - Raw-ISS, {name}": _only(rows, layer=VALIDATED_LAYERS, variant=variant).get("difference")
        for variant, name in names.items()
    }
    own = _only(rows, layer=VALIDATED_LAYERS, variant=OWN)
    found |= {f"ISS - Raw-ISS, BCa {end}": own.get(f"difference_bca_{end}") for end in ("low", "high")}
    layers = [row for row in rows if row["variant"] == OWN and row["layer"] != VALIDATED_LAYERS]
    return found | _by_layer([row for row in layers if row["difference"] is not None])


def _by_layer(layers: list[Row]) -> Found:
    """Where the difference is smallest and largest, and where its interval leaves zero out."""
    ordered = sorted(layers, key=lambda row: row["difference"])
    found: Found = {}
    for name, row in (("smallest", ordered[0]), ("largest", ordered[-1])) if ordered else ():
        found[f"{name} ISS - Raw-ISS of a layer"] = row["difference"]
        found[f"layer of the {name} ISS - Raw-ISS"] = row["layer"]
    known = [row for row in layers if row["difference_bca_low"] is not None]
    above = [row["layer"] for row in known if row["difference_bca_low"] > 0]
    below = [row["layer"] for row in known if row["difference_bca_high"] < 0]
    found["layers with an interval above zero"] = _listed(above)
    return found | {"layers with an interval below zero": _listed(below)}


def _sweep(rows: list[Row]) -> Found:
    over_layers = [row["difference"] for row in rows if row["layer"] == VALIDATED_LAYERS]
    differences = [value for value in over_layers if value is not None]
    return _over_sweep(differences) if differences else {}


def _over_sweep(differences: Sequence[float], name: str = "") -> Found:
    return {
        f"{name}swept lam_rel": len(differences),
        f"{name}swept lam_rel with ISS above Raw-ISS": sum(value > 0 for value in differences),
        f"{name}smallest ISS - Raw-ISS in the sweep": min(differences),
        f"{name}largest ISS - Raw-ISS in the sweep": max(differences),
    }


def _nulls(rows: list[Row]) -> Found:
    """On the layers that are validated officially and in both nulls."""
    common = [row for row in rows if row["layers"] == COMMON]
    if not common:
        return {}
    matched = _only(common, lam=MATCHED)
    layers = matched["official_layers"]
    found: Found = {"layers validated in official and nulls": len(layers.split()) if layers else 0}
    for name in NAMES:
        found[f"{name}: ISS - Raw-ISS, matched lam_rel"] = matched[f"{name}_difference"]
        swept = [row[f"{name}_difference"] for row in common if row["lam"] == SWEPT]
        differences = [value for value in swept if value is not None]
        found |= _over_sweep(differences, f"{name}: ") if differences else {}
    layers = [row for row in rows if row["lam"] == MATCHED and row["layers"] not in (COMMON, EACH)]
    return found | _nulls_by_layer(layers)


def _nulls_by_layer(layers: list[Row]) -> Found:
    """At the layer with the largest official difference in size: what of it each null shows."""
    known = [row for row in layers if row["official_difference"] is not None]
    if not known:
        return {}
    row = max(known, key=lambda row: abs(row["official_difference"]))
    official = row["official_difference"]
    found: Found = {"layer of the largest official difference": row["layers"]}
    for name in NAMES:
        difference = row[f"{name}_difference"]
        found[f"{name}: ISS - Raw-ISS at that layer"] = difference
        share = None if difference is None or not official else difference / official
        found |= {f"{name}: share of the official difference at that layer": share} if name != "official" else {}
    return found


def _transfer(rows: list[Row]) -> Found:
    return {
        "depths compared": len(rows),
        "depths where the small rank was tried on the medium model": sum(row["transfers"] is not None for row in rows),
        "depths where the small rank passes on the medium model": sum(row["transfers"] is True for row in rows),
        "depths with the same smallest k": sum(
            row["small_k"] is not None and row["small_k"] == row["medium_k"] for row in rows
        ),
        "smallest k, small model": _listed([row["small_k"] or "none" for row in rows]),
        "smallest k, medium model": _listed([row["medium_k"] or "none" for row in rows]),
        "smallest k/d, small model": _shares([row["small_k_over_d"] for row in rows]),
        "smallest k/d, medium model": _shares([row["medium_k_over_d"] for row in rows]),
    }


def _shares(values: Sequence[float | None]) -> str:
    return _listed(["none" if value is None else f"{value:.2f}" for value in values])


def _shown(value: object) -> str:
    return fixed(value, 4) if isinstance(value, float) else EMPTY if value is None else str(value)


FINDINGS = Table(
    name="findings",
    title="Findings in numbers",
    caption="What the tables of ISS come to; the text quotes these cells and no other number.",
    section="Jacobian-Transported ISS, 16 and 18",
    group="iss",
    reads=(
        *("actions", "freeze", "corpus_convergence", "comparison", "alternatives", "summary", "fact_layers"),
        *("facts", "nulls.summary", "six_axis"),
    ),
    across=_findings,
    fields=("model", "finding", "value", "source"),
    columns=(
        label("finding", "Finding"),
        Column("Value", lambda row: _shown(row["value"])),
        label("source", "Table"),
    ),
)

TABLES = (FINDINGS,)
