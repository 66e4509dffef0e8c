"""Axis 4, feedback controllability: whether measured errors steer the dose to a request (source document, 04)."""

from sparse_control.arguments import real_number
from sparse_control.metrics.sums import finite


def endpoint_metrics(
    *, target: float, terminal_margin: float, initial_margin: float, tolerance: float
) -> dict[str, float | bool]:
    """Judge one feedback endpoint.

    Args:
        target: requested value m*, in logits.
        terminal_margin: measured value at the last dose.
        initial_margin: measured value at dose 0.
        tolerance: largest error that is a hit, >= 0.

    Returns:
        `hit` (|m* - terminal| <= tolerance), `terminal_error` and `initial_error` (logits), and `already_met`
        (the target was within tolerance before any intervention; such hits are reported apart).

    Raises:
        ValueError: names the argument that is not a finite real number, a negative tolerance, or values whose
            difference is beyond float64.
    """
    target = real_number("target", target)
    terminal_margin = real_number("terminal_margin", terminal_margin)
    initial_margin = real_number("initial_margin", initial_margin)
    terminal_error = finite("target and terminal_margin", abs(target - terminal_margin))
    initial_error = finite("target and initial_margin", abs(target - initial_margin))
    tolerance = real_number("tolerance", tolerance)
    if tolerance < 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance!r}")
    return {
        "hit": terminal_error <= tolerance,
        "terminal_error": terminal_error,
        "initial_error": initial_error,
        "already_met": initial_error <= tolerance,
    }
