"""Figures of internal state stability: by layer, by corpus size, by regularisation, fact by fact."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from sparse_control.figures.figure import COLOURS, MARKERS, Figure, legend_below, panels, style
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import Row
from sparse_control.tables.estimator import CORPUS_CONVERGENCE
from sparse_control.tables.layers import VALIDATED, status_of, statuses
from sparse_control.tables.official import LAM_REL_SWEEP
from sparse_control.tables.sampling import fact_values, intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

METRICS = ("ISS", "Raw-ISS")
OFFICIAL = "official"
CONVERGED = 0.99  # least median cosine of the corpus rule


def _by_model(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return dict(list(frame.groupby("model", sort=False)))


# --- by layer -------------------------------------------------------------------------------------------------------


def _layer_rows(model: ModelRecords) -> Iterator[Row]:
    """Both metrics in every layer of the window, of the model and of its nulls, with the interval of sampling."""
    for study, iss in {OFFICIAL: model.iss, **model.nulls}.items():
        for layer in sorted(statuses(iss)):
            for metric in METRICS:
                found = intervals(iss, list(fact_values(iss, metric, [layer]).values()))
                if found:
                    yield {"study": study, "layer": layer, "metric": metric, "status": status_of(iss, layer), **found}


def _draw_layers(frame: pd.DataFrame) -> "Canvas":
    groups = _by_model(frame)
    canvas, axes = panels(list(groups), sharey=True)
    studies = list(dict.fromkeys(frame["study"]))
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, (study, metric) in enumerate((study, metric) for study in studies for metric in METRICS):
            line = rows[(rows["study"] == study) & (rows["metric"] == metric)]
            if not len(line):
                continue
            look = style(studies.index(study)) | {"linestyle": "-" if metric == "ISS" else ":"}
            if metric != "ISS":
                look["markerfacecolor"] = "none"
            name = metric if study == OFFICIAL else f"{metric}, {study.replace('_', ' ')}"
            axis.plot(line["layer"], line["mean"], label=name, zorder=3 - index / 10, **look)
            if study == OFFICIAL:
                low, high = (line[f"bca_{end}"].astype(float) for end in ("low", "high"))
                axis.fill_between(line["layer"].astype(float), low, high, color=look["color"], alpha=0.12, linewidth=0)
        axis.set_xlabel("layer")
        axis.set_ylabel("mean over facts")
        axis.axhline(0, color="0.6", linewidth=0.6)
    legend_below(canvas, axes, columns=2 if len(groups) == 1 else 3)
    return canvas


LAYERS = Figure(
    name="layers",
    title="ISS and Raw-ISS by layer",
    caption=(
        "ISS of transported states and Raw-ISS of untransported ones, in the model and in its nulls, each at its own "
        "frozen regularisation; mean over facts. Bands: 95 % BCa intervals of the relation-clustered bootstrap. A "
        "layer without a validated estimator has no ISS."
    ),
    section="Jacobian-Transported ISS, 10, 11 and 18",
    reads=("freeze", "actions", "fact_layers", "nulls.freeze", "nulls.actions", "nulls.fact_layers"),
    fields=("study", "layer", "metric", "status", "mean", "percentile_low", "percentile_high", "bca_low", "bca_high"),
    rows=_layer_rows,
    draw=_draw_layers,
)


# --- by corpus size -------------------------------------------------------------------------------------------------


def _draw_corpus(frame: pd.DataFrame) -> "Canvas":
    groups = _by_model(frame)
    canvas, axes = panels(list(groups), sharey=True)
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, (layer, line) in enumerate(rows.groupby("layer")):
            axis.plot(line["n"], 1 - line["cosine_to_2n"].astype(float), label=f"layer {layer}", **style(index))
        axis.axhline(1 - CONVERGED, color="0.4", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("prompts n")
        axis.set_ylabel("1 − median cosine, n to 2n")
    legend_below(canvas, axes, columns=4)
    return canvas


def _corpus_rows(model: ModelRecords) -> Iterator[Row]:
    for row in CORPUS_CONVERGENCE.rows(model):
        if row["cosine_to_2n"] is not None:
            yield row


CORPUS = Figure(
    name="corpus",
    title="Convergence of the corpus average",
    caption=(
        "Median cosine between held-out activations transported by the Jacobians of n and of 2n prompts, as its "
        "distance from 1, a line per layer; below the grey line (.99) that part of the corpus rule holds."
    ),
    section="Jacobian-Transported ISS, 8 and 12",
    reads=CORPUS_CONVERGENCE.reads,
    fields=("layer", "n", "cosine_to_2n", "relative_error_to_2n", "iss_difference", "converged"),
    rows=_corpus_rows,
    draw=_draw_corpus,
)


# --- by regularisation ----------------------------------------------------------------------------------------------


def _draw_lam_rel(frame: pd.DataFrame) -> "Canvas":
    groups = _by_model(frame)
    canvas, axes = panels(list(groups), sharey=True)
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, (layer, line) in enumerate(rows.groupby("layer", sort=False)):
            whole = not layer.isdigit()
            look = {"color": "0", "marker": "o", "linewidth": 2.0} if whole else style(index)
            axis.plot(
                line["lam_rel"], line["difference"], label=layer if whole else f"layer {layer}",
                **look | {"markersize": 3 if whole else 2.5},
            )  # fmt: skip
        axis.axhline(0, color="0.6", linewidth=0.6)
        axis.set_xscale("log")
        axis.set_xlabel("relative regularisation λ")
        axis.set_ylabel("ISS − Raw-ISS")
    legend_below(canvas, axes, columns=2 if len(groups) == 1 else 4)
    return canvas


def _lam_rel_rows(model: ModelRecords) -> Iterator[Row]:
    for row in LAM_REL_SWEEP.rows(model):
        if row["difference"] is not None:
            yield row


LAM_REL = Figure(
    name="regularisation",
    title="ISS minus Raw-ISS by regularisation",
    caption=(
        "The difference between ISS and Raw-ISS where both are whitened with the same relative regularisation λ, by "
        "layer; thick: mean over the validated layers. Above the line, transport makes states more stable."
    ),
    section="Jacobian-Transported ISS, 10.2 and 11",
    reads=LAM_REL_SWEEP.reads,
    fields=LAM_REL_SWEEP.fields,
    rows=_lam_rel_rows,
    draw=_draw_lam_rel,
)


# --- fact by fact ---------------------------------------------------------------------------------------------------


def _fact_rows(model: ModelRecords) -> Iterator[Row]:
    """Both metrics of every fact in the first and in the last validated layer."""
    validated = [layer for layer, status in statuses(model.iss).items() if status == VALIDATED]
    for where, layer in {"first": min(validated, default=None), "last": max(validated, default=None)}.items():
        if layer is not None:
            yield from _facts(model.iss, where, layer)


def _facts(iss: IssRecords, where: str, layer: int) -> Iterator[Row]:
    official, raw = (fact_values(iss, metric, [layer]) for metric in METRICS)
    for fact, (relation, value) in official.items():
        if fact in raw:
            yield {"depth": where, "layer": layer, "relation": relation, "fact": fact} | {
                "iss": value,
                "raw_iss": raw[fact][1],
            }


def _draw_facts(frame: pd.DataFrame) -> "Canvas":
    groups = dict(list(frame.groupby(["model", "layer"], sort=False)))
    several = len({model for model, _ in groups}) > 1
    canvas, axes = panels([f"{model}, layer {layer}" if several else f"layer {layer}" for model, layer in groups])
    relations = list(dict.fromkeys(frame["relation"]))
    for axis, rows in zip(axes, groups.values(), strict=True):
        for index, relation in enumerate(relations):
            points = rows[rows["relation"] == relation]
            axis.plot(
                points["raw_iss"], points["iss"], color=COLOURS[index % len(COLOURS)], linestyle="none",
                marker=MARKERS[index % len(MARKERS)], markersize=2.2, alpha=0.6, markeredgewidth=0.3,
            )  # fmt: skip
        low, high = (bound(axis.get_xlim()[end], axis.get_ylim()[end]) for end, bound in enumerate((min, max)))
        axis.plot([low, high], [low, high], color="0.6", linewidth=0.6)
        axis.set_xlabel("Raw-ISS of a fact")
        axis.set_ylabel("ISS of a fact")
    return canvas


FACTS = Figure(
    name="facts",
    title="ISS of each fact against its Raw-ISS",
    caption=(
        "Every fact in the first and in the last validated layer, a colour and mark per relation; on the line both "
        "metrics are the same."
    ),
    section="Jacobian-Transported ISS, 11",
    reads=("freeze", "actions", "fact_layers"),
    fields=("depth", "layer", "relation", "fact", "iss", "raw_iss"),
    rows=_fact_rows,
    draw=_draw_facts,
)
