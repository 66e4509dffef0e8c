"""Figures that compare: selectors by seed, divergences with the threshold, the source document's figures with ours."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from sparse_control.figures.figure import COLOURS, MARKERS, Figure, legend_below, panels, style
from sparse_control.figures.six_axis import KEY, groups_of, supported, titles
from sparse_control.metrics.preservation import DELTA
from sparse_control.metrics.reachability import rel_tar
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.columns import Row, in_words
from sparse_control.tables.published import PUBLISHED

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

REACHED = 0.40  # the operating choice of Rel_tar
SHOWN = 1.5  # the largest Rel_tar that is drawn as it is


# --- selectors ------------------------------------------------------------------------------------------------------


def _selector_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model):
        read = record.evaluate
        yield key | {"rel_tar": rel_tar(read.source, read.target, read.at_dose(1.0))}


def _draw_selectors(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups), sharey=True)
    selectors = list(dict.fromkeys(frame["selector"]))
    conditions = sorted(set(frame["condition"]), key="PFO".index)
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, condition in enumerate(conditions):
            dots = rows[rows["condition"] == condition]
            shift = (index - (len(conditions) - 1) / 2) * 0.22
            heights = [selectors.index(name) + shift for name in dots["selector"]]
            axis.plot(
                [min(value, SHOWN) for value in dots["rel_tar"]],
                heights,
                linestyle="none",
                color=COLOURS[index],
                marker=MARKERS[index],
                markersize=2.5,
                markerfacecolor=COLOURS[index] if condition == "P" else "none",
                alpha=0.7,
                label=condition,
            )
        axis.axvline(REACHED, color="0.4", linewidth=0.8)
        axis.axvline(1, color="0.75", linewidth=0.6)
        axis.set_xlim(0, SHOWN)
        axis.set_yticks(range(len(selectors)), [in_words(name) for name in selectors])
        axis.set_ylim(len(selectors) - 0.5, -0.5)
        axis.set_xlabel("Rel_tar")
    legend_below(canvas, axes, columns=3, title="directions")
    return canvas


SELECTORS = Figure(
    name="selectors",
    title="Distance left to the target by selector",
    caption=(
        "Rel_tar at dose 1, a mark per seed: 0 is the target, 1 no nearer than the source. Left of the grey line (.40) "
        "the target counts as reached. Values beyond 1.5 are drawn at 1.5."
    ),
    section="Six-axis protocol, Reachability",
    reads=("six_axis",),
    fields=(*KEY, "rel_tar"),
    rows=_selector_rows,
    draw=_draw_selectors,
)


# --- divergences ----------------------------------------------------------------------------------------------------


def _divergence_rows(model: ModelRecords) -> Iterator[Row]:
    for record, key in supported(model):
        if record.condition != "P":
            continue
        for prompt, value in zip(record.preservation.prompts, record.preservation.kl, strict=True):
            yield key | {"prompt": prompt, "kl": value}


def _draw_divergence(frame: pd.DataFrame) -> "Canvas":
    groups = groups_of(frame)
    canvas, axes = panels(titles(groups), sharey=True)
    selectors = list(dict.fromkeys(frame["selector"]))
    for axis, rows in zip(axes, groups.values(), strict=True):
        for selector, values in rows.groupby("selector", sort=False)["kl"]:
            ordered = sorted(max(value, 1e-6) for value in values)
            share = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
            look = style(selectors.index(selector)) | {"marker": ""}
            axis.step(ordered, share, where="post", label=in_words(selector), **look)
        axis.axvline(DELTA, color="0.4", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xlabel("off-target KL at dose 1, nats")
        axis.set_ylabel("share of prompts")
    legend_below(canvas, axes, columns=3)
    return canvas


DIVERGENCE = Figure(
    name="divergence",
    title="Off-target divergence, prompt by prompt",
    caption=(
        "Share of off-target prompts of all seeds whose next-token distribution moves by at most so much at dose 1, "
        "directions P. The grey line is the threshold δ = .001; divergences below 1e-6 are drawn there."
    ),
    section="Six-axis protocol, Off-target preservation",
    reads=("six_axis",),
    fields=(*KEY, "prompt", "kl"),
    rows=_divergence_rows,
    draw=_draw_divergence,
)


# --- the source document --------------------------------------------------------------------------------------------

STATISTICS = ("rel_tar_mean", "ratio_mean", "rho_mean", "refit_mean", "frozen_mean", "mae")


def _published_rows(records: Records) -> Iterator[Row]:
    """The means that the source document prints, beside ours of the same task, selector and condition."""
    for row in PUBLISHED.across(records):
        number = re.fullmatch(r"[-−]?\d*\.?\d+", row["published"] or "")
        if row["statistic"] in STATISTICS and number and row["ours"] is not None:
            names = ("model", "task", "selector", "condition", "statistic", "ours")
            yield {name: row[name] for name in names} | {"published": float(number[0].replace("−", "-"))}


def _draw_published(frame: pd.DataFrame) -> "Canvas":
    groups = dict(list(frame.groupby("statistic", sort=False)))
    canvas, axes = panels([in_words(name) for name in groups])
    models = list(dict.fromkeys(frame["model"]))
    for axis, rows in zip(axes, groups.values(), strict=True):
        pairs = list(dict.fromkeys(zip(rows["task"], rows["condition"], strict=True)))
        for index, model in enumerate(models):
            ours = rows[rows["model"] == model]
            where = [pairs.index(pair) for pair in zip(ours["task"], ours["condition"], strict=True)]
            axis.plot(ours["ours"], where, linestyle="none", label=model, color=COLOURS[index], marker=MARKERS[index])
        where = [pairs.index(pair) for pair in zip(rows["task"], rows["condition"], strict=True)]
        axis.plot(
            rows["published"], where, linestyle="none", label="source document (another model)", color="0",
            marker="|", markersize=9,
        )  # fmt: skip
        axis.set_yticks(range(len(pairs)), [f"{in_words(task)}, {condition}" for task, condition in pairs])
        axis.set_ylim(len(pairs) - 0.5, -0.5)
        axis.set_xlim(min(0, axis.get_xlim()[0]))
    legend_below(canvas, axes, columns=2)
    return canvas


PUBLISHED_BESIDE_OURS = Figure(
    name="published",
    title="Means of the source document beside ours",
    caption=(
        "Each mean that the source document prints and we have measured, by task and direction rule. Its model is "
        "another one than ours; the two are never combined."
    ),
    section="Six-axis protocol, the six axis tables",
    reads=PUBLISHED.reads,
    fields=("model", "task", "selector", "condition", "statistic", "published", "ours"),
    across=_published_rows,
    draw=_draw_published,
)
