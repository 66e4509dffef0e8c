"""Stage D: official ISS on validated layers and Raw-ISS beside it, from the frozen estimators (source document, 10, 11)."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.files import sha256_json, write_json, write_json_lines
from sparse_control.iss.benchmark import check_separation, load_queries
from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.jacobian.store import load_factors
from sparse_control.models import load_model
from sparse_control.receipt import Receipt
from sparse_control.settings import Settings
from sparse_control.stages.c_freeze import load_manifest
from sparse_control.stages.calibration import Labels, calibration_queries
from sparse_control.stages.states import query_states, save_tensors
from sparse_control.stages.tree import Tree, stages_code_sha256

OFFICIAL, RAW = "ISS", "Raw-ISS"


def run(*, corpus: Path, root: Path, settings: Settings) -> Receipt:
    """Measure the benchmark once, with nothing left to choose.

    Raises:
        InputError: no freeze manifest, anything it lists changed, other settings than the frozen ones, or
            overlapping resources (the message holds the offending ids).
    """
    torch.set_num_threads(settings.threads)
    windows = load_corpus(corpus)
    lm = load_model(settings.model, dtype=settings.dtype)
    tree = Tree(root, lm.name)
    manifest = load_manifest(tree)
    if manifest["settings"] != settings.model_dump():
        raise InputError(f"{tree.manifest}: frozen with other settings than params.yaml has now; freeze again")
    if manifest["corpus_sha256"] != windows.sha256:
        raise InputError(f"{corpus}: is not the corpus of the freeze manifest; build it again (corpus build)")

    queries = load_queries(
        "benchmark",
        relations=settings.iss.benchmark_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=settings.iss.families,
        templates=settings.iss.templates,
    )
    check_separation(windows.texts, calibration_queries(settings), queries, articles=windows.articles)
    labels = Labels.of(queries)
    states = query_states(lm, queries, settings.iss.layers, "benchmark states")

    tables, per_layer, sweep, reduced = [], [], [], {}
    for layer in settings.iss.layers:
        raw = states.states[layer].double()
        validated = manifest["layers"][str(layer)]["status"] == "validated"
        lam_rel = manifest["lam_rel"][str(layer)]
        transported = None
        if validated:
            factors, metadata = load_factors(tree.factors(layer))
            if (metadata["model"], metadata["layer"]) != (lm.name, layer):
                raise InputError(f"{tree.factors(layer)}: factors of {metadata['model']}, layer {metadata['layer']}")
            transported = factors.reduce(raw)
            reduced[str(layer)] = transported
            tables.append(_layer_table(labels, transported, lam_rel["iss"], lm.width, layer, OFFICIAL))
        tables.append(_layer_table(labels, raw, lam_rel["raw"], lm.width, layer, RAW))
        per_layer.append(
            {
                "layer": layer,
                "status": manifest["layers"][str(layer)]["status"],
                "iss": _mean(tables[-2].iss) if validated else None,
                "raw_iss": _mean(tables[-1].iss),
                "raw_iss_matched_lam": _mean(labels.iss(raw, lam_rel=lam_rel["iss"], width=lm.width).iss),
                "lam_rel_iss": lam_rel["iss"],
                "lam_rel_raw": lam_rel["raw"],
            }
        )
        for value in settings.iss.lam_rel_sweep:
            transported_iss = (
                _mean(labels.iss(transported, lam_rel=value, width=lm.width).iss) if validated else None
            )
            raw_iss = _mean(labels.iss(raw, lam_rel=value, width=lm.width).iss)
            sweep.append({"layer": layer, "lam_rel": value, "iss": transported_iss, "raw_iss": raw_iss})

    every = pd.concat(tables, ignore_index=True)
    per_fact = _per_fact(every)
    official, raw_summary = (_summary(per_fact[per_fact.metric == metric], settings) for metric in (OFFICIAL, RAW))
    if raw_summary is None:
        raise InputError(f"{tree.base}: no fact of the benchmark has a defined Raw-ISS; look at the model's states")

    if reduced:
        save_tensors(tree.states("benchmark"), reduced)
    write_json_lines(tree.result("iss_per_fact_layer.jsonl"), _rows(tree.model, every))
    write_json_lines(tree.result("iss_per_fact.jsonl"), _rows(tree.model, per_fact))

    window = settings.iss.layers
    status = manifest["layers"]
    provenance = {
        "model": lm.provenance,
        "params_sha256": sha256_json(settings.model_dump()),
        "corpus_sha256": windows.sha256,
        "code_sha256": stages_code_sha256(),
        "threads": settings.threads,
    }
    write_json(
        tree.result("iss_model_summary.json"),
        {
            "model": tree.model,
            "window": window,
            "validated_layers": [layer for layer in window if status[str(layer)]["status"] == "validated"],
            "unresolved_layers": [layer for layer in window if status[str(layer)]["status"] == "unresolved"],
            "lam_rel": manifest["lam_rel"],
            OFFICIAL: official,
            "per_layer": per_layer,
            "per_relation": _per_relation(per_fact),
            "sweep": sweep,
            "answer_accuracy": _accuracy(labels, states.answered),
            "provenance": provenance,
        },
    )
    write_json(
        tree.result("raw_iss_ablation.json"),
        {
            "model": tree.model,
            "per_layer": [{"layer": row["layer"], "raw_iss": row["raw_iss"]} for row in per_layer],
            **raw_summary,
            "provenance": provenance,
        },
    )
    names = ["iss_per_fact_layer.jsonl", "iss_per_fact.jsonl", "iss_model_summary.json", "raw_iss_ablation.json"]
    written = [tree.result(name) for name in names]
    return Receipt.of(root, [*written, tree.states("benchmark")] if reduced else written)


def _layer_table(labels: Labels, z, lam_rel: float, width: int, layer: int, metric: str) -> pd.DataFrame:
    return labels.iss(z, lam_rel=lam_rel, width=width).assign(layer=layer, metric=metric)


def _per_fact(every: pd.DataFrame) -> pd.DataFrame:
    """Mean over the layer window (10.6); a fact undefined in any layer of it is undefined."""
    rows = []
    for (metric, fact), group in every.groupby(["metric", "fact"], sort=False):
        reasons = [reason for reason in group.reason if reason is not None]
        rows.append(
            {
                "fact": fact,
                "relation": group.relation.iloc[0],
                "metric": metric,
                "iss": np.nan if reasons else float(group.iss.mean()),
                "n_layers": len(group),
                "reason": reasons[0] if reasons else None,
            }
        )
    columns = ["fact", "relation", "metric", "iss", "n_layers", "reason"]
    return pd.DataFrame(rows, columns=columns).astype({"reason": object})


def _summary(per_fact: pd.DataFrame, settings: Settings) -> dict | None:
    """Mean over the fact set and its relation bootstrap; None where no layer is validated."""
    defined = per_fact[per_fact.iss.notna()]
    if defined.empty:
        return None
    interval = relation_bootstrap(
        defined.iss,
        list(defined.relation),
        n_resamples=settings.iss.bootstrap_resamples,
        seed=settings.iss.bootstrap_seed,
    )
    return {
        "mean": interval["mean"],
        "percentile": list(interval["percentile"]),
        "bca": list(interval["bca"]),
        "n_facts": len(defined),
        "n_relations": interval["n_relations"],
    }


def _per_relation(per_fact: pd.DataFrame) -> list[dict]:
    rows = []
    for relation, group in per_fact.groupby("relation", sort=False):
        official, raw = (group[group.metric == metric] for metric in (OFFICIAL, RAW))
        rows.append(
            {
                "relation": relation,
                "iss": _mean(official.iss),
                "raw_iss": _mean(raw.iss),
                "n_facts": int(raw.iss.notna().sum()),
            }
        )
    return rows


def _accuracy(labels: Labels, answered: np.ndarray) -> dict:
    """Share of prompts whose first answer token the model gets right, overall and by relation and family."""
    table = pd.DataFrame({"relation": labels.relations, "family": labels.families, "answered": answered})
    return {
        "overall": float(table.answered.mean()),
        "per_relation": {name: float(share) for name, share in table.groupby("relation", sort=False).answered.mean().items()},
        "per_family": {name: float(share) for name, share in table.groupby("family", sort=False).answered.mean().items()},
    }


def _mean(values: Iterable[float]) -> float | None:
    """Mean over the facts that are defined; None where none is."""
    values = np.asarray(values, dtype=np.float64)
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _rows(model: str, table: pd.DataFrame) -> list[dict]:
    """Records of a table, NaN as null."""
    return [
        {"model": model} | {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in row.items()}
        for row in table.to_dict(orient="records")
    ]
