"""Internal State Stability of a set of states (source document, 10): arrays in, a table out."""

from collections.abc import Sequence
from numbers import Real

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from sparse_control.arguments import whole_number

EPSILON = 1e-8
# A vector this much shorter than the longest row is rounding and has no direction.
NEGLIGIBLE = 1e-12


def encode_labels(name: str, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Integer codes (N,) in order of first appearance, and the distinct labels.

    Raises:
        ValueError: a label is missing (None or NaN).
    """
    codes, distinct = pd.factorize(np.asarray(labels, dtype=object))
    if (codes < 0).any():
        raise ValueError(f"{name}[{int(np.argmax(codes < 0))}] is missing")
    return codes, distinct


def residualise(z: np.ndarray, relations: np.ndarray, families: np.ndarray) -> np.ndarray:
    """`z - mu_relation - mu_family + mu` (10.1), each mean over rows; z (N, D), integer labels (N,)."""
    return z - _group_means(z, relations)[relations] - _group_means(z, families)[families] + z.mean(axis=0)


def whiten(zbar: np.ndarray, lam_rel: float, model_width: int, covariance_rows: np.ndarray | None = None) -> np.ndarray:
    """`(Sigma + lam I)^{-1/2} zbar` (10.2) in the eigenbasis of Sigma, which leaves every cosine as it is.

    `lam = lam_rel tr(Sigma) / d` with d the model width, so that reduced coordinates give the same cosines.

    Args:
        zbar: (N, D) residualised rows; not centred again.
        covariance_rows: (N', D) residualised rows that Sigma is estimated on; None: zbar.

    Raises:
        ValueError: lam_rel is 0 and Sigma is singular.
    """
    rows = zbar if covariance_rows is None else covariance_rows
    centred = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(rows))
    variances = np.clip(variances, 0.0, None)
    penalised = variances + lam_rel * (variances.sum() / model_width)
    if not np.isfinite(penalised).all():
        raise ValueError(f"lam_rel is beyond float64 for these states, got {lam_rel!r}")
    if penalised.min() <= variances.max() * len(variances) * np.finfo(np.float64).eps:
        if lam_rel == 0 and variances.max() > 0:
            raise ValueError(
                "lam_rel is 0 and the covariance is singular; use lam_rel > 0 or more rows than dimensions"
            )
        penalised = np.where(penalised > 0, penalised, 1.0)
    return zbar @ axes / np.sqrt(penalised)


def internal_state_stability(
    z: np.ndarray,
    facts: Sequence[str],
    relations: Sequence[str],
    families: Sequence[str],
    lam_rel: float = 1e-2,
    model_width: int | None = None,
    covariance_rows: np.ndarray | None = None,
) -> pd.DataFrame:
    """ISS of every fact in one layer.

    Residualise by relation and family, whiten all rows with one transform, take normalised family
    centroids, compare a fact with itself across families (S+) and with the other facts of its
    relation across families (S-): `ISS = (S+ - S-) / (1 - S- + 1e-8)`.

    The value depends on lam_rel: with few rows for the dimensions a small one makes all rows nearly orthogonal and
    ISS tends to 0, and with lam_rel = 0 whitening cancels any invertible transport. Report it over several.

    Args:
        z: (N, D) states: transported `J h`, reduced `B h`, or raw `h` for Raw-ISS.
        facts, relations, families: N labels each.
        lam_rel: whitening penalty relative to the mean variance per model dimension, >= 0.
        model_width: d; needed where D is not d (reduced coordinates). Default D.
        covariance_rows: (N', D) residualised rows of another set that Sigma is estimated on, as a check of robustness;
            None: the rows of z themselves, which is the definition.

    Returns:
        One row per fact in order of first appearance: fact, relation, s_plus, s_minus, iss, reason.
        `iss` is NaN where `reason` says why it is undefined.

    Raises:
        ValueError: empty, unequal lengths, non-finite states, negative lam_rel, a fact under two relations,
            or lam_rel = 0 with a singular covariance.
    """
    z = np.asarray(z)
    if z.dtype.kind not in "fiu":
        raise ValueError(f"z must hold real numbers, got {z.dtype}")
    z = z.astype(np.float64)
    if z.ndim != 2 or not len(z):
        raise ValueError(f"z must be (N, D) with N >= 1, got shape {z.shape}")
    for name, labels in (("facts", facts), ("relations", relations), ("families", families)):
        if len(labels) != len(z):
            raise ValueError(f"{name} must have one label per row of z: {len(labels)} labels, {len(z)} rows")
    if not np.isfinite(z).all():
        raise ValueError(f"z must be finite; row {int(np.argwhere(~np.isfinite(z))[0, 0])} is not")
    if not (isinstance(lam_rel, Real) and np.isfinite(lam_rel) and lam_rel >= 0):
        raise ValueError(f"lam_rel must be finite and not negative, got {lam_rel!r}")
    model_width = z.shape[1] if model_width is None else model_width
    whole_number("model_width", model_width, 1)
    if covariance_rows is not None:
        covariance_rows = np.asarray(covariance_rows, dtype=np.float64)
        if covariance_rows.ndim != 2 or covariance_rows.shape[1] != z.shape[1] or not len(covariance_rows):
            raise ValueError(f"covariance_rows must be (N', {z.shape[1]}), got shape {covariance_rows.shape}")
        if not np.isfinite(covariance_rows).all():
            raise ValueError("covariance_rows must be finite")

    fact_of, fact_names = encode_labels("facts", facts)
    relation_of, relation_names = encode_labels("relations", relations)
    family_of, family_names = encode_labels("families", families)
    relation_of_fact = np.zeros(len(fact_names), dtype=int)
    relation_of_fact[fact_of] = relation_of
    if (relation_of_fact[fact_of] != relation_of).any():
        row = int(np.argmax(relation_of_fact[fact_of] != relation_of))
        raise ValueError(f"facts: {fact_names[fact_of[row]]!r} stands under more than one relation")

    largest = np.abs(z).max()
    if largest > 0:  # ISS does not depend on scale; squares of huge or tiny states do
        z = z / largest
        covariance_rows = None if covariance_rows is None else covariance_rows / largest
    residual = residualise(z, relation_of, family_of)
    explained = _longest(residual) <= NEGLIGIBLE * _longest(z)  # nothing but rounding is left of any row
    whitened = np.zeros_like(z) if explained else whiten(residual, lam_rel, model_width, covariance_rows)

    n_facts, n_families = len(fact_names), len(family_names)
    cell = fact_of * n_families + family_of
    counts = np.bincount(cell, minlength=n_facts * n_families).reshape(n_facts, n_families)
    sums = _group_sums(whitened, cell, n_facts * n_families)
    centroids = sums.reshape(n_facts, n_families, -1) / np.maximum(counts, 1)[..., None]
    lengths = np.linalg.norm(centroids, axis=2)
    present = counts > 0
    zero = present & (lengths <= NEGLIGIBLE * _longest(whitened))
    usable = present & ~zero
    directions = np.where(usable[..., None], centroids / np.where(usable, lengths, 1.0)[..., None], 0.0)  # (F, T, D)

    own_sum = directions.sum(axis=1)  # (F, D)
    n_own = usable.sum(axis=1)
    pairs = n_own * (n_own - 1)
    s_plus = _divide((own_sum**2).sum(axis=1) - n_own, pairs)

    # Sum over g != f, t != t' of cos = sum over all (g, t, t') minus t = t', both without g = f.
    per_relation = _group_sums(directions.reshape(n_facts, -1), relation_of_fact, len(relation_names))
    per_relation = per_relation.reshape(-1, n_families, z.shape[1])
    per_relation_count = _group_sums(usable.astype(np.float64), relation_of_fact, len(relation_names))
    others = per_relation[relation_of_fact] - directions  # (F, T, D)
    others_count = per_relation_count[relation_of_fact] - usable
    cross = (own_sum * others.sum(axis=1)).sum(axis=1) - (directions * others).sum(axis=(1, 2))
    cross_count = n_own * others_count.sum(axis=1) - (usable * others_count).sum(axis=1)
    s_minus = _divide(cross, cross_count)

    iss = (s_plus - s_minus) / (1 - s_minus + EPSILON)
    reason = np.full(n_facts, None, dtype=object)
    reason[cross_count == 0] = "no other fact of the relation in another family"
    reason[np.bincount(relation_of_fact)[relation_of_fact] == 1] = "relation has one fact"
    reason[present.sum(axis=1) == 1] = "fact has one family"
    reason[zero.any(axis=1)] = "zero centroid"
    undefined = np.array([r is not None for r in reason])
    return pd.DataFrame(
        {
            "fact": fact_names,
            "relation": relation_names[relation_of_fact],
            "s_plus": s_plus,
            "s_minus": s_minus,
            "iss": np.where(undefined, np.nan, iss),
            "reason": pd.Series(reason, dtype=object),
        }
    )


def _group_means(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return _group_sums(z, labels, labels.max() + 1) / np.bincount(labels)[:, None]


def _group_sums(rows: np.ndarray, labels: np.ndarray, n_groups: int) -> np.ndarray:
    """(n_groups, D): the rows of each label added up, as a product with the label indicator matrix."""
    indicator = csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(n_groups, len(labels)))
    return indicator @ rows


def _longest(rows: np.ndarray) -> float:
    return float(np.linalg.norm(rows, axis=1).max())


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
