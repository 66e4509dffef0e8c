"""The whitening penalty, from calibration rows alone."""

from collections.abc import Sequence
from typing import Any

from sklearn.covariance import ledoit_wolf_shrinkage

from sparse_control.iss.score import residual_states


def shrinkage_lam_rel(z: Any, relations: Sequence[int | str], families: Sequence[int | str]) -> float:
    """`lam_rel = delta / (1 - delta)` with delta the Ledoit-Wolf shrinkage of the residualised rows.

    Args:
        z: (N, d) calibration states in the full width of the model.
        relations, families: N labels each.

    Raises:
        ValueError: names the argument that is empty, not finite or of another length; or the shrinkage is 1, i.e. the
            rows carry no covariance to whiten with.
    """
    delta = float(ledoit_wolf_shrinkage(residual_states(z, relations, families)))
    if not delta < 1.0:
        raise ValueError("z: the Ledoit-Wolf shrinkage of the calibration rows is 1; use more calibration facts")
    return delta / (1.0 - delta)
