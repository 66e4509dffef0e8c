"""Made-up files of a complete `jacobian_iss/`, consistent with each other, for tests alone."""

import statistics

import numpy as np

from sparse_control.files import sha256_json
from sparse_control.iss.uncertainty import relation_bootstrap

LAYERS = {2: "validated", 5: "validated", 8: "unresolved"}
REPORTING = {2: "preregistered seed", 5: "mean of seeds"}
DEVIATION = {2: 0.0005, 5: 0.002, 8: 0.001}  # of ISS over sketch seeds, at the last rung
RELATIONS = ("capital", "language", "continent")
SEEDS = [0, 1, 2]
SWEEP = {1e-4: -0.4, 1e-2: -0.2, 1.0: 0.2}  # lam_rel -> how far ISS is from that at the frozen one
MATCHED = 0.45  # Raw-ISS at the frozen lam_rel of ISS
WIDTH = 256
THRESHOLDS = {
    "median_cosine": 0.99,
    "median_relative_error": 0.05,
    "iss_rank_difference": 0.01,
    "iss_seed_deviation": 0.005,
    "negligible_seed_deviation": 0.001,
    "corpus_cosine": 0.99,
    "corpus_iss_difference": 0.01,
}
SETTING = {"oversampling": 32, "power_iterations": 0, "corpus_size": 32}
FACTS = [(relation, f"{relation}/{number}") for relation in RELATIONS for number in range(3)]


def iss_files(model="toy-model", *, null="none", layers=LAYERS, rank=64, shift=0.0):
    """Relative path below jacobian_iss/ -> a JSON value, or a list of rows for JSON lines.

    With `shift` ISS is other than its S+ and S- give, and whatever is computed of ISS follows it.
    """
    return _validation(model, layers, rank) | _freeze(model, null, layers, rank) | _results(model, null, layers, shift)


# --- validation -----------------------------------------------------------------------------------------------------


def _validation(model, layers, rank):
    where = [{"model": model, "layer": layer} | SETTING for layer in layers]
    stability = [
        at | {"k": rank, "metric": metric, "seeds": SEEDS, "values": values, "mean": statistics.mean(values)}
        | {"sd": statistics.stdev(values)}
        for at in where
        for metric, values in (
            ("ISS", [0.4 + step * DEVIATION[at["layer"]] for step in (0, 1, 2)]),
            ("mean_cosine", [0.99, 0.991, 0.992]),
        )
    ]  # fmt: skip
    return {
        "validation/small_model_full_comparison.json": {
            "model": model,
            "corpus_size": 64,
            "rows": [_comparison(layer, seed, k) for layer in layers for k in (32, 64) for seed in SEEDS]
            + [
                _comparison(layer, 0, k) | {"probe": "rademacher", "E_vec": 3 / k} for layer in layers for k in (32, 64)
            ],
            "noise_floor": [
                {"layer": layer, "E_F": 0.01, "E_vec": 0.02, "C_vec": 0.999}
                | {"E_vec_centred": 0.03, "C_vec_centred": 0.99, "E_ISS": 0.004}
                for layer in layers
            ],
        },
        "validation/per_model_action_validation.jsonl": [
            row for layer, status in layers.items() for row in _rungs(model, layer, status, rank)
        ],
        "validation/rank_convergence.jsonl": [at | {"k": 32, "r": 64, "seed": 0, "iss": 0.396} for at in where],
        "validation/corpus_convergence.jsonl": [row for layer in layers for row in _corpus(model, layer)],
        "validation/seed_stability.jsonl": stability,
        "validation/alternatives.jsonl": [row for layer in layers for row in _alternatives(model, layer)],
        "validation/whitening.json": {"model": model, "lam_rel": _lam_rel(layers)},
    }


def _comparison(layer, seed, k):
    same = ("E_F", "E_vec_centred", "E_ISS", "svd_floor_E_F", "svd_floor_E_vec")
    return dict.fromkeys(same, 0.125) | {
        "layer": layer,
        "estimator": "qb",
        "probe": "gaussian",
        "oversampling": 32,
        "power_iterations": 0,
        "seed": seed,
        "k": k,
        "r": k + 32,
        "E_vec": 4 / k + seed / 100,
        "C_vec": 0.98,
        "C_vec_centred": 0.9,
        "rho_fact": 0.8,
    }


def _rungs(model, layer, status, rank):
    """One that fails, and a last one that passes where the layer is validated."""
    good = status == "validated"
    common = {"model": model, "layer": layer, **SETTING, "direct_action": "exact_reference", "step": "rank"}
    common |= {"iss_rank_difference": 0.004, "iss": 0.4}
    first = {
        "iss": 0.396,
        "k": rank // 2,
        "r": rank // 2 + 32,
        "median_cosine": 0.9,
        "median_relative_error": 0.4,
        "passed": False,
    }
    first |= {"reason": "median cosine 0.9 < 0.99; median relative error 0.4 > 0.05", "iss_seed_deviation": 0.001}
    last = {"k": rank, "r": rank + 32, "median_cosine": 0.995 if good else 0.95, "passed": good}
    last |= {"median_relative_error": 0.03 if good else 0.2, "iss_seed_deviation": DEVIATION[layer]}
    last |= {"reason": None if good else "median cosine 0.95 < 0.99; median relative error 0.2 > 0.05"}
    return [
        common
        | row
        | {"k_over_d": row["k"] / WIDTH, "partner_r": min(2 * row["k"] + 32, WIDTH), "chosen": row["passed"]}
        for row in (first, last)
    ]


