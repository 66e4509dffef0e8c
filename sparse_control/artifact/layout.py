"""How each table is shown: columns, headings, rounding and captions. The only place that rounds a number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pandas as pd

from sparse_control.artifact.tables import Records

EMPTY = "—"
Row = dict[str, Any]


def fixed(value: float | None, digits: int) -> str:
    """A number with `digits` decimals, halves rounded away from zero as people do; an em-dash for None."""
    if value is None:
        return EMPTY
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", "−")


def significant(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, in powers of ten below 0.0001; an em-dash for None."""
    if value is None:
        return EMPTY
    number = Decimal(repr(float(value)))
    if number == 0:
        return "0"
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
    group: str  # iss, protocol or published
    columns: tuple[Column, ...]


HEAD = (label("task", "Task"), label("selector", "Selector"), label("condition", "Dir."))
STATUS = Column("Seeds", lambda row: str(row["n_seeds"]) if row["n_seeds"] else row["status"])
MODEL = label("model", "Model")


def _ours(row: Row) -> str:
    if row["ours"] is None:
        return EMPTY
    if row["ours_of"] is not None:
        return _of(row["ours"], row["ours_of"])
    return significant(row["ours"])


LAYOUTS: dict[str, Layout] = {
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
            label("task", "Task"),
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
            "the same statistic of the same task, selector and direction rule on the model named here; an em-dash "
            "where we have none. The two columns are never combined."
        ),
        section="Six-axis protocol, the six axis tables and the summary table",
        group="published",
        columns=(
            label("source_table", "Table"),
            label("task", "Task"),
            label("selector", "Selector"),
            label("condition", "Dir."),
            label("statistic", "Statistic"),
            Column("Source document\n(another model)", lambda r: r["published"] or (r["published_note"] or EMPTY)),
            Column("Ours", _ours),
        ),
    ),
    "official_iss": Layout(
        title="Official ISS and Raw-ISS",
        caption=(
            "ISS on Jacobian-transported states beside Raw-ISS (identity transport, an ablation and not the official "
            "metric), Raw-ISS at the regularisation of ISS, and the regularisations; mean over facts, with 95 % BCa "
            "intervals of the relation-clustered bootstrap (benchmark sampling alone). The official number is the row "
            "of the validated layers; an unresolved layer has no ISS, and over all layers there is only the ablation."
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
            decimal("lam_rel_iss", "λ rel\nISS"),
            decimal("lam_rel_raw", "λ rel\nRaw"),
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
            label("relation", "Relation"),
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
            "Per layer the frozen estimator, or the last one tried where none meets all criteria (unresolved): rank "
            "k, k/d, oversampling p, columns r (r = d is exact up to rounding), power iterations q, corpus size n, "
            "last step of the failure ladder and rungs tried; median cosine (≥ .99) and median relative error (≤ .05) "
            "of transported held-out activations, |ISS(2k) − ISS(k)| (≤ .01), sample sd of ISS over sketch seeds (≤ "
            ".005)."
        ),
        section="Jacobian-Transported ISS, 7 and 12",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("k", "k"),
            decimal("k_over_d", "k/d", 2),
            whole("p", "p"),
            whole("r", "r"),
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
            "Relative Frobenius error, mean relative error and mean cosine of transported held-out activations, |ISS "
            "full − ISS k| and Spearman of per-fact ISS, means over sketch seeds; beside them the floor of the best "
            "rank-r matrix and the noise floor of two corpus halves against each other, below which nothing is "
            "claimed."
        ),
        section="Jacobian-Transported ISS, 5.4 and 16",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            whole("r", "r"),
            decimal("E_F", "E_F"),
            decimal("svd_floor_E_F", "best\nE_F"),
            with_deviation("E_vec", "E_vec_sd", "E_vec"),
            decimal("svd_floor_E_vec", "best\nE_vec"),
            decimal("noise_floor_E_vec", "noise\nE_vec"),
            decimal("C_vec", "C_vec", 4),
            decimal("C_vec_centred", "C_vec\ncentred", 4),
            decimal("E_ISS", "E_ISS", 4),
            decimal("rho_fact", "ρ fact"),
        ),
    ),
    "corpus_convergence": Layout(
        title="Corpus size",
        caption=(
            "Cosine of activations transported with n and with 2n corpus prompts, and the difference in ISS between "
            "them."
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
            "Mean and sample sd over sketch seeds of each metric, per layer at the estimator setting of the "
            "validation table."
        ),
        section="Jacobian-Transported ISS, 9",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            label("metric", "Metric"),
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
    rows = frame.to_dict("records")
    facts = [layout.caption, f"Model: {', '.join(models) or 'none measured'}."]
    if layout.group != "iss":
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
