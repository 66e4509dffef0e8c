"""How each table is shown: columns, headings, rounding and captions. The only place that rounds a number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from typing import Any

import pandas as pd

from sparse_control.artifact.tables import Records, preset

EMPTY = "—"
LARGE = Decimal("1e15")  # from here on the decimals of a double are not its own
Row = dict[str, Any]


def fixed(value: float | None, digits: int) -> str:
    """A number with `digits` decimals, halves rounded away from zero as people do; an em-dash for None.

    From 1e15 on in powers of ten, with `digits` decimals of the mantissa.
    """
    if value is None:
        return EMPTY
    number = Decimal(repr(float(value)))
    if abs(number) >= LARGE:
        return f"{number:.{digits}e}".replace("-", "−")
    rounded = number.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", "−")


def significant(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, in powers of ten below 0.0001 and from 1e15; an em-dash for None."""
    if value is None:
        return EMPTY
    number = Decimal(repr(float(value)))
    if number == 0:
        return "0"
    if abs(number) >= LARGE:
        return fixed(value, digits - 1)
    exponent = number.adjusted()
    rounded = number.quantize(Decimal(1).scaleb(exponent - digits + 1), rounding=ROUND_HALF_UP)
    if exponent >= -4:
        return fixed(float(rounded), max(0, digits - 1 - rounded.adjusted()))
    mantissa = fixed(float(rounded.scaleb(-rounded.adjusted())), digits - 1)
    return f"{mantissa}e−{-rounded.adjusted()}"


@dataclass(frozen=True)
class Column:
    """One shown column: its heading (line breaks allowed), the text of a row, left or right."""

    heading: str
    text: Callable[[Row], str]
    align: str = "r"


def label(name: str, heading: str) -> Column:
    """A column of words; None is an em-dash."""
    return Column(heading, lambda row: EMPTY if row[name] is None else str(row[name]), "l")


def whole(name: str, heading: str) -> Column:
    """A column of whole numbers."""
    return Column(heading, lambda row: EMPTY if row[name] is None else str(row[name]))


def decimal(name: str, heading: str, digits: int = 3) -> Column:
    """A column of numbers with fixed decimals."""
    return Column(heading, lambda row: fixed(row[name], digits))


def small(name: str, heading: str) -> Column:
    """A column of numbers over several orders of magnitude."""
    return Column(heading, lambda row: significant(row[name]))


def _of(count: Any, total: Any) -> str:
    return EMPTY if count is None or total is None else f"{count}/{total}"


def out_of(name: str, total: str, heading: str) -> Column:
    """A count over its total."""
    return Column(heading, lambda row: _of(row[name], row[total]))


def with_deviation(name: str, deviation: str, heading: str, digits: int = 3) -> Column:
    """A mean with its sample standard deviation, where there is one."""

    def text(row: Row) -> str:
        spread = "" if row[deviation] is None else f" ± {fixed(row[deviation], digits)}"
        return fixed(row[name], digits) + spread

    return Column(heading, text)


def interval(name: str, heading: str, digits: int = 3) -> Column:
    """A confidence interval."""

    def text(row: Row) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return EMPTY if low is None else f"[{fixed(low, digits)}, {fixed(high, digits)}]"

    return Column(heading, text)


