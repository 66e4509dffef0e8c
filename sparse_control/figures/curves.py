"""The two curves of the paper as CSV files that `dvc plots` reads: error by rank, progress by dose.

One column a curve, so that a plot needs no further work: `rank.csv` and `dose_{task}.csv` of the first model that has
them, `rank.{model}.csv` and `dose_{task}.{model}.csv` of every other one, below `curves/` of the paper folder.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import write_text
from sparse_control.metrics.over_seeds import mean_or_none
from sparse_control.project import project_folder
from sparse_control.records.jacobian_iss import FullComparison
from sparse_control.records.paths import PAPER, folder_name, paper_folder
from sparse_control.records.read import ModelRecords, read_records
from sparse_control.records.six_axis import Measurement

FOLDER = Path(PAPER, "curves")  # of the project


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
    the mean is over the seeds with a gap. Sums are correctly rounded, so the files are the same on every machine.
    """
    shares: dict[str, dict[float, list[float]]] = {}
    for record in measurements:
        read = record.evaluate
        if record.task != task or read is None:
            continue
        gap = [target - source for source, target in zip(read.source, read.target, strict=True)]
        if not any(gap):
            continue
        square = math.fsum(step * step for step in gap)
        curve = shares.setdefault(f"{record.selector} {record.condition}", {})
        for dose, patched in zip(read.doses, read.patched, strict=True):
            moved = math.fsum((y - s) * step for y, s, step in zip(patched, read.source, gap, strict=True))
            curve.setdefault(dose, []).append(moved / square)
    return {name: {dose: mean_or_none(values) for dose, values in curve.items()} for name, curve in shares.items()}


def curve_text(axis: str, curves: Mapping[str, Mapping[float, float]]) -> str:
    """CSV with one row for every point on the axis that any curve has; an empty cell where a curve has none."""
    points = sorted({point for curve in curves.values() for point in curve})
    rows = [[axis, *curves], *([point, *(curve.get(point, "") for curve in curves.values())] for point in points)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _curves(model: ModelRecords) -> Iterator[tuple[str, str]]:
    """What is drawn of a model: a name, and the text of its file."""
    if model.iss.comparison is not None and model.iss.summary is not None:
        yield "rank", curve_text("k", rank_curves(model.iss.comparison, model.iss.summary.window))
    for task in sorted({record.task for record in model.six_axis}):
        if curves := dose_curves(model.six_axis, task):
            yield f"dose_{task}", curve_text("dose", curves)


def curve_files(models: Iterable[ModelRecords]) -> dict[str, str]:
    """Every file by its name."""
    files: dict[str, str] = {}
    for model in models:
        for name, text in _curves(model):
            files[f"{name}.{folder_name(model.name)}.csv" if f"{name}.csv" in files else f"{name}.csv"] = text
    return files


def write_curves(root: Path) -> list[Path]:
    """Write the curves of the records below `root` into its paper folder.

    Raises:
        InputError: no records, or a malformed one.
    """
    project = project_folder()
    files = curve_files(read_records(root, project).models)
    if not files:
        raise InputError(f"{root}: no measurements to draw curves of")
    folder = paper_folder(root, project) / FOLDER.name
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]
