"""Internal State Stability of a set of states (source document, 10): arrays in, a table out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sparse_control.arguments import equal_lengths, real_matrix, whole_number
from sparse_control.iss.labelled import LabelledStates, label_codes, labelled_states, other_rows, penalty

EPSILON = 1e-8
# A vector this much shorter than the longest row is rounding and has no direction.
NEGLIGIBLE = 1e-12


def internal_state_stability(
    z: Any,
    facts: Sequence[int | str],
    relations: Sequence[int | str],
    families: Sequence[int | str],
    lam_rel: float = 1e-2,
    model_width: int | None = None,
    covariance_rows: Any = None,
) -> pd.DataFrame:
    """ISS of every fact in one layer.

    Residualise by relation and family, whiten all rows with one transform, take normalised family
    centroids, compare a fact with itself across families (S+) and with the other facts of its
    relation across families (S-): `ISS = (S+ - S-) / (1 - S- + 1e-8)`.

    The value depends on lam_rel: with few rows for the dimensions a small one makes all rows nearly orthogonal and
    ISS tends to 0, and with lam_rel = 0 whitening cancels any invertible transport. Report it over several.

    Args:
        z: (N, D) states: transported `J h`, reduced `B h`, or raw `h` for Raw-ISS.
        facts, relations, families: N labels each, strings or whole numbers.
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
    states = labelled_states(z, facts, relations, families)
    lam_rel, covariance_rows = penalty(lam_rel), other_rows(covariance_rows, states.z.shape[1])
    width = states.z.shape[1] if model_width is None else whole_number("model_width", model_width, 1)
    z, covariance_rows = _of_unit_size(states.z, covariance_rows)

    zbar = residualise(z, states.relation, states.family)
    explained = _longest(zbar) <= NEGLIGIBLE * _longest(z)  # nothing but rounding is left of any row
    ztilde = np.zeros_like(z) if explained else whiten(zbar, lam_rel, width, covariance_rows)
    v, present, zero = family_centroids(ztilde, states)
    s_plus = similarity_across_families(v, present & ~zero)
    s_minus, compared = similarity_to_other_facts(v, present & ~zero, states.relation_of_fact)
    iss = (s_plus - s_minus) / (1 - s_minus + EPSILON)

    reason = _reasons(states, present, zero, compared)
    return pd.DataFrame(
        {
            "fact": states.facts,
            "relation": [states.relations[relation] for relation in states.relation_of_fact],
            "s_plus": s_plus,
            "s_minus": s_minus,
            "iss": np.where(reason.isna(), iss, np.nan),
            "reason": reason,
        }
    )


def residual_states(z: Any, relations: Sequence[int | str], families: Sequence[int | str]) -> np.ndarray:
    """States (N, D) without their relation and family means, float64 (10.1): what `covariance_rows` takes.

    Raises:
        ValueError: names the argument: states that are no finite matrix, bad labels, or not one per row.
    """
    z, (relation, _), (family, _) = (
        real_matrix("z", z), label_codes("relations", relations), label_codes("families", families),
    )  # fmt: skip
    equal_lengths(z=z, relations=relation, families=family)
    return residualise(z, relation, family)


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
        ValueError: lam_rel is 0 and Sigma is singular, or lam is beyond float64.
    """
    rows = zbar if covariance_rows is None else covariance_rows
    centred = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(rows))
    if not np.isfinite(variances).all():
        raise ValueError("covariance_rows are beyond float64 beside z")
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


def family_centroids(ztilde: np.ndarray, states: LabelledStates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`v_{f,t} = normalize(mean_{q in Q_{f,t}} ztilde)` (10.3).

    Args:
        ztilde: (N, D) whitened rows.
        states: their labels.

    Returns:
        v (F, T, D), zero where there is none; (F, T) whether the fact has rows of the family; (F, T) whether their
        mean is zero and has no direction.
    """
    n_facts, n_families = len(states.facts), len(states.families)
    cell = states.fact * n_families + states.family
    counts = np.bincount(cell, minlength=n_facts * n_families).reshape(n_facts, n_families)
    sums = _group_sums(ztilde, cell, n_facts * n_families)
    centroids = sums.reshape(n_facts, n_families, -1) / np.maximum(counts, 1)[..., None]
    lengths = np.linalg.norm(centroids, axis=2)
    present = counts > 0
    zero = present & (lengths <= NEGLIGIBLE * _longest(ztilde))
    usable = present & ~zero
    v = np.where(usable[..., None], centroids / np.where(usable, lengths, 1.0)[..., None], 0.0)
    return v, present, zero


