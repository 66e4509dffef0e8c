"""Stage A: exact finite-corpus Jacobians and what every candidate rank loses against them (source document, 5)."""

from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm

from sparse_control.corpus import Corpus, load_corpus
from sparse_control.files import write_json
from sparse_control.jacobian.actions import action_agreement, frobenius_error
from sparse_control.jacobian.alternatives import svd_factors
from sparse_control.jacobian.exact import corpus_jacobian
from sparse_control.jacobian.qb import Factors
from sparse_control.models import LanguageModel, load_model
from sparse_control.receipt import Receipt
from sparse_control.settings import Settings
from sparse_control.stages.calibration import Calibration, calibration_queries, load_calibration
from sparse_control.stages.sketches import LayerEstimators, load_reference
from sparse_control.stages.states import load_tensors, query_states, save_tensors
from sparse_control.stages.tree import Tree, stages_code_sha256


def run(*, corpus: Path, root: Path, settings: Settings) -> Receipt:
    """Measure calibration states and, where the settings ask for them, references and the rank comparison.

    Args:
        corpus: a built corpus folder.
        root: results root.
        settings: one preset.

    Raises:
        InputError: ranks or layers that do not fit the model, a corpus that is too small, a model not fetched.
    """
    torch.set_num_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    settings.check_width(lm.width, lm.n_layers)
    tree = Tree(root, lm.name)
    written = [_save_calibration_states(lm, tree, settings)]
    if settings.estimator.reference:
        written += _save_references(lm, load_corpus(corpus), tree, settings)
        written.append(_save_comparison(tree, settings))
    return Receipt.of(root, written)


def _save_calibration_states(lm: LanguageModel, tree: Tree, settings: Settings) -> Path:
    states = query_states(lm, calibration_queries(settings), settings.iss.layers, "calibration states")
    path = tree.states("calibration")
    save_tensors(path, {str(layer): rows for layer, rows in states.states.items()})
    return path


def _save_references(lm: LanguageModel, corpus: Corpus, tree: Tree, settings: Settings) -> list[Path]:
    sizes = sorted({*settings.estimator.corpus_sizes, *settings.estimator.snapshots})
    chosen = corpus.first(sizes[-1])
    with tqdm(total=sizes[-1], desc="exact Jacobians", unit="prompt") as bar:
        jacobian = corpus_jacobian(lm, chosen.input_ids, settings.iss.layers, sizes, progress=bar.update)
    paths = []
    for index, layer in enumerate(jacobian.layers):
        means = {f"n{size}": mean[index] for size, mean in jacobian.means.items()}
        halves = {f"half{half}": jacobian.halves[half][index] for half in (0, 1)}
        save_tensors(tree.reference(layer), means | halves)
        paths.append(tree.reference(layer))
    metadata = {
        "kind": "exact finite-corpus Jacobian",
        "position": "final",
        "target_layer": lm.n_layers,
        "norm": "before the final norm",
        "layers": list(jacobian.layers),
        "corpus_sizes": sizes,
        "corpus_sha256": corpus.sha256,
        "corpus_ids": list(chosen.ids),
        "calibration_sequence_length": settings.corpus.sequence_length,
        "model": lm.provenance,
        "code_sha256": stages_code_sha256(),
    }
    write_json(tree.reference_metadata, metadata)
    return [*paths, tree.reference_metadata]


def _save_comparison(tree: Tree, settings: Settings) -> Path:
    calibration = load_calibration(tree, settings)
    size = settings.estimator.corpus_sizes[-1]
    rows, floors = [], []
    for layer in tqdm(settings.iss.layers, desc="rank comparison", unit="layer"):
        matrix = load_reference(tree.reference(layer), [size])[size]
        rows += _compare_ranks(matrix, layer, calibration, settings)
        floors.append(_noise_floor(tree, layer, calibration))
    path = tree.validation("small_model_full_comparison.json")
    write_json(path, {"model": tree.model, "corpus_size": size, "rows": rows, "noise_floor": floors})
    return path