def _corpus(model, layer):
    """n = 16 does not converge, n = 32 does, and n = 64 has nothing to be held against."""
    rows = ((16, 0.98, 0.15, 0.02), (32, 0.995, 0.08, 0.003), (64, None, None, None))
    names = ("n", "cosine_to_2n", "relative_error_to_2n", "iss_difference")
    return [
        {"model": model, "layer": layer, **dict(zip(names, row, strict=True))}
        | {"converged": row[0] == 32, "chosen": row[0] == 32}
        for row in rows
    ]


def _alternatives(model, layer):
    """svd passes at k = 64, qb_deflated at k = 32, the sketch, which has no action, nowhere."""
    rows = []
    for estimator, passing in (("svd", 64), ("qb_deflated", 32), ("output_sketch", None)):
        drawn, acts = estimator != "svd", estimator != "output_sketch"
        for k in (32, 64):
            passed = passing is not None and k >= passing
            rows.append(
                {
                    "model": model,
                    "layer": layer,
                    "estimator": estimator,
                    "probe": "gaussian" if drawn else None,
                    "power_iterations": 0 if estimator == "qb_deflated" else None,
                    "oversampling": 32 if acts else 0,
                    "seed": 0 if drawn else None,
                    "k": k,
                    "r": k + 32 if acts else k,
                    "corpus_size": 64,
                    "E_F": 0.5 if acts else None,
                    "E_vec": (2 if drawn else 1) / k if acts else None,
                    "C_vec": 0.97 if acts else None,
                    "E_vec_centred": 0.3 if acts else None,
                    "C_vec_centred": 0.9 if acts else None,
                    "median_cosine": (0.995 if passed else 0.9) if acts else None,
                    "median_relative_error": (0.04 if passed else 0.4) if acts else None,
                    "E_ISS": 0.01 if k == 64 else 0.014,
                    "rho_fact": 0.9,
                    "iss": 0.4 if k == 64 else 0.396,
                    "iss_rank_difference": 0.004,
                    "iss_seed_deviation": 0.001 if drawn else 0.0,
                    "passed": passed,
                    "reason": None if passed else "median cosine 0.9 < 0.99; median relative error 0.4 > 0.05",
                    "chosen": passed and k == passing,
                }
            )
    return rows


# --- freeze ---------------------------------------------------------------------------------------------------------


def _lam_rel(layers):
    return {str(layer): {"iss": 0.05, "raw": 0.06} for layer in layers}


def settings(model, null="none", layers=LAYERS):
    """As a freeze manifest has them, what tables read of them."""
    return {
        "model": model,
        "preset": "paper",
        "dtype": "float32",
        "null": null,
        "corpus": {"sequence_length": 128},
        "iss": {"bootstrap_resamples": 500, "bootstrap_seed": 0, "layers": list(layers)},
        "estimator": {"reference": True, "probe": "gaussian", "sketch_seeds": SEEDS},
        "validation": THRESHOLDS,
        "alternatives": {"layers": list(layers)},
    }


def _freeze(model, null, layers, rank):
    frozen = {
        str(layer): {"status": status, "step": "rank", "k": rank, **SETTING}
        | {"reporting": REPORTING[layer], "seeds": SEEDS if REPORTING[layer] == "mean of seeds" else SEEDS[:1]}
        if status == "validated"
        else {"status": status, "step": None}
        for layer, status in layers.items()
    }
    return {
        "freeze_manifest.json": {
            "schema": "freeze/1",
            "model": model,
            "settings": settings(model, null, layers),
            "corpus_sha256": "d" * 64,
            "calibration_states_sha256": "e" * 64,
            "layers": frozen,
            "lam_rel": _lam_rel(layers),
            "code_sha256": "c" * 64,
            "files": {},  # hashed once they are written
        }
    }


# --- results --------------------------------------------------------------------------------------------------------


