"""Stage D: official ISS on validated layers and Raw-ISS beside it, from the frozen estimators (source document, 10, 11)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from tqdm import tqdm

from sparse_control.errors import InputError
from sparse_control.files import sha256_file, sha256_json, write_json, write_json_lines
from sparse_control.iss.benchmark import check_separation, load_queries
from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.jacobian.qb import Factors
from sparse_control.jacobian.store import load_factors
from sparse_control.receipt import Receipt
from sparse_control.records.factors import OF_MODEL
from sparse_control.records.paths import save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.c_freeze import factor_folders, load_manifest
from sparse_control.stages.calibration import Calibration, Labels, calibration_queries, load_calibration
from sparse_control.stages.checkpoint import Checkpoint
from sparse_control.stages.inputs import Inputs, open_inputs
from sparse_control.stages.states import query_states, save_tensors

OFFICIAL, RAW = "ISS", "Raw-ISS"


NAME = "official"


def run(
    *, corpus: Path, root: Path, settings: Settings, accept_code: str | None = None, keep_unfinished: bool = False
) -> Receipt:
    """Measure the benchmark once, with nothing left to choose.

    Args:
        accept_code: why a freeze made by other code is good enough, in words; it is kept in the summary.
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: no freeze manifest, anything it lists changed, another model or settings than the frozen ones,
            other code without a reason, or overlapping resources (the message holds the offending ids).
    """
    inputs = open_inputs(corpus, root, settings)
    lm, windows, paths = inputs.lm, inputs.windows, inputs.paths
    manifest = load_manifest(paths, accept_code)
    relevant = settings.model_dump(exclude={"protocol", "preset"})  # those of the six axes, and a name
    if {name: manifest["settings"].get(name) for name in relevant} != relevant:
        raise InputError(f"{paths.manifest}: frozen with other settings than params.yaml has now; freeze again")
    if manifest["identity"] != lm.identity.sha256:
        raise InputError(f"{paths.manifest}: identity: is not that of {lm.name} as it is; run stages A to C again")
    if manifest["corpus_sha256"] != windows.sha256:
        raise InputError(f"{corpus}: is not the corpus of the freeze manifest; build it again (corpus build)")
    if manifest["calibration_states_sha256"] != sha256_file(paths.states("calibration")):
        raise InputError(f"{paths.states('calibration')}: changed after the freeze; run stages A to C again")

    queries = load_queries(
        "benchmark",
        relations=settings.iss.benchmark_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=settings.iss.families,
        templates=settings.iss.templates,
    )
    check_separation(windows.texts, calibration_queries(settings), queries, articles=windows.articles)
    labels, calibration = Labels.of(queries), load_calibration(paths, settings)
    checkpoint = Checkpoint(
        paths.unfinished(NAME) / "benchmark_states", inputs.key, settings.estimator.checkpoint_seconds
    )
    states = query_states(lm, queries, settings.iss.layers, "benchmark states", checkpoint)

    tables, per_layer, sweep, reduced = [], [], [], {}
    for layer in tqdm(settings.iss.layers, desc="official ISS", unit="layer"):
        raw, lam_rel = states.states[layer].double(), manifest["lam_rel"][str(layer)]
        chosen = manifest["layers"][str(layer)]
        factors = _frozen_factors(inputs, layer, chosen)
        transported = [one.reduce(raw) for one in factors]
        scored = Transported(labels, calibration, layer, lm.width)
        if factors:
            reduced |= {f"{layer}" if not index else f"{layer}.{index}": z for index, z in enumerate(transported)}
            tables.append(scored.table(transported, lam_rel["iss"]).assign(layer=layer, metric=OFFICIAL))
        tables.append(scored.table([raw], lam_rel["raw"]).assign(layer=layer, metric=RAW))
        per_layer.append(
            {
                "layer": layer,
                "status": chosen["status"],
                "reporting": chosen.get("reporting"),
                "iss": _mean(tables[-2].iss) if factors else None,
                "raw_iss": _mean(tables[-1].iss),
                "raw_iss_matched_lam": _mean(scored.table([raw], lam_rel["iss"]).iss),
                "iss_calibration_sigma": scored.with_calibration_sigma(factors, transported, lam_rel["iss"]),
                "raw_iss_calibration_sigma": scored.with_calibration_sigma([None], [raw], lam_rel["raw"]),
                "lam_rel_iss": lam_rel["iss"],
                "lam_rel_raw": lam_rel["raw"],
            }
        )
        for value in settings.iss.lam_rel_sweep:
            iss = _mean(scored.table(transported, value).iss) if factors else None
            sweep.append(
                {"layer": layer, "lam_rel": value, "iss": iss, "raw_iss": _mean(scored.table([raw], value).iss)}
            )

    every = pd.concat(tables, ignore_index=True)
    per_fact = _per_fact(every)
    official, raw_summary = (_summary(per_fact[per_fact.metric == metric], settings) for metric in (OFFICIAL, RAW))
    if raw_summary is None:
        raise InputError(f"{paths.base}: no fact of the benchmark has a defined Raw-ISS; look at the model's states")

    if reduced:
        save_tensors(paths.states("benchmark"), reduced)
    write_json_lines(paths.result("iss_per_fact_layer.jsonl"), _rows(paths.model, every))
    write_json_lines(paths.result("iss_per_fact.jsonl"), _rows(paths.model, per_fact))

    window = settings.iss.layers
    status = manifest["layers"]
    provenance = {
        "model": lm.provenance,
        "params_sha256": sha256_json(settings.model_dump()),
        "corpus_sha256": windows.sha256,
        "code_sha256": stages_code_sha256(),
        "frozen_code_sha256": manifest["code_sha256"],
        "accepted_code": accept_code if manifest["code_sha256"] != stages_code_sha256() else None,
        "threads": settings.threads,
    }
    write_json(
        paths.result("iss_model_summary.json"),
        {
            "model": paths.model,
            "null": settings.null,
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
        paths.result("raw_iss_ablation.json"),
        {
            "model": paths.model,
            "per_layer": [{"layer": row["layer"], "raw_iss": row["raw_iss"]} for row in per_layer],
            **raw_summary,
            "provenance": provenance,
        },
    )
    names = ["iss_per_fact_layer.jsonl", "iss_per_fact.jsonl", "iss_model_summary.json", "raw_iss_ablation.json"]
    written = [paths.result(name) for name in names]
    save_stages_closure(root)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, [*written, paths.states("benchmark")] if reduced else written)


def _frozen_factors(inputs: Inputs, layer: int, frozen: dict[str, Any]) -> list[Factors]:
    """The factors of every reported sketch seed of a validated layer; none of an unresolved one.

    Raises:
        InputError: factors of another model, layer, corpus or setting than the freeze manifest has.
    """
    if frozen["status"] != "validated":
        return []
    key, loaded = inputs.key, []
    for folder, seed in zip(factor_folders(inputs.paths, layer, frozen), frozen["seeds"], strict=True):
        factors, metadata = load_factors(folder)
        expected = {
            "model": key["model"],
            "layer": layer,
            "rank": frozen["k"],
            "oversampling": frozen["oversampling"],
            "power_iterations": frozen["power_iterations"],
            "random_seed": seed,
            "corpus_sha256": key["corpus"],
            "dtype": key["dtype"],
            "null": key["null"],
        } | {name: inputs.lm.provenance[name] for name in OF_MODEL}
        for name, value in expected.items():
            if metadata.get(name) != value:
                raise InputError(
                    f"{folder / 'metadata.json'}: {name}: factors were made with {metadata.get(name)}, now {value}; "
                    "run stages A to C again (run official-iss)"
                )
        loaded.append(factors)
    return loaded


@dataclass(frozen=True)
class Transported:
    """ISS of the benchmark rows at one layer, in any coordinates; several of them are averaged fact by fact."""

    labels: Labels
    calibration: Calibration
    layer: int
    width: int

    def table(self, coordinates: Sequence[Tensor], lam_rel: float) -> pd.DataFrame:
        """Per-fact table; with more than one sketch seed the mean of their numbers (source document, 9)."""
        return _mean_table([self.labels.iss(z, lam_rel=lam_rel, width=self.width) for z in coordinates])

    def with_calibration_sigma(
        self, factors: Sequence[Factors | None], coordinates: Sequence[Tensor], lam_rel: float
    ) -> float | None:
        """The mean where Sigma comes from the calibration rows instead of the evaluated ones; a check of robustness."""
        rows = self.calibration.states[self.layer]
        tables = []
        for one, z in zip(factors, coordinates, strict=True):
            residuals = self.calibration.labels.residuals(rows if one is None else one.reduce(rows))
            tables.append(self.labels.iss(z, lam_rel=lam_rel, width=self.width, covariance_rows=residuals))
        return _mean(_mean_table(tables).iss) if tables else None


def _mean_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    first, *others = tables
    if not others:
        return first
    numbers = ["s_plus", "s_minus", "iss"]  # a fact that is undefined is so for every seed
    return first.assign(**{name: np.mean([table[name] for table in tables], axis=0) for name in numbers})


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
        "per_relation": {
            name: float(share) for name, share in table.groupby("relation", sort=False).answered.mean().items()
        },
        "per_family": {
            name: float(share) for name, share in table.groupby("family", sort=False).answered.mean().items()
        },
    }


def _mean(values: Iterable[float]) -> float | None:
    """Mean over the facts that are defined; None where none is."""
    values = np.asarray(values, dtype=np.float64)
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _rows(model: str, table: pd.DataFrame) -> list[dict]:
    """Records of a table, NaN as null."""
    return [
        {"model": model}
        | {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in row.items()}
        for row in table.to_dict(orient="records")
    ]
