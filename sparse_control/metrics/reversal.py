"""Axis 2, signed reversal: whether the opposite patch moves the target side to the source (source document, 02)."""

import math
from typing import Any

from sparse_control.arguments import equal_lengths, real_array
from sparse_control.metrics.sums import distance

MINIMUM_RATIO = 2.0  # passes at or above


def reversal_metrics(source: Any, target: Any, reversed_out: Any) -> dict[str, float | str | bool]:
    """Distance of the reversed output from the target over its distance from the source.

    Args:
        source: (N,) readouts on the source inputs, in logits.
        target: (N,) readouts on the target inputs.
        reversed_out: (N,) readouts on the *target* inputs under the patch with strengths negated.

    Returns:
        `ratio` (x/0 is inf, 0/0 is nan), `status` ("finite", "infinite" or "undefined"), `distance_to_target`,
        `distance_to_source` (logits) and `passes` (ratio >= 2; an infinite ratio passes, an undefined one fails).

    Raises:
        ValueError: names the argument that is empty, non-numeric, non-finite, not flat or of another length, or
            readouts too far apart for float64.
    """
    source, target, reversed_out = (
        real_array(name, values)
        for name, values in (("source", source), ("target", target), ("reversed_out", reversed_out))
    )
    equal_lengths(source=source, target=target, reversed_out=reversed_out)
    to_target = distance(reversed_out=reversed_out, target=target)
    to_source = distance(reversed_out=reversed_out, source=source)
    if to_source > 0:
        ratio = to_target / to_source
    else:
        ratio = math.inf if to_target > 0 else math.nan
    status = "undefined" if math.isnan(ratio) else "infinite" if math.isinf(ratio) else "finite"
    return {
        "ratio": ratio,
        "status": status,
        "distance_to_target": to_target,
        "distance_to_source": to_source,
        "passes": ratio >= MINIMUM_RATIO,
    }