def with_count(value: Callable[[Row], str], count: Callable[[Row], str], heading: str) -> Column:
    """A number, and behind it in parentheses the count that goes with it."""

    def text(row: Row) -> str:
        first, second = value(row), count(row)
        return first if second == EMPTY else f"{first} ({second})"

    return Column(heading, text)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One table as shown."""

    title: str
    caption: str  # one sentence: what the columns are
    section: str  # of the source document
    group: str  # setup, iss, protocol or published
    columns: tuple[Column, ...]
    printed: Callable[[list[Row]], list[Row]] = list  # the rows that are shown; the .csv has all


NAMES = {
    "ioi": "IOI",
    "sentiment": "Sentiment",
    "refusal": "Refusal",
    "mcqa_stem": "MCQA STEM",
    "mcqa_humanities": "MCQA Humanities",
    "coverage_driver": "Coverage-Driver",
    "driver_omp": "Driver-OMP",
    "rel_tar_mean": "mean Rel_tar",
    "passes_0.40": "seeds ≤ .40",
    "ratio_mean": "mean ratio",
    "passes": "seeds ≥ 2",
    "rho_mean": "mean ρ",
    "ordered": "seeds ρ ≥ .95",
    "reversed": "seeds ρ ≤ −.95",
    "mae": "MAE",
    "median": "median KL",
    "mean": "mean KL",
    "seed_mean_passes": "seeds ≤ .001",
    "every_prompt_passes": "seeds, every prompt ≤ .001",
    "refit_mean": "refit",
    "frozen_mean": "frozen",
}  # fmt: skip


def named(name: str, heading: str) -> Column:
    """A column of identifiers, in words."""
    return Column(heading, lambda row: EMPTY if row[name] is None else in_words(row[name]), "l")


def in_words(identifier: str) -> str:
    """The name by which the paper calls a task, selector, statistic or relation."""
    return NAMES.get(identifier, identifier.replace("_", " "))


HEAD = (named("task", "Task"), named("selector", "Selector"), label("condition", "Dir."))
STATUS = Column("Seeds", lambda row: str(row["n_seeds"]) if row["n_seeds"] else row["status"])
MODEL = label("model", "Model")


def _columns_kept(row: Row) -> str:
    return f"{row['r']}, exact" if row["r_is_d"] else str(row["r"])


def _main_ranks(rows: list[Row]) -> list[Row]:
    """Per layer: for each k the smallest p, at the smallest and the largest q; and the largest r."""
    chosen = []
    for _, group in groupby(rows, key=lambda row: (row["layer"], row["estimator"], row["probe"])):
        layer = sorted(group, key=lambda row: (row["q"], row["k"], row["p"]))
        first_p = {k: min(row["p"] for row in layer if row["k"] == k) for k in {row["k"] for row in layer}}
        ends = {layer[0]["q"], layer[-1]["q"]}
        widest = max(layer, key=lambda row: row["r"])  # the first of the widest: smallest q, k and p
        chosen += [row for row in layer if row is widest or (row["q"] in ends and row["p"] == first_p[row["k"]])]
    return chosen


COUNT_OF = {"rel_tar_mean": "passes_0.40", "ratio_mean": "passes", "rho_mean": "ordered"}


def _with_ours(rows: list[Row]) -> list[Row]:
    """Rows that we have a figure of; a count stands behind the mean it belongs to."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("source_table", "task", "selector", "condition", "model"))

    counts = {(*key(row), row["statistic"]): row for row in rows if row["ours"] is not None}
    folded = {(*key(row), COUNT_OF[row["statistic"]]) for row in counts.values() if row["statistic"] in COUNT_OF}
    return [
        row | {"count": counts.get((*key(row), COUNT_OF.get(row["statistic"])))}
        for place, row in counts.items()
        if place not in folded
    ]