def _compare_ranks(matrix: Tensor, layer: int, calibration: Calibration, settings: Settings) -> list[dict]:
    """One row per (oversampling, power, rank) with the statistics of section 5.4, preregistered seed."""
    width = matrix.shape[0]
    size, seed = settings.estimator.corpus_sizes[-1], settings.estimator.sketch_seeds[0]
    estimators = LayerEstimators(layer=layer, settings=settings.estimator, reference={size: matrix})
    held_out = calibration.activations(layer)
    centred = held_out - held_out.mean(dim=0)
    direct, direct_centred = held_out @ matrix.T, centred @ matrix.T

    transported = calibration.states[layer] @ matrix.T
    lam_rel = calibration.labels.lam_rel(transported)
    exact = calibration.labels.iss(transported, lam_rel=lam_rel, width=width)
    best = svd_factors(matrix, max(settings.estimator.ranks), max(settings.estimator.oversampling))

    rows = []
    for oversampling in settings.estimator.oversampling:
        for power_iterations in settings.estimator.power_iterations:
            for rank in settings.estimator.ranks:
                factors = estimators.factors(
                    rank=rank,
                    oversampling=oversampling,
                    corpus_size=size,
                    power_iterations=power_iterations,
                    seed=seed,
                )
                floor = best.truncate(rank, oversampling)
                agreement = action_agreement(direct, factors.apply(held_out))
                agreement_centred = action_agreement(direct_centred, factors.apply(centred))
                estimated = calibration.labels.iss(
                    factors.reduce(calibration.states[layer]), lam_rel=lam_rel, width=width
                )
                rows.append(
                    {
                        "layer": layer,
                        "estimator": "qb",
                        "probe": settings.estimator.probe,
                        "oversampling": oversampling,
                        "power_iterations": power_iterations,
                        "seed": seed,
                        "k": rank,
                        "r": factors.r,
                        "E_F": frobenius_error(matrix, factors.Q, factors.B),
                        "E_vec": agreement.mean_relative_error,
                        "C_vec": agreement.mean_cosine,
                        "E_vec_centred": agreement_centred.mean_relative_error,
                        "C_vec_centred": agreement_centred.mean_cosine,
                        "E_ISS": abs(float(exact.iss.mean() - estimated.iss.mean())),
                        "rho_fact": _rank_agreement(exact.iss.to_numpy(), estimated.iss.to_numpy()),
                        "svd_floor_E_F": frobenius_error(matrix, floor.Q, floor.B),
                        "svd_floor_E_vec": _relative_error(direct, floor, held_out),
                    }
                )
    return rows


def _relative_error(direct: Tensor, factors: Factors, activations: Tensor) -> float:
    return action_agreement(direct, factors.apply(activations)).mean_relative_error


def _rank_agreement(exact: np.ndarray, estimated: np.ndarray) -> float | None:
    """Spearman over the facts both sides define; None where either side is constant."""
    both = np.isfinite(exact) & np.isfinite(estimated)
    if both.sum() < 2 or np.ptp(exact[both]) == 0 or np.ptp(estimated[both]) == 0:
        return None
    return float(spearmanr(exact[both], estimated[both]).statistic)


def _noise_floor(tree: Tree, layer: int, calibration: Calibration) -> dict:
    """Two disjoint halves of the corpus against each other: no claim is made below these errors."""
    tensors = load_tensors(tree.reference(layer))
    first, second = tensors["half0"].double(), tensors["half1"].double()
    held_out = calibration.activations(layer)
    agreement = action_agreement(held_out @ first.T, held_out @ second.T)
    return {
        "layer": layer,
        "E_F": float(torch.linalg.norm(first - second) / torch.linalg.norm(first)),
        "E_vec": agreement.mean_relative_error,
        "C_vec": agreement.mean_cosine,
    }
