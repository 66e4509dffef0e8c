"""The error of low-rank estimators by rank (ISS source document, 5.4)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from sparse_control.figures.figure import Figure, legend_below, panels, style
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import Row
from sparse_control.tables.estimator import RANK_CURVE, width

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAMES = ("layer", "status", "probe", "p", "q", "k", "r", "E_vec", "svd_floor_E_vec", "noise_floor_E_vec")
EXACT = 1e-4  # rounding alone
ACCEPTED = 0.05  # largest median relative error of the acceptance rule


def _rows(model: ModelRecords) -> Iterator[Row]:
    """The plainest sketch of every layer: Gaussian probes, the smallest oversampling, no power iterations."""
    rows = [row for row in RANK_CURVE.rows(model) if row["probe"] == "gaussian" and row["q"] == 0]
    plainest = min((row["p"] for row in rows), default=None)
    d = next(filter(None, map(width, model.iss.actions)), None)
    for row in rows if d else ():
        if row["p"] == plainest:
            shares = {"k_over_d": row["k"] / d, "stored_over_exact": 2 * row["r"] / d}
            yield {name: row[name] for name in NAMES} | shares


def _draw(frame: pd.DataFrame) -> "Canvas":
    groups = dict(list(frame.groupby("model", sort=False)))
    canvas, axes = panels(list(groups), sharey=True)
    for axis, rows in zip(axes, groups.values(), strict=True):
        window = rows[rows["status"] != "not in the window"]
        for index, (layer, of_layer) in enumerate((window if len(window) else rows).groupby("layer")):
            look = style(index)
            below_width = of_layer[of_layer["E_vec"] > EXACT]
            axis.plot(below_width["k_over_d"], below_width["E_vec"], label=f"layer {layer}", **look)
            floor = below_width[below_width["svd_floor_E_vec"] > EXACT]
            axis.plot(floor["k_over_d"], floor["svd_floor_E_vec"], color=look["color"], linewidth=0.5, linestyle=":")
        halves = window["noise_floor_E_vec"].dropna()
        if len(halves):
            axis.axhspan(min(halves), max(halves), color="0.9", linewidth=0, zorder=0)
        axis.axhline(ACCEPTED, color="0.4", linewidth=0.8)
        axis.axvline(0.5, color="0.75", linewidth=0.6)
        axis.set_yscale("log")
        axis.set_xlabel("rank over width, k/d")
        axis.set_ylabel("E_vec")
        extra = float((rows["stored_over_exact"] - 2 * rows["k_over_d"]).astype(float).max())  # 2p/d
        stored = axis.secondary_xaxis("top", functions=(lambda x, b=extra: 2 * x + b, lambda y, b=extra: (y - b) / 2))
        stored.set_xlabel("numbers stored over those of J, 2r/d")
    legend_below(canvas, axes, columns=4)
    return canvas


RANK = Figure(
    name="rank",
    title="Error of transported vectors by rank",
    caption=(
        "Mean relative error of transported vectors of QB against the exact finite-corpus Jacobian, a line per layer; "
        "dotted: the best matrix of the same rank (SVD); an estimator with r = d is exact and not drawn. The grey line "
        "is the acceptance rule's .05, the grey band the distance between two halves of the corpus. Right of the "
        "upright line two factors of rank k hold more numbers than the matrix itself."
    ),
    section="Jacobian-Transported ISS, 5.4",
    reads=tuple(dict.fromkeys((*RANK_CURVE.reads, "actions"))),
    fields=(*NAMES, "k_over_d", "stored_over_exact"),
    rows=_rows,
    draw=_draw,
)
