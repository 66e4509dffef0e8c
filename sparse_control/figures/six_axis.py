"""Figures of the six axes: dose curves, progress against damage, feedback, supports."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from sparse_control.figures.figure import COLOURS, MARKERS, Figure, legend_below, panels, style
from sparse_control.metrics import over_seeds
from sparse_control.metrics.preservation import DELTA
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import Measurement
from sparse_control.tables.columns import Row, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

COMPONENTS = ("head", "mlp", "resid")
_SITE = re.compile(r"L(\d+)\.(\w+)(?:\.(\d+))?@.*")
SELECTOR = "coverage_driver"  # whose curves are drawn where it was measured
OF_MAIN = " (Coverage-Driver, else the first selector measured)"
KEY = ("task", "selector", "condition", "seed")


def supported(model: ModelRecords, *, main: bool = False) -> Iterator[tuple[Measurement, Row]]:
    """The records whose model supports the task, each with its key.

    Args:
        main: only those of the main selector, or of the first where it was not measured.
    """
    records = [record for record in model.six_axis if record.supported]
    selectors = list(dict.fromkeys(record.selector for record in records))
    shown = [SELECTOR] if SELECTOR in selectors else selectors[:1]
    for record in records:
        if not main or record.selector in shown:
            yield record, {name: getattr(record, name) for name in KEY}


def groups_of(frame: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """(model, task) -> its rows, in order of appearance."""
    return dict(list(frame.groupby(["model", "task"], sort=False)))


def titles(groups: Iterable[tuple[str, str]]) -> list[str]:
    """The title of each panel of `groups_of`; with the model where there are several."""
    keys = list(groups)
    several = len({model for model, _ in keys}) > 1
    return [f"{in_words(task)}, {model}" if several else in_words(task) for model, task in keys]


def _mean(values: Iterable[float | None]) -> float | None:
    return over_seeds.mean_or_none([value for value in values if value is not None])


# --- dose curves ----------------------------------------------------------------------------------------------------


def _dose_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model, main=True):
        read = record.evaluate
        progress = over_seeds.curve(read.source, read.target, read.patched)
        for dose, value in zip(read.doses, progress or [None] * len(read.doses), strict=True):
            yield key | {"dose": dose, "progress": value}


def _draw_dose(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups), sharey=True)
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, (condition, of_condition) in enumerate(rows.groupby("condition", sort=True)):
            look = style(index)
            for _, seed in of_condition.groupby("seed"):
                axis.plot(seed["dose"], seed["progress"], color=look["color"], alpha=0.3, linewidth=0.5)
            mean = of_condition.groupby("dose")["progress"].apply(_mean)
            axis.plot(mean.index, mean, label=condition, **look)
        axis.axhline(1, color="0.6", linewidth=0.6)
        axis.axhline(0, color="0.6", linewidth=0.6)
        axis.set_xlabel("dose γ")
        axis.set_ylabel("target progress")
        axis.legend(title="directions", frameon=False)
    return canvas


DOSE = Figure(
    name="dose",
    title="Target progress by dose",
    caption=(
        f"Share of the source-to-target gap that is covered{OF_MAIN}: a thin line per seed, a thick one for the mean."
    ),
    section="Six-axis protocol, Dose response",
    reads=("six_axis",),
    fields=(*KEY, "dose", "progress"),
    rows=_dose_rows,
    draw=_draw_dose,
)


# --- progress against off-target divergence -------------------------------------------------------------------------


def _cost_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model):
        read = record.evaluate
        progress = over_seeds.curve(read.source, read.target, [read.at_dose(1.0)])
        yield key | {"progress": progress and progress[0], "kl": _mean(record.preservation.kl)}


def _draw_cost(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups), sharey=True)
    selectors = list(dict.fromkeys(frame["selector"]))
    for axis, rows in zip(axes, groups.values(), strict=True):
        for (selector, condition), several in rows.groupby(["selector", "condition"], sort=False):
            progress, kl = _mean(several["progress"]), _mean(several["kl"])
            if progress is None or not kl:
                continue
            index = selectors.index(selector)
            colour = COLOURS[index % len(COLOURS)]
            axis.plot(
                kl,
                progress,
                marker=MARKERS[index % len(MARKERS)],
                linestyle="none",
                markeredgecolor=colour,
                markerfacecolor=colour if condition == "P" else "none",
                label=f"{in_words(selector)}, {condition}",
            )
        axis.axvline(DELTA, color="0.6", linewidth=0.6)
        axis.set_xscale("log")
        axis.set_xlabel("off-target KL, nats")
        axis.set_ylabel("target progress")
    legend_below(canvas, axes, columns=3)
    return canvas


COST = Figure(
    name="cost",
    title="Target progress against off-target damage",
    caption=(
        "Progress on the evaluation pairs and mean KL on the off-target panel at dose 1, means over seeds: a mark per "
        "selector and direction rule, filled for evaluation-pair directions. The line is δ = .001."
    ),
    section="Six-axis protocol, Off-target preservation",
    reads=("six_axis",),
    fields=(*KEY, "progress", "kl"),
    rows=_cost_rows,
    draw=_draw_cost,
)


# --- feedback -------------------------------------------------------------------------------------------------------


def _feedback_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model, main=True):
        for index, endpoint in enumerate(record.feedback.endpoints):
            for readout, (dose, margin) in enumerate(endpoint.trajectory, start=1):
                error = abs(endpoint.target - margin)
                yield (
                    key
                    | {"endpoint": index, "readout": readout, "dose": dose, "error": error}
                    | {"tolerance": record.feedback.tolerance}
                )


def _draw_feedback(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups))
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, (condition, of_condition) in enumerate(rows.groupby("condition", sort=True)):
            look = style(index)
            for _, path in of_condition.groupby(["seed", "endpoint"]):
                axis.plot(path["readout"], path["error"], color=look["color"], alpha=0.25, linewidth=0.5)
            mean = of_condition.groupby("readout")["error"].apply(_mean)
            axis.plot(mean.index, mean, label=condition, **look)
        axis.axhline(rows["tolerance"].iloc[0], color="0.6", linewidth=0.8)
        axis.set_yscale("symlog", linthresh=0.01)
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("readouts")
        axis.set_ylabel("|m* − M|, logits")
        axis.legend(title="directions", frameon=False)
    return canvas


FEEDBACK = Figure(
    name="feedback",
    title="Feedback: error by readout",
    caption=(
        f"Distance of the mean margin from the requested one after each readout of the loop{OF_MAIN}: a thin line "
        "per seed and target, a thick one for the mean of the loops still running; the grey line is the tolerance."
    ),
    section="Six-axis protocol, Feedback controllability",
    reads=("six_axis",),
    fields=(*KEY, "endpoint", "readout", "dose", "error", "tolerance"),
    rows=_feedback_rows,
    draw=_draw_feedback,
)


# --- supports -------------------------------------------------------------------------------------------------------


def _support_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model, main=True):
        for layer, component, head in (_SITE.fullmatch(name).groups() for name in record.support):
            yield key | {"layer": int(layer), "component": component, "head": head and int(head)}


def _draw_support(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups))
    for axis, rows in zip(axes, groups.values(), strict=True):
        runs = len(rows[["condition", "seed"]].drop_duplicates())
        layers = range(int(rows["layer"].max()) + 1)
        found: dict[str, Any] = {part: rows[rows["component"] == part]["layer"].value_counts() for part in COMPONENTS}
        bottom = [0.0] * len(layers)
        for index, (component, counts) in enumerate(found.items()):
            if counts.empty:
                continue
            heights = [counts.get(layer, 0) / runs for layer in layers]
            axis.bar(
                layers, heights, bottom=bottom, color=COLOURS[index], label=component, hatch=("", "//", "..")[index]
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axis.set_xlabel("layer")
        axis.set_ylabel("sites per record")
        axis.legend(frameon=False)
    return canvas


SUPPORT = Figure(
    name="support",
    title="Where the selected sites are",
    caption=f"Selected sites by layer and component{OF_MAIN}: mean number per record.",
    section="Six-axis protocol, What every axis needs",
    reads=("six_axis",),
    fields=(*KEY, "layer", "component", "head"),
    rows=_support_rows,
    draw=_draw_support,
)
