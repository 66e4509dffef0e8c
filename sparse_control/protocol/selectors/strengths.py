"""Strengths of given sites, by least squares: one per site, or one for all."""

import numpy as np

RIDGE = 1e-6  # of each column's squared norm


def fit_strengths(
    columns: np.ndarray, target: np.ndarray, max_strength: float | None = None, start: np.ndarray | None = None
) -> np.ndarray:
    """Ridge-stabilised least squares `columns @ beta ~ target`, optionally with `|start + beta| <= max_strength`.

    The ridge is 1e-6 of each column's own squared norm, so that rescaling a column only rescales its strength.

    Args:
        columns: (N, k) float64, no zero column.
        target: (N,).
        max_strength: the bound; None: unbounded.
        start: (k,) strengths that `beta` is added to; None: zeros.

    Returns:
        (k,).
    """
    norms = np.linalg.norm(columns, axis=0)
    unit = np.vstack([columns / norms, np.sqrt(RIDGE) * np.eye(columns.shape[1])])  # (N + k, k)
    padded = np.concatenate([target, np.zeros(columns.shape[1])])
    scaled = np.linalg.lstsq(unit, padded, rcond=None)[0]
    if max_strength is None:
        return scaled / norms
    start = np.zeros(columns.shape[1]) if start is None else start
    low, high = (-max_strength - start) * norms, (max_strength - start) * norms
    if np.any((scaled < low) | (scaled > high)):
        from scipy.optimize import lsq_linear  # slow to import, and the names of selectors are read without it

        scaled = np.clip(lsq_linear(unit, padded, bounds=(low, high), method="bvls").x, low, high)
    return np.clip(scaled / norms, -max_strength - start, max_strength - start)


def common_strength(columns: np.ndarray, target: np.ndarray, max_strength: float | None = None) -> float:
    """The one strength for all sites, `<t, E 1> / ||E 1||^2`, within the bound; 0 where the effects cancel.

    Args:
        columns: (N, k).
        target: (N,).
        max_strength: bound on its size; None: unbounded.
    """
    joint = columns.sum(axis=1)
    square = float(joint @ joint)
    strength = float(target @ joint) / square if square > 0 else 0.0
    return strength if max_strength is None else min(max(strength, -max_strength), max_strength)
