"""The error of low-rank estimators by rank (ISS source document, 5.4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from sparse_control.figures.figure import Figure, panels, style
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import Row
from sparse_control.tables.estimator import RANK_CURVE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAMES = ("layer", "status", "probe", "p", "q", "k", "r", "E_vec", "svd_floor_E_vec", "noise_floor_E_vec")
ACCEPTED = 0.05  # largest median relative error of the acceptance rule


def _rows(model: ModelRecords) -> Iterator[Row]:
    """The plainest sketch of every layer: Gaussian probes, the smallest oversampling, no power iterations."""
    rows = [row for row in RANK_CURVE.rows(model) if row["probe"] == "gaussian" and row["q"] == 0]
    plainest = min((row["p"] for row in rows), default=None)
    width = max((row["r"] for row in rows if row["r_is_d"]), default=None)
    for row in rows:
        if row["p"] == plainest:
            shares = {"k_over_d": width and row["k"] / width, "stored_over_exact": width and 2 * row["r"] / width}
            yield {name: row[name] for name in NAMES} | shares


def _draw(frame: pd.DataFrame) -> "Canvas":
    groups = dict(list(frame.groupby("model", sort=False)))
    canvas, axes = panels(list(groups), sharey=True)
    for axis, rows in zip(axes, groups.values(), strict=True):
        window = rows[rows["status"] != "not in the window"]
        for index, (layer, of_layer) in enumerate((window if len(window) else rows).groupby("layer")):
            look = style(index)
            axis.plot(of_layer["k"], of_layer["E_vec"], label=f"layer {layer}", **look)
            axis.plot(of_layer["k"], of_layer["svd_floor_E_vec"], color=look["color"], linewidth=0.5, linestyle=":")
        axis.axhline(ACCEPTED, color="0.4", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("rank k")
        axis.set_ylabel("E_vec")
        axis.legend(frameon=False)
    return canvas


RANK = Figure(
    name="rank",
    title="Error of transported vectors by rank",
    caption=(
        "Mean relative error of transported vectors of QB against the exact finite-corpus Jacobian, a line per layer; "
        "thin: the best matrix of the same rank (SVD). The grey line is the acceptance rule's .05."
    ),
    section="Jacobian-Transported ISS, 5.4",
    reads=RANK_CURVE.reads,
    fields=(*NAMES, "k_over_d", "stored_over_exact"),
    rows=_rows,
    draw=_draw,
)
