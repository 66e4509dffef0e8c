"""Stage D: official ISS on validated layers and Raw-ISS, from the frozen estimators alone (source document, 10, 11)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from sparse_control.files import sha256_json, write_json, write_json_lines
from sparse_control.iss.benchmark import check_separation
from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.receipt import Receipt
from sparse_control.records.benchmark_states import RowLabels, header, layer_file, layer_files, tensor_names
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.paths import RESULTS, ModelPaths, save_stages_closure, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.benchmark_scores import OFFICIAL, RAW, LayerScore, mean_or_none, score_layer
from sparse_control.stages.c_freeze import load_freeze, load_reported_factors
from sparse_control.stages.calibration import Labels, load_calibration
from sparse_control.stages.inputs import Inputs, open_inputs
from sparse_control.stages.layer_study import undefined_as_null
from sparse_control.stages.queries import benchmark_queries, calibration_queries
from sparse_control.stages.states import query_states, save_tensors, states_checkpoint

NAME = "official"
NO_RAW = {"mean": None, "percentile": [None, None], "bca": [None, None], "n_facts": 0, "n_relations": 0}


def run(
    *, corpus: Path, root: Path, settings: Settings, accept_code: str | None = None, keep_unfinished: bool = False
) -> Receipt:
    """Measure the benchmark once, with nothing left to choose.

    Args:
        accept_code: why a freeze made by other code is good enough, in words; it is kept in the summary.
        keep_unfinished: leave what was kept for a run that goes on, for a caller that removes it (`ModelPaths.finish`).

    Raises:
        InputError: no freeze manifest, anything in it that is not what stage C wrote or not what was validated,
            anything it names changed, other settings than the frozen ones, other code without a reason, or overlapping
            resources (the message holds the offending ids).
    """
    inputs = open_inputs(corpus, root, settings)
    paths, settings = inputs.paths, inputs.settings
    freeze = load_freeze(paths, settings, inputs.windows.sha256, accept_code)
    factors = load_reported_factors(paths, freeze, inputs.lm.provenance)

    queries = benchmark_queries(settings)
    check_separation(inputs.windows.texts, calibration_queries(settings), queries, articles=inputs.windows.articles)
    labels, window = Labels.of(queries), settings.iss.layers
    calibration = load_calibration(paths, settings, window, inputs.lm.width)
    checkpoint = states_checkpoint(inputs, NAME, "benchmark_states", queries, window)
    states = query_states(inputs.lm, queries, window, "benchmark states", checkpoint)

    scores = [
        score_layer(
            layer,
            states.states[layer].double(),
            factors[layer],
            labels,
            calibration,
            freeze,
            settings.iss.lam_rel_sweep,
        )
        for layer in tqdm(window, desc="official ISS", unit="layer")
    ]
    written = _save_results(inputs, freeze, scores, _accuracy(labels, states.answered), accept_code)
    written += _save_states(paths, scores, labels, inputs.lm.width)
    save_stages_closure(root)
    if not keep_unfinished:
        paths.finish(NAME)
    return Receipt.of(root, written)


# --- means and files ------------------------------------------------------------------------------------------------


def _save_results(
    inputs: Inputs,
    freeze: FreezeManifest,
    scores: list[LayerScore],
    accuracy: dict[str, Any],
    accept_code: str | None,
) -> list[Path]:
    """Write the four result files."""
    paths, settings = inputs.paths, inputs.settings
    every = pd.concat([table for score in scores for table in score.tables], ignore_index=True)
    per_fact = _per_fact(every)
    official, raw = (_summary(per_fact[per_fact.metric == metric], settings) for metric in (OFFICIAL, RAW))
    raw = raw or NO_RAW | {"reason": per_fact[per_fact.metric == RAW].reason.iloc[0]}
    same_code = freeze.code_sha256 == stages_code_sha256()
    provenance = {
        "model": inputs.lm.provenance,
        "params_sha256": sha256_json(settings.model_dump()),
        "corpus_sha256": inputs.windows.sha256,
        **({} if settings.facts is None else {"facts": settings.facts.model_dump()}),
        "code_sha256": stages_code_sha256(),
        "frozen_code_sha256": freeze.code_sha256,
        "accepted_code": None if same_code else accept_code,
        "threads": settings.threads,
    }
    by_status = {
        status: [score.layer for score in scores if freeze.layers[str(score.layer)].status == status]
        for status in ("validated", "unresolved")
    }
    write_json_lines(paths.iss_file("fact_layers"), _rows(paths.model, every))
    write_json_lines(paths.iss_file("facts"), _rows(paths.model, per_fact))
    write_json(
        paths.iss_file("summary"),
        {
            "model": paths.model,
            "null": settings.null,
            "window": settings.iss.layers,
            "validated_layers": by_status["validated"],
            "unresolved_layers": by_status["unresolved"],
            "lam_rel": {layer: penalty.model_dump() for layer, penalty in freeze.lam_rel.items()},
            OFFICIAL: official,
            "per_layer": [score.row for score in scores],
            "per_relation": _per_relation(per_fact),
            "sweep": [row for score in scores for row in score.sweep],
            "answer_accuracy": accuracy,
            "provenance": provenance,
        },
    )
    per_layer = [{"layer": score.layer, "raw_iss": score.row["raw_iss"]} for score in scores]
    write_json(paths.iss_file("raw"), {"model": paths.model, "per_layer": per_layer, **raw, "provenance": provenance})
    return [*map(paths.iss_file, RESULTS)]


def _save_states(paths: ModelPaths, scores: Sequence[LayerScore], labels: Labels, width: int) -> list[Path]:
    """Write the transported states of every validated layer, and remove those of layers that are no longer."""
    rows = header(RowLabels(facts=labels.facts, relations=labels.relations, families=labels.families, width=width))
    written = {score.layer: layer_file(paths, score.layer) for score in scores if score.transported}
    for score in scores:
        if score.layer in written:
            names = tensor_names(len(score.transported))
            save_tensors(written[score.layer], dict(zip(names, score.transported, strict=True)), rows)
    for layer, path in layer_files(paths).items():
        if layer not in written:
            path.unlink()
    return list(written.values())


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


def _summary(per_fact: pd.DataFrame, settings: Settings) -> dict[str, Any] | None:
    """Mean over the fact set (10.6) and its relation bootstrap (18); None where no fact is defined."""
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


def _per_relation(per_fact: pd.DataFrame) -> list[dict[str, Any]]:
    rows = []
    for relation, group in per_fact.groupby("relation", sort=False):
        official, raw = (group[group.metric == metric] for metric in (OFFICIAL, RAW))
        rows.append(
            {
                "relation": relation,
                "iss": mean_or_none(official.iss),
                "raw_iss": mean_or_none(raw.iss),
                "n_facts": int(raw.iss.notna().sum()),
            }
        )
    return rows


def _accuracy(labels: Labels, answered: np.ndarray) -> dict[str, Any]:
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


def _rows(model: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Records of a table, NaN as null; without `seeds` where there are none."""
    return [
        undefined_as_null({"model": model} | {key: value for key, value in row.items() if key != "seeds" or value})
        for row in table.to_dict(orient="records")
    ]