def similarity_across_families(v: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """`S+_f`, mean over t < t' of `cos(v_{f,t}, v_{f,t'})` (10.4); NaN where a fact has fewer than two families.

    The ordered pairs t != t' hold each cosine twice, and their sum is `||sum_t v_{f,t}||^2` less the T ones of t = t'.

    Args:
        v: (F, T, D) centroids.
        usable: (F, T), which of them there are.
    """
    own = usable.sum(axis=1)
    return _divide((v.sum(axis=1) ** 2).sum(axis=1) - own, own * (own - 1))


def similarity_to_other_facts(
    v: np.ndarray, usable: np.ndarray, relation_of_fact: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`S-_f`, mean over g != f of its relation and t != t' of `cos(v_{f,t}, v_{g,t'})` (10.5).

    The sum over (g, t, t') is that of all t, t' less that of t = t', each over the relation's facts without f.

    Args:
        v: (F, T, D) centroids.
        usable: (F, T), which of them there are.
        relation_of_fact: (F,).

    Returns:
        (F,) S-, NaN where there is nothing to compare with; (F,) the number of comparisons.
    """
    n_facts, n_families, width = v.shape
    n_relations = relation_of_fact.max() + 1
    per_relation = _group_sums(v.reshape(n_facts, -1), relation_of_fact, n_relations)
    others = per_relation.reshape(-1, n_families, width)[relation_of_fact] - v  # (F, T, D)
    cross = (v.sum(axis=1) * others.sum(axis=1)).sum(axis=1) - (v * others).sum(axis=(1, 2))
    others_count = _group_sums(usable.astype(np.float64), relation_of_fact, n_relations)[relation_of_fact] - usable
    count = usable.sum(axis=1) * others_count.sum(axis=1) - (usable * others_count).sum(axis=1)
    return _divide(cross, count), count


def _reasons(states: LabelledStates, present: np.ndarray, zero: np.ndarray, compared: np.ndarray) -> pd.Series:
    """(F,) why a fact has no score, or None."""
    reason = np.full(len(states.facts), None, dtype=object)
    reason[compared == 0] = "no other fact of the relation in another family"
    reason[np.bincount(states.relation_of_fact)[states.relation_of_fact] == 1] = "relation has one fact"
    reason[present.sum(axis=1) == 1] = "fact has one family"
    reason[zero.any(axis=1)] = "zero centroid"
    return pd.Series(reason, dtype=object)


def _of_unit_size(z: np.ndarray, covariance_rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Both divided by the largest |z|: ISS does not depend on scale; squares of huge or tiny states do."""
    largest = np.abs(z).max()
    if largest == 0:
        return z, covariance_rows
    return z / largest, None if covariance_rows is None else covariance_rows / largest


def _group_means(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return _group_sums(z, labels, labels.max() + 1) / np.bincount(labels)[:, None]


def _group_sums(rows: np.ndarray, labels: np.ndarray, n_groups: int) -> np.ndarray:
    """(n_groups, D): the rows of each label added up, as a product with the label indicator matrix."""
    from scipy.sparse import csr_array  # not for the commands that compute no ISS

    indicator = csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))), shape=(n_groups, len(labels)))
    return indicator @ rows


def _longest(rows: np.ndarray) -> float:
    return float(np.linalg.norm(rows, axis=1).max())


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
