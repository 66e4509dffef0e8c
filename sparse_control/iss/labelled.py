"""States with their labels: the checked arguments of the score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse_control.arguments import equal_lengths, labels, real_matrix, real_number


@dataclass(frozen=True, eq=False)
class LabelledStates:
    """N states of F facts, labels as integers in order of first appearance.

    Attributes:
        z: (N, D), float64.
        fact, relation, family: (N,) label of each row.
        facts: the F distinct facts.
        relations: the distinct relations.
        families: the T distinct condition families.
        relation_of_fact: (F,).
    """

    z: np.ndarray
    fact: np.ndarray
    relation: np.ndarray
    family: np.ndarray
    facts: list[int | str]
    relations: list[int | str]
    families: list[int | str]
    relation_of_fact: np.ndarray


def labelled_states(
    z: Any, facts: Sequence[int | str], relations: Sequence[int | str], families: Sequence[int | str]
) -> LabelledStates:
    """The states (N, D) and their three labels each, checked.

    Raises:
        ValueError: names the argument: states that are no finite matrix, labels that are missing, neither strings nor
            whole numbers, or not one per row, a fact under two relations.
    """
    z = real_matrix("z", z)
    fact, fact_names = label_codes("facts", facts)
    relation, relation_names = label_codes("relations", relations)
    family, family_names = label_codes("families", families)
    equal_lengths(z=z, facts=fact, relations=relation, families=family)
    relation_of_fact = np.zeros(len(fact_names), dtype=int)
    relation_of_fact[fact] = relation
    other = relation_of_fact[fact] != relation
    if other.any():
        raise ValueError(f"facts: {fact_names[fact[np.argmax(other)]]!r} is under more than one relation")
    return LabelledStates(z, fact, relation, family, fact_names, relation_names, family_names, relation_of_fact)


def label_codes(name: str, values: Any) -> tuple[np.ndarray, list[int | str]]:
    """Integer codes (N,) in order of first appearance, and the distinct labels.

    Raises:
        ValueError: not a flat sequence, or a label that is missing or neither a whole number nor a string.
    """
    codes: dict[int | str, int] = {}
    return np.array([codes.setdefault(label, len(codes)) for label in labels(name, values)], dtype=int), list(codes)


def penalty(lam_rel: Any) -> float:
    """`lam_rel` as a finite float >= 0.

    Raises:
        ValueError: it is none.
    """
    value = real_number("lam_rel", lam_rel)
    if value < 0:
        raise ValueError(f"lam_rel must be finite and not negative, got {lam_rel!r}")
    return value


def other_rows(covariance_rows: Any, width: int) -> np.ndarray | None:
    """(N', width) float64 rows that Sigma is estimated on, or None.

    Raises:
        ValueError: no finite matrix, or another width.
    """
    if covariance_rows is None:
        return None
    rows = real_matrix("covariance_rows", covariance_rows)
    if rows.shape[1] != width:
        raise ValueError(f"covariance_rows must be (N', {width}), got shape {rows.shape}")
    return rows
