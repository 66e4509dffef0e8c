"""Axis 1, reachability: how close the nominal dose comes to the target (source document, 01)."""

from typing import Any

from sparse_control.arguments import equal_lengths, real_array
from sparse_control.metrics.sums import distance, finite

EPSILON = 0.4  # passes at or below
EPSILONS = (0.30, 0.35, 0.40, 0.45, 0.50)  # thresholds at which passes are counted as well
XI = 1e-8  # keeps the ratio defined where source and target coincide


def rel_tar(source: Any, target: Any, patched: Any) -> float:
    """Distance left to the target relative to the source-to-target distance.

    `||target - patched||_2 / (||target - source||_2 + 1e-8)` over the whole readout vector of one seed;
    average the result over seeds, never the readouts. Passes when <= 0.4.

    Args:
        source: (N,) readouts on the source inputs, in logits.
        target: (N,) readouts on the target inputs.
        patched: (N,) readouts on the source inputs under the patch at dose 1.

    Returns:
        the ratio, >= 0; 0 is the target itself, near 1 is no movement.

    Raises:
        ValueError: names the argument that is empty, non-numeric, non-finite, not flat or of another length,
            or readouts whose distance is beyond float64.
    """
    source, target, patched = (
        real_array(name, values) for name, values in (("source", source), ("target", target), ("patched", patched))
    )
    equal_lengths(source=source, target=target, patched=patched)
    ratio = distance(target=target, patched=patched) / (distance(target=target, source=source) + XI)
    return finite("target and patched", ratio)
