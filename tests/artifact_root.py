"""Builds a complete small root of made-up records, for tests alone."""

import json
from pathlib import Path

import numpy as np

from sparse_control.artifact import manifest
from sparse_control.artifact.render import reproduce
from sparse_control.files import sha256_json
from sparse_control.iss.uncertainty import relation_bootstrap

MODEL = "toy-model"
DOSES = [-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2]
PAIRS = 4
LAYERS = {2: "validated", 5: "validated", 8: "unresolved"}
RELATIONS = ("capital", "language", "continent")


def measurement(task="ioi", selector="coverage_driver", condition="P", seed=0, *, model=MODEL, supported=True):
    """One record; with P the patch goes most of the way, with F hardly anywhere."""
    random = np.random.default_rng([seed, len(task), len(selector), condition == "P"])
    count = {"built": 12, "kept": 12 if supported else 1}
    record = {
        "schema": "six-axis/1",
        "model": model,
        "task": task,
        "selector": selector,
        "condition": condition,
        "seed": seed,
        "supported": supported,
        "gate": {"minimum_gap": 1.0, "fit": count, "evaluate": count, "reuse": count},
    }
    sections = (
        "support",
        "strengths",
        "selection",
        "effects",
        "norms",
        "evaluate",
        "reversal",
        "feedback",
        "preservation",
        "reuse",
    )
    record |= dict.fromkeys(sections)
    if supported:
        record |= _sections(random, 0.8 if condition == "P" else 0.05)
    record["provenance"] = {
        "model": {"name": model, "weights_sha256": "a" * 64},
        "params_sha256": "b" * 64,
        "code_sha256": "c" * 64,
        "record_sha256": None,
        "seed": seed,
        "threads": 2,
    }
    return record


def _sections(random, reach):
    source = -3 + random.normal(size=PAIRS)
    target = 3 + random.normal(size=PAIRS)
    noise = lambda: 0.1 * random.normal(size=PAIRS)  # noqa: E731
    ends = [
        {
            "target": float(goal),
            "initial_margin": -3.0,
            "terminal_margin": float(goal + 0.2),
            "terminal_dose": 0.7,
            "readouts": 2,
            "stop_reason": "within tolerance",
            "clipped": False,
            "trajectory": [[0.0, -3.0], [0.7, float(goal + 0.2)]],
        }
        for goal in np.linspace(-2.0, 3.0, 4)
    ]
    return {
        "support": ["L03.head.1@-1", "L05.mlp@-1"],
        "strengths": [1.0, 0.5],
        "selection": {"path": [0.5, 0.8], "stop_reason": "k", "predicted_additivity": 0.9, "measured_additivity": 0.8},
        "effects": {"kind": "first_order", "check_sites": 4, "check_pearson": 0.97},
        "norms": {"direction": [1.5, 2.5], "activation": [10.0, 20.0]},
        "evaluate": {
            "pairs": [f"pair-{i}" for i in range(PAIRS)],
            "source": source.tolist(),
            "target": target.tolist(),
            "doses": DOSES,
            "patched": [(source + reach * dose * (target - source)).tolist() for dose in DOSES],
        },
        "reversal": {"reversed": (target - reach * (target - source) + noise()).tolist()},
        "feedback": {"gain": 0.2, "tolerance": 0.3, "endpoints": ends},
        "preservation": {"prompts": [f"prompt-{i}" for i in range(6)], "kl": (1e-3 * random.random(6)).tolist()},
        "reuse": {
            "pairs": [f"new-{i}" for i in range(PAIRS)],
            "source": source.tolist(),
            "target": target.tolist(),
            "refit": (source + 0.9 * (target - source)).tolist(),
            "frozen": (source + 0.1 * (target - source) + noise()).tolist(),
            "refit_strengths": [1.1, 0.4],
        },
    }


