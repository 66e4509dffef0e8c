"""The whitening penalty, from calibration rows alone."""

import numpy as np
from sklearn.covariance import ledoit_wolf_shrinkage

from sparse_control.iss.score import encode_labels, residualise


def shrinkage_lam_rel(z: np.ndarray, relations: list[str], families: list[str]) -> float:
    """`lam_rel = delta / (1 - delta)` with delta the Ledoit-Wolf shrinkage of the residualised rows.

    Args:
        z: (N, d) calibration states in the full width of the model.

    Raises:
        ValueError: the shrinkage is 1, i.e. the rows carry no covariance to whiten with.
    """
    relation_of, family_of = encode_labels("relations", relations)[0], encode_labels("families", families)[0]
    rows = residualise(np.asarray(z, dtype=np.float64), relation_of, family_of)
    delta = float(ledoit_wolf_shrinkage(rows))
    if delta >= 1.0:
        raise ValueError("z: the Ledoit-Wolf shrinkage of the calibration rows is 1; use more calibration facts")
    return delta / (1.0 - delta)