def _and_count(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: text(row) + (f" ({text(row['count'])})" if row["count"] else "")


def _theirs(row: Row) -> str:
    return row["published"] or row["published_note"] or EMPTY


def _task_in_words(quantity: str) -> str:
    task, colon, rest = quantity.partition(":")
    return f"{in_words(task)}{colon}{rest}" if colon else quantity


def _ours(row: Row) -> str:
    if row["ours"] is None:
        return EMPTY
    if row["ours_of"] is not None:
        return _of(row["ours"], row["ours_of"])
    return significant(row["ours"])


LAYOUTS: dict[str, Layout] = {
    "setup": Layout(
        title="What was measured",
        caption="Sizes as the records have them; pairs of a task are counted over its seeds.",
        section="Jacobian-Transported ISS, 8, 9 and 13; Six-axis protocol, What every axis needs",
        group="setup",
        columns=(
            Column("Quantity", lambda row: _task_in_words(row["quantity"]), "l"),
            label("value", "Value"),
        ),
    ),
    "summary": Layout(
        title="Six numbers, not one",
        caption=(
            "One row per task, one column per axis, Coverage-Driver with evaluation-pair directions (P): Rel_tar and "
            "reversal ratio (mean over seeds, passing seeds), curves with ρ ≥ .95, feedback hits, median off-target "
            "KL in nats (seeds whose mean is ≤ .001), recovery on unseen pairs with refitted and with frozen "
            "strengths."
        ),
        section="Six-axis protocol, Six numbers, not one",
        group="protocol",
        columns=(
            named("task", "Task"),
            STATUS,
            with_count(
                lambda r: fixed(r["rel_tar_mean"], 3), lambda r: _of(r["passes_0.40"], r["n_seeds"]), "01 Reach\n≤ .4"
            ),
            with_count(
                lambda r: fixed(r["ratio_mean"], 2), lambda r: _of(r["passes"], r["n_seeds"]), "02 Reversal\n≥ 2"
            ),
            Column(
                "03 Dose\nρ ≥ .95", lambda r: _of(r["ordered"], r["n_seeds"]) if r["ordered"] is not None else EMPTY
            ),
            out_of("hits", "endpoints", "04 Feedback\nhits"),
            with_count(
                lambda r: significant(r["median"]),
                lambda r: _of(r["seed_mean_passes"], r["n_seeds"]),
                "05 Preservation\nmedian KL",
            ),
            decimal("refit_mean", "06 Reuse\nrefit"),
            decimal("frozen_mean", "06 Reuse\nfrozen"),
        ),
    ),
    "reachability": Layout(
        title="Reachability",
        caption=(
            "Rel_tar at dose 1 (distance left to the target over the source-to-target distance; mean ± sample sd over "
            "seeds) and the number of seeds at or below each threshold; .40 is the operating choice."
        ),
        section="Six-axis protocol, Reachability",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            with_deviation("rel_tar_mean", "rel_tar_sd", "Rel_tar"),
            *(whole(f"passes_{e}", f"≤ {e[1:]}") for e in ("0.30", "0.35", "0.40", "0.45", "0.50")),
        ),
    ),
    "signed_reversal": Layout(
        title="Signed reversal",
        caption=(
            "Distance of the reversed output from the target over its distance from the source (mean ± sample sd over "
            "seeds with a finite ratio), seeds with an infinite (x/0) or undefined (0/0) ratio, and seeds that pass "
            "with a ratio ≥ 2."
        ),
        section="Six-axis protocol, Signed reversal",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            with_deviation("ratio_mean", "ratio_sd", "Ratio"),
            whole("infinite", "Infinite"),
            whole("undefined", "Undefined"),
            out_of("passes", "n_seeds", "Pass"),
        ),
    ),
    "dose_response": Layout(
        title="Dose response",
        caption=(
            "Spearman correlation of target progress with dose over the ten doses: mean over seeds, seeds ordered (ρ "
            "≥ .95), ordered the wrong way (ρ ≤ −.95, never a pass), and undefined (constant curve)."
        ),
        section="Six-axis protocol, Dose response",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            decimal("rho_mean", "Mean ρ"),
            whole("ordered", "ρ ≥ .95"),
            whole("reversed", "ρ ≤ −.95"),
            whole("undefined", "Undefined"),
        ),
    ),
    "feedback": Layout(
        title="Feedback controllability",
        caption=(
            "Endpoints over all seeds that end within the tolerance (logits) of the requested margin, mean absolute "
            "terminal error, mean number of readouts, endpoints already met at dose zero, hits among the others, "
            "endpoints whose dose was held at its limit, and endpoints whose loop diverged."
        ),
        section="Six-axis protocol, Feedback controllability",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            out_of("hits", "endpoints", "Hits"),
            decimal("mae", "MAE"),
            decimal("readouts_mean", "Readouts", 1),
            whole("already_met", "Already\nmet"),
            whole("hits_not_already_met", "Other\nhits"),
            Column(
                "Clipped,\ndiverged",
                lambda row: EMPTY if row["clipped"] is None else f"{row['clipped']}, {row['diverged']}",
            ),
            Column("Tol.", lambda row: EMPTY if row["tolerance"] is None else f"{row['tolerance']:g}"),
        ),
    ),
    "preservation": Layout(
        title="Off-target preservation",
        caption=(
            "KL(unpatched || patched) over the full vocabulary in nats on the fixed off-target panel at dose 1, over "
            "all prompt-seed observations: mean, median, nearest-rank P95, maximum; seeds whose mean, and whose every "
            "prompt, is ≤ .001."
        ),
        section="Six-axis protocol, Off-target preservation",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            whole("n", "Obs."),
            small("mean", "Mean"),
            small("median", "Median"),
            small("p95", "P95"),
            small("max", "Max"),
            out_of("seed_mean_passes", "n_seeds", "Seed\nmean"),
            out_of("every_prompt_passes", "n_seeds", "Every\nprompt"),
        ),
    ),
    "reuse": Layout(
        title="Held-out reuse",
        caption=(
            "Recovery of the source-to-target gap in the mean margin on unseen pairs (mean ± sample sd over seeds): "
            "strengths refitted there, and the whole intervention frozen; seeds without a gap. No threshold."
        ),
        section="Six-axis protocol, Held-out reuse",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            with_deviation("refit_mean", "refit_sd", "Refit"),
            with_deviation("frozen_mean", "frozen_sd", "Frozen"),
            whole("no_gap", "No gap"),
        ),
    ),
    "published": Layout(
        title="Figures of the source document beside ours",
        caption=(
            "Source document: a figure as printed there, measured by its authors on another model than ours. Ours: "
            "the same statistic of the same task, selector and direction rule on the model named here. The two "
            "columns are never combined. Shown: what we have a figure of, counts in parentheses behind their mean; "
            "published.csv has every figure of the source document."
        ),
        section="Six-axis protocol, the six axis tables and the summary table",
        group="published",
        columns=(
            named("source_table", "Table"),
            named("task", "Task"),
            named("selector", "Selector"),
            label("condition", "Dir."),
            Column("Statistic", _and_count(lambda row: in_words(row["statistic"])), "l"),
            Column("Source document\n(another model)", _and_count(_theirs)),
            Column("Ours", _and_count(_ours)),
        ),
        printed=_with_ours,
    ),
    "official_iss": Layout(
        title="Official ISS and Raw-ISS",
        caption=(
            "ISS on Jacobian-transported states beside Raw-ISS (identity transport, an ablation and not the official "
            "metric), Raw-ISS at the regularisation of ISS, and the regularisations; mean over facts. The official "
            "number is the row of the validated layers; an unresolved layer has no ISS, and over all layers there is "
            "only the ablation. 95 % BCa intervals of the relation-clustered bootstrap (benchmark sampling alone) are "
            "for these two aggregate rows only."
        ),
        section="Jacobian-Transported ISS, 10, 11 and 18",
        group="iss",
        columns=(
            label("layer", "Layer"),
            label("status", "Status"),
            decimal("iss", "ISS"),
            interval("iss_bca", "95 % interval"),
            decimal("raw_iss", "Raw-ISS"),
            interval("raw_iss_bca", "95 % interval"),
            decimal("raw_iss_matched_lam", "Raw-ISS\nmatched λ"),
            small("lam_rel_iss", "λ rel\nISS"),
            small("lam_rel_raw", "λ rel\nRaw"),
            whole("n_facts", "Facts"),
        ),
    ),
    "relations": Layout(
        title="Heterogeneity between relations",
        caption=(
            "ISS (mean over validated layers) and Raw-ISS (over all layers asked for) of each relation, and its "
            "number of facts."
        ),
        section="Jacobian-Transported ISS, 18",
        group="iss",
        columns=(
            named("relation", "Relation"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
            whole("n_facts", "Facts"),
        ),
    ),
    "lam_sweep": Layout(
        title="ISS over the regularisation",
        caption=(
            "ISS and Raw-ISS of each layer at each relative regularisation λ of the whitening; only the frozen λ is "
            "official."
        ),
        section="Jacobian-Transported ISS, 10.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            Column("λ rel", lambda row: f"{row['lam_rel']:g}"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
        ),
    ),
    "estimator_validation": Layout(
        title="Estimator validation",
        caption=(
            "On calibration facts; not the official ISS. Per layer the frozen estimator, or the last one tried where "
            "none meets all criteria (unresolved): rank k, k/d, oversampling p, columns r = min(k + p, d), power "
            "iterations q, corpus size n, last step of the failure ladder and rungs tried. An estimator with r = d is "
            "exact up to rounding and not low rank; it is marked so. Median cosine (≥ .99) and median relative error "
            "(≤ .05) of transported held-out activations, |ISS(2k) − ISS(k)| (≤ .01), sample sd of ISS over sketch "
            "seeds (≤ .005)."
        ),
        section="Jacobian-Transported ISS, 7 and 12",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("k", "k"),
            decimal("k_over_d", "k/d", 2),
            whole("p", "p"),
            Column("r", _columns_kept),
            whole("q", "q"),
            whole("n", "n"),
            label("step", "Step"),
            whole("rungs", "Rungs"),
            decimal("median_cosine", "Median\ncosine", 4),
            small("median_relative_error", "Median\nrel. error"),
            small("iss_rank_difference", "Rank\ndiff."),
            small("iss_seed_deviation", "Seed\nsd"),
        ),
    ),
    "rank_curve": Layout(
        title="Low-rank estimators against the full empirical reference (Experiment A)",
        caption=(
            "On calibration facts; not the official ISS. Relative Frobenius error E_F, mean relative error E_vec and "
            "mean cosine C_vec of transported held-out activations (centred: their mean taken off), E_ISS = |ISS full "
            "− ISS k| and the Spearman correlation ρ fact of per-fact ISS, means over sketch seeds (± sample sd); "
            "best: the same error of the best rank-r matrix; r = d is exact, not low rank. All errors are against the "
            "average over this finite corpus, to which a validated layer is faithful. Corpus error is separate (table "
            "Corpus size); split halves: E_vec between the averages over two corpus halves, the corpus error at n/2 "
            "and not a bound on these columns. Shown: for each k the smallest p, at the smallest and the largest q, "
            "and the largest r; rank_curve.csv has every row."
        ),
        section="Jacobian-Transported ISS, 5.4 and 16",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            Column("r", _columns_kept),
            decimal("E_F", "E_F"),
            decimal("svd_floor_E_F", "best\nE_F"),
            with_deviation("E_vec", "E_vec_sd", "E_vec"),
            decimal("svd_floor_E_vec", "best\nE_vec"),
            decimal("noise_floor_E_vec", "halves\nE_vec"),
            decimal("C_vec", "C_vec", 4),
            decimal("C_vec_centred", "C_vec\ncentred", 4),
            decimal("E_ISS", "E_ISS", 4),
            decimal("rho_fact", "ρ fact"),
        ),
        printed=_main_ranks,
    ),
    "corpus_convergence": Layout(
        title="Corpus size",
        caption=(
            "On calibration facts; not the official ISS. Cosine of activations transported with n and with 2n corpus "
            "prompts, and the difference in ISS between them."
        ),
        section="Jacobian-Transported ISS, 8.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            whole("n", "n"),
            decimal("cosine_to_2n", "Cosine to 2n", 4),
            decimal("iss_difference", "|ISS(n) − ISS(2n)|", 4),
        ),
    ),
    "seed_stability": Layout(
        title="Sketch seeds",
        caption=(
            "On calibration facts; not the official ISS. Mean and sample sd over sketch seeds of each metric, per "
            "layer at the estimator setting of the validation table."
        ),
        section="Jacobian-Transported ISS, 9",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            named("metric", "Metric"),
            whole("seeds", "Seeds"),
            small("mean", "Mean"),
            small("sd", "sd"),
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A table ready for a template: nothing in it but strings."""

    name: str
    group: str
    title: str
    caption: str
    headings: tuple[str, ...]
    aligns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def shown(name: str, frame: pd.DataFrame, records: Records) -> Shown:
    """Round and caption one table."""
    layout = LAYOUTS[name]
    models = sorted({model for model in frame["model"] if model is not None})
    columns = ((MODEL,) if len(models) > 1 else ()) + layout.columns
    rows = layout.printed(frame.to_dict("records"))
    facts = [layout.caption, f"Model: {', '.join(models) or 'none measured'}."]
    if layout.group in ("protocol", "published"):
        facts.append(f"Seeds: {_list({record.seed for record in records.measurements})}.")
    elif name in ("rank_curve", "seed_stability"):
        facts.append(f"Sketch seeds: {_list(_sketch_seeds(name, records))}.")
    facts.append(f"Source document: {layout.section}.")
    return Shown(
        name=name,
        group=layout.group,
        title=layout.title,
        caption=" ".join(facts),
        headings=tuple(column.heading for column in columns),
        aligns=tuple(column.align for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
    )


def headline(records: Records) -> str:
    """What the records are of: models and preset."""
    models = {record.model for record in records.measurements}
    models |= {records.iss.freeze.model} if records.iss.freeze else set()
    chosen = preset(records)
    return (", ".join(sorted(models)) or "no model measured") + (f", preset {chosen}" if chosen else "")


def _sketch_seeds(name: str, records: Records) -> set[int]:
    if name == "rank_curve":
        return {row.seed for row in records.iss.comparison.rows} if records.iss.comparison else set()
    return {seed for row in records.iss.seed_stability for seed in row.seeds}


def _list(numbers: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


def score_rows(axes: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """The six axes of one intervention as (axis, statistic, value, pass), rounded."""
    rows = {
        "reachability": lambda r: (
            "Rel_tar",
            _spread(r, "rel_tar", 3),
            f"{_of(r['passes_0.40'], r['n_seeds'])} ≤ .4",
        ),
        "signed_reversal": lambda r: ("ratio", _spread(r, "ratio", 3), f"{_of(r['passes'], r['n_seeds'])} ≥ 2"),
        "dose_response": lambda r: (
            "mean ρ",
            fixed(r["rho_mean"], 3),
            f"{_of(r['ordered'], r['n_seeds'])} ≥ .95; {r['reversed']} ≤ −.95; {r['undefined']} undefined",
        ),
        "feedback": lambda r: (
            "MAE",
            fixed(r["mae"], 3),
            f"{_of(r['hits'], r['endpoints'])} hits; {r['already_met']} already met",
        ),
        "preservation": lambda r: (
            "median KL",
            significant(r["median"]),
            f"{_of(r['seed_mean_passes'], r['n_seeds'])} seed mean, "
            f"{_of(r['every_prompt_passes'], r['n_seeds'])} every prompt",
        ),
        "reuse": lambda r: ("refit, frozen", f"{_spread(r, 'refit', 3)}, {_spread(r, 'frozen', 3)}", "no threshold"),
    }
    return [(axis, *rows[axis](r)) if r["n_seeds"] else (axis, "not measured", "", "") for axis, r in axes.items()]


def _spread(row: Row, name: str, digits: int) -> str:
    return with_deviation(f"{name}_mean", f"{name}_sd", "", digits).text(row)
