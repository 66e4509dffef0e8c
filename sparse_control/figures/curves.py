"""The two curves of the paper as CSV files that `dvc plots` reads: error by rank, progress by dose.

One column a curve, so that a plot needs no further work: `paper/curves/rank.csv` and `paper/curves/dose_{task}.csv`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sparse_control.errors import InputError
from sparse_control.files import write_text
from sparse_control.records.jacobian_iss import FullComparison, read_iss
from sparse_control.records.six_axis import Measurement, read_all_measurements

FOLDER = Path("paper", "curves")


def rank_curves(comparison: FullComparison, layers: Sequence[int]) -> dict[str, dict[int, float]]:
    """Relative Frobenius error of the plainest sketch by rank k, one curve a layer, and the best possible one.

    Args:
        comparison: all estimators against the exact reference.
        layers: of the window.

    Returns:
        curve -> {k: error}; the smallest oversampling, no power iterations, Gaussian probes.
    """
    plain = min(row.oversampling for row in comparison.rows)
    curves: dict[str, dict[int, float]] = {}
    for row in comparison.rows:
        if (row.probe, row.oversampling, row.power_iterations) == ("gaussian", plain, 0) and row.layer in layers:
            curves.setdefault(f"layer {row.layer}", {})[row.k] = row.E_F
            curves.setdefault(f"layer {row.layer} best", {})[row.k] = row.svd_floor_E_F
    return curves


def dose_curves(measurements: Iterable[Measurement], task: str) -> dict[str, dict[float, float]]:
    """Mean progress by dose, one curve a selector and condition.

    Progress is the share of the gap that is covered, `<patched - source, gap> / ||gap||^2` over the pairs of a seed;
    the mean is over seeds.
    """
    shares: dict[str, dict[float, list[float]]] = {}
    for record in measurements:
        read = record.evaluate
        if record.task != task or read is None:
            continue
        source = np.asarray(read.source)
        gap = np.asarray(read.target) - source
        curve = shares.setdefault(f"{record.selector} {record.condition}", {})
        for dose, patched in zip(read.doses, read.patched, strict=True):
            curve.setdefault(dose, []).append(float((np.asarray(patched) - source) @ gap / (gap @ gap)))
    return {name: {dose: float(np.mean(values)) for dose, values in curve.items()} for name, curve in shares.items()}


def curve_text(axis: str, curves: Mapping[str, Mapping[float, float]]) -> str:
    """CSV with one row for every place on the axis that any curve has; an empty cell where a curve has none."""
    places = sorted({place for curve in curves.values() for place in curve})
    rows = [[axis, *curves], *([place, *(curve.get(place, "") for curve in curves.values())] for place in places)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def write_curves(root: Path) -> list[Path]:
    """Write the curves of the records below `root`.

    Raises:
        InputError: no records, or a malformed one.
    """
    iss, measurements = read_iss(root), read_all_measurements(root)
    texts = {}
    if iss.comparison is not None and iss.summary is not None:
        texts["rank.csv"] = curve_text("k", rank_curves(iss.comparison, iss.summary.window))
    for task in sorted({record.task for record in measurements}):
        if curves := dose_curves(measurements, task):
            texts[f"dose_{task}.csv"] = curve_text("dose", curves)
    if not texts:
        raise InputError(f"{root}: no measurements to draw curves of")
    for name, text in texts.items():
        write_text(Path(root) / FOLDER / name, text)
    return [Path(root) / FOLDER / name for name in texts]