def _results(model, null, layers, shift):
    random = np.random.default_rng(["none", "shuffled_tokens", "redrawn_weights"].index(null))
    window = [layer for layer, status in layers.items() if status == "validated"]
    by_metric = {"ISS": window, "Raw-ISS": list(layers)}
    scores = {
        (metric, layer, fact): _scores(random.random(), "ISS" == metric and REPORTING.get(layer) == "mean of seeds")
        for metric in by_metric
        for layer in layers
        for _, fact in FACTS
    }
    for score in scores.values():  # for tests alone: ISS other than S+ and S- give
        score["iss"] += shift
    values = {key: score["iss"] for key, score in scores.items()}
    fact_layers = [
        {"model": model, "layer": layer, "fact": fact, "relation": relation, "metric": metric, "reason": None}
        | scores[metric, layer, fact]
        for metric in by_metric
        for layer in by_metric[metric]
        for relation, fact in FACTS
    ]
    means = {
        (metric, fact): statistics.fmean(values[metric, layer, fact] for layer in by_metric[metric])
        for metric in by_metric
        if by_metric[metric]
        for _, fact in FACTS
    }
    facts = [
        {
            "model": model,
            "fact": fact,
            "relation": {name: relation for relation, name in FACTS}[fact],
            "metric": metric,
            "iss": value,
            "n_layers": len(by_metric[metric]),
            "reason": None,
        }
        for (metric, fact), value in means.items()
    ]
    layer_means = {
        (metric, layer): statistics.fmean(values[metric, layer, fact] for _, fact in FACTS)
        for metric in by_metric
        for layer in by_metric[metric]
    }
    provenance = {
        "model": {"name": model, "weights_sha256": "a" * 64}
        | ({"redrawn_weights": {"seed": 0, "sha256": "f" * 64}} if null == "redrawn_weights" else {}),
        "params_sha256": sha256_json(settings(model, null, layers)),
        "corpus_sha256": "d" * 64,
        "code_sha256": "c" * 64,
        "frozen_code_sha256": "c" * 64,
        "accepted_code": None,
        "threads": 2,
    }
    summary = {
        "model": model,
        "null": null,
        "window": list(layers),
        "validated_layers": window,
        "unresolved_layers": [layer for layer in layers if layer not in window],
        "lam_rel": _lam_rel(layers),
        "ISS": _overall(means, "ISS"),
        "per_layer": [_layer(layer, status, layer_means) for layer, status in layers.items()],
        "per_relation": [
            {"relation": relation, "n_facts": 3}
            | {
                field: _relation_mean(means, metric, relation)
                for field, metric in (("iss", "ISS"), ("raw_iss", "Raw-ISS"))
            }
            for relation in RELATIONS
        ],
        "sweep": [
            {
                "layer": layer,
                "lam_rel": lam,
                "iss": layer_means["ISS", layer] + step if layer in window else None,
                "raw_iss": layer_means["Raw-ISS", layer] + 2 * step,
            }
            for layer in layers
            for lam, step in SWEEP.items()
        ],
        "answer_accuracy": {
            "overall": 0.5,
            "per_relation": {"capital": 0.75, "language": 0.5, "continent": 0.25},
            "per_family": {"cloze": 0.25, "question": 0.75},
        },
        "provenance": provenance,
    }
    raw_layers = [{"layer": layer, "raw_iss": layer_means["Raw-ISS", layer]} for layer in layers]
    return {
        "iss_per_fact_layer.jsonl": fact_layers,
        "iss_per_fact.jsonl": facts,
        "iss_model_summary.json": summary,
        "raw_iss_ablation.json": {"model": model, "per_layer": raw_layers, "provenance": provenance}
        | _overall(means, "Raw-ISS"),
    }


def _scores(draw, of_seeds):
    """S+, S- and ISS of one fact; as the mean over sketch seeds where it is reported."""
    seeds = [_score(draw, step) | {"seed": seed} for seed, step in zip(SEEDS, (-0.02, 0.0, 0.03))]
    if not of_seeds:
        return _score(draw, 0.0)
    return {name: statistics.fmean(seed[name] for seed in seeds) for name in ("s_plus", "s_minus", "iss")} | {
        "seeds": seeds
    }


def _score(draw, step):
    s_plus, s_minus = 0.1 + 0.8 * draw, 0.1 + step
    return {"s_plus": s_plus, "s_minus": s_minus, "iss": (s_plus - s_minus) / (1 - s_minus + 1e-8)}


def _overall(means, metric):
    if (metric, FACTS[0][1]) not in means:
        return None
    values = [means[metric, fact] for _, fact in FACTS]
    found = relation_bootstrap(values, [relation for relation, _ in FACTS], 500)
    return found | {"percentile": list(found["percentile"]), "bca": list(found["bca"]), "n_facts": len(FACTS)}


def _relation_mean(means, metric, relation):
    values = [means.get((metric, fact)) for name, fact in FACTS if name == relation]
    return None if None in values else statistics.fmean(values)


def _layer(layer, status, layer_means):
    good = status == "validated"
    return {
        "layer": layer,
        "status": status,
        "iss": layer_means.get(("ISS", layer)),
        "raw_iss": layer_means["Raw-ISS", layer],
        "raw_iss_matched_lam": MATCHED,
        "lam_rel_iss": 0.05 if good else None,
        "lam_rel_raw": 0.06,
        "iss_calibration_sigma": 0.35 if good else None,
        "raw_iss_calibration_sigma": 0.3,
        "reporting": REPORTING[layer] if good else None,
    }