def iss_files(model=MODEL):
    """Relative path below jacobian_iss/ -> a JSON value, or a list of rows for JSON lines."""
    random = np.random.default_rng(0)
    facts = [(relation, f"{relation}/{number}") for relation in RELATIONS for number in range(3)]
    window = [layer for layer, status in LAYERS.items() if status == "validated"]
    values = {
        (metric, layer, fact): float(random.random())
        for metric in ("ISS", "Raw-ISS")
        for layer in LAYERS
        for _, fact in facts
    }
    per_layer = [
        {
            "model": model,
            "layer": layer,
            "fact": fact,
            "relation": relation,
            "metric": metric,
            "s_plus": 0.5,
            "s_minus": 0.1,
            "iss": values[metric, layer, fact],
            "reason": None,
        }
        for metric in ("ISS", "Raw-ISS")
        for layer in LAYERS
        if metric == "Raw-ISS" or layer in window
        for relation, fact in facts
    ]
    layers = {"ISS": window, "Raw-ISS": list(LAYERS)}
    means = {
        (metric, fact): sum(values[metric, layer, fact] for layer in layers[metric]) / len(layers[metric])
        for metric in layers
        for _, fact in facts
    }
    per_fact = [
        {
            "model": model,
            "fact": fact,
            "relation": relation,
            "metric": metric,
            "iss": means[metric, fact],
            "n_layers": len(layers[metric]),
            "reason": None,
        }
        for metric in ("ISS", "Raw-ISS")
        for relation, fact in facts
    ]
    overall = {}
    for metric in layers:
        found = relation_bootstrap([means[metric, fact] for _, fact in facts], [relation for relation, _ in facts], 500)
        overall[metric] = found | {
            "percentile": list(found["percentile"]),
            "bca": list(found["bca"]),
            "n_facts": len(facts),
        }
    rung = {
        "model": model,
        "k_over_d": 0.25,
        "r": 96,
        "oversampling": 32,
        "power_iterations": 0,
        "corpus_size": 32,
        "direct_action": "exact_reference",
        "iss_rank_difference": 0.004,
        "iss_seed_deviation": 0.001,
        "iss": 0.4,
        "partner_r": 160,
        "step": "rank",
    }
    actions = []
    for layer, status in LAYERS.items():
        actions.append(
            rung
            | {
                "layer": layer,
                "k": 32,
                "median_cosine": 0.9,
                "median_relative_error": 0.4,
                "passed": False,
                "chosen": False,
                "reason": "median_cosine",
            }
        )
        good = status == "validated"
        actions.append(
            rung
            | {
                "layer": layer,
                "k": 64,
                "median_cosine": 0.995 if good else 0.95,
                "median_relative_error": 0.03 if good else 0.2,
                "passed": good,
                "chosen": good,
                "reason": None if good else "median_cosine, median_relative_error",
            }
        )
    errors = dict.fromkeys(("E_F", "E_vec", "E_vec_centred", "E_ISS", "svd_floor_E_F", "svd_floor_E_vec"), 0.125)
    comparison = [
        {
            "layer": layer,
            "estimator": "qb",
            "probe": "gaussian",
            "oversampling": 32,
            "power_iterations": 0,
            "seed": seed,
            "k": k,
            "r": k + 32,
            "C_vec": 0.98,
            "C_vec_centred": 0.9,
            "rho_fact": 0.8,
        }
        | errors
        | {"E_vec": 4 / k + seed / 100}
        for layer in LAYERS
        for k in (32, 64)
        for seed in (0, 1, 2)
    ]
    settings = {"model": model, "iss": {"bootstrap_resamples": 500, "bootstrap_seed": 0}}
    lam_rel = {str(layer): {"iss": 0.05, "raw": 0.06} for layer in LAYERS}
    provenance = {
        "model": {"name": model, "weights_sha256": "a" * 64},
        "params_sha256": sha256_json(settings),
        "corpus_sha256": "d" * 64,
        "code_sha256": "c" * 64,
        "threads": 2,
    }
    layer_means = {
        (metric, layer): sum(values[metric, layer, fact] for _, fact in facts) / len(facts)
        for metric in layers
        for layer in layers[metric]
    }
    raw_layers = [{"layer": layer, "raw_iss": layer_means["Raw-ISS", layer]} for layer in LAYERS]
    per_relation = [
        {"relation": name, "n_facts": 3}
        | {
            field: sum(means[metric, fact] for relation, fact in facts if relation == name) / 3
            for field, metric in (("iss", "ISS"), ("raw_iss", "Raw-ISS"))
        }
        for name in RELATIONS
    ]
    frozen = {"k": 64, "oversampling": 32, "power_iterations": 0, "corpus_size": 32, "step": "rank"}
    summary = {
        "model": model,
        "window": list(LAYERS),
        "validated_layers": window,
        "unresolved_layers": [layer for layer in LAYERS if layer not in window],
        "lam_rel": lam_rel,
        "ISS": overall["ISS"],
        "per_layer": [
            {
                "layer": layer,
                "status": status,
                "iss": layer_means.get(("ISS", layer)),
                "raw_iss": layer_means["Raw-ISS", layer],
                "raw_iss_matched_lam": 0.45,
                "lam_rel_iss": 0.05 if status == "validated" else None,
                "lam_rel_raw": 0.06,
            }
            for layer, status in LAYERS.items()
        ],
        "per_relation": per_relation,
        "sweep": [
            {"layer": layer, "lam_rel": lam, "iss": 0.2 if layer in window else None, "raw_iss": 0.1}
            for layer in LAYERS
            for lam in (1e-4, 1e-2, 1.0)
        ],
        "answer_accuracy": {},
        "provenance": provenance,
    }
    return {
        "validation/small_model_full_comparison.json": {
            "model": model,
            "corpus_size": 32,
            "rows": comparison,
            "noise_floor": [{"layer": layer, "E_F": 0.01, "E_vec": 0.02, "C_vec": 0.999} for layer in LAYERS],
        },
        "validation/per_model_action_validation.jsonl": actions,
        "validation/rank_convergence.jsonl": [
            {
                "model": model,
                "layer": 2,
                "k": 32,
                "r": 64,
                "oversampling": 32,
                "power_iterations": 0,
                "seed": 0,
                "iss": 0.4,
            }
        ],
        "validation/corpus_convergence.jsonl": [
            {"model": model, "layer": layer, "n": 16, "cosine_to_2n": 0.99, "iss_difference": 0.01} for layer in LAYERS
        ],
        "validation/seed_stability.jsonl": [
            {
                "model": model,
                "layer": layer,
                "k": 64,
                "oversampling": 32,
                "power_iterations": 0,
                "metric": "ISS",
                "seeds": [0, 1, 2],
                "values": [0.4, 0.41, 0.42],
                "mean": 0.41,
                "sd": 0.01,
            }
            for layer in LAYERS
        ],
        "freeze_manifest.json": {
            "schema": "freeze/1",
            "model": model,
            "settings": settings,
            "corpus_sha256": "d" * 64,
            "layers": {
                str(layer): {"status": status} | (frozen if status == "validated" else {"step": None})
                for layer, status in LAYERS.items()
            },
            "lam_rel": lam_rel,
            "code_sha256": "c" * 64,
            "files": {"low_rank_factors/toy-model/2/Q.pt": "d" * 64},
        },
        "iss_per_fact_layer.jsonl": per_layer,
        "iss_per_fact.jsonl": per_fact,
        "iss_model_summary.json": summary,
        "raw_iss_ablation.json": {"model": model, "per_layer": raw_layers, "provenance": provenance} | overall["Raw-ISS"],
    }


def write_lines(path: Path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def build_root(root: Path, *, model=MODEL, tables=True) -> Path:
    """Two tasks, selectors, conditions by three seeds, one task that is not supported, and ISS of three layers."""
    studies = [
        (task, selector, condition)
        for task in ("ioi", "sentiment")
        for selector in ("coverage_driver", "driver_omp")
        for condition in ("P", "F")
    ]
    for task, selector, condition in [*studies, ("refusal", "coverage_driver", "P")]:
        rows = [
            measurement(task, selector, condition, seed, model=model, supported=task != "refusal") for seed in range(3)
        ]
        folder = root / "measurements" / model.replace("/", "--")
        write_lines(folder / f"{task}.{selector}.{condition}.jsonl", rows)
    for name, content in iss_files(model).items():
        path = root / "jacobian_iss" / name
        write_lines(path, content) if isinstance(content, list) else path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, list):
            path.write_text(json.dumps(content))
    manifest.write_manifest(root)
    if tables:
        reproduce(root)
    return root
