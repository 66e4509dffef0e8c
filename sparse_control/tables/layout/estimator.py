"""How the validation of the estimator is shown."""

from itertools import groupby

from sparse_control.tables.layers import OUTSIDE, VALIDATED
from sparse_control.tables.layout.columns import (
    EMPTY,
    Column,
    Layout,
    Row,
    decimal,
    label,
    named,
    small,
    whole,
    with_deviation,
    yes_no,
)


def _columns_kept(row: Row) -> str:
    return f"{row['r']}, exact" if row["r_is_d"] else str(row["r"])


def _main_ranks(rows: list[Row]) -> list[Row]:
    """Per layer of the window, Gaussian probes: for each k the smallest p, at the ends of q; and the largest r.

    Beside the plain ones stands the error with Rademacher probes.
    """
    key = ("layer", "estimator", "p", "q", "k")
    rademacher = {tuple(row[name] for name in key): row["E_vec"] for row in rows if row["probe"] == "rademacher"}
    window = [row for row in rows if row["probe"] == "gaussian" and row["status"] != OUTSIDE]
    window = [row | {"E_vec_rademacher": rademacher.get(tuple(row[name] for name in key))} for row in window]
    chosen = []
    for _, group in groupby(window, key=lambda row: (row["layer"], row["estimator"])):
        layer = sorted(group, key=lambda row: (row["q"], row["k"], row["p"]))
        first_p = {k: min(row["p"] for row in layer if row["k"] == k) for k in {row["k"] for row in layer}}
        ends = {layer[0]["q"], layer[-1]["q"]}
        widest = max(layer, key=lambda row: row["r"])  # the first of the widest: smallest q, k and p
        chosen += [row for row in layer if row is widest or (row["q"] in ends and row["p"] == first_p[row["k"]])]
    return chosen


CRITERIA = {  # as the reasons of the ladder name them
    "median cosine": "cosine",
    "median relative error": "error",
    "iss rank difference": "rank",
    "iss seed deviation": "seeds",
}


def _failed(row: Row) -> str:
    """The criteria that failed, in short; other remarks as they are."""
    reason = row["reason"]
    if reason is None:
        return EMPTY
    short = [word for part in reason.split("; ") for name, word in CRITERIA.items() if part.startswith(name)]
    return ", ".join(short) if len(short) == len(reason.split("; ")) else reason


def _remark(row: Row) -> str:
    """What failed; that r = d is said in the column of r."""
    return EMPTY if row["r_is_d"] and row["status"] == VALIDATED else _failed(row)


def _ends_of_steps(rows: list[Row]) -> list[Row]:
    """Per layer the last attempt of each step of the ladder."""
    last = {(row["layer"], row["step"]): row["attempt"] for row in rows}
    return [row for row in rows if row["attempt"] == last[row["layer"], row["step"]]]


def _window(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["status"] != OUTSIDE]


LAYOUTS: dict[str, Layout] = {
    "estimator_validation": Layout(
        title="Estimator validation",
        caption=(
            "On calibration facts; not the official ISS. Per layer the frozen estimator, or the last one tried where "
            "none meets all criteria (unresolved): rank k, k/d, oversampling p, columns r = min(k + p, d), power "
            "iterations q, corpus size n, last step of the failure ladder and rungs tried. An estimator with r = d is "
            "exact up to rounding and not low rank; it is marked so. Median cosine (≥ {median_cosine}) and median "
            "relative error (≤ {median_relative_error}) of transported held-out activations, |ISS(2k) − ISS(k)| (≤ "
            "{iss_rank_difference}), sample sd of ISS over sketch seeds (≤ {iss_seed_deviation}). Remark: the "
            "criteria that failed, or what is to be known of an estimator that passed. Every attempt stands in the "
            "table Failure ladder."
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
            Column("Remark", _remark, "w26"),
        ),
    ),
    "ladder": Layout(
        title="Failure ladder",
        caption=(
            "On calibration facts; not the official ISS. Attempts at the estimator of a layer, in order: larger k, "
            "larger p, larger n, power iterations; the first that meets all criteria is frozen, and where none does "
            "the layer is unresolved. Shown: the last attempt of each step; ladder.csv has every attempt with its "
            "reason in full."
        ),
        section="Jacobian-Transported ISS, 12.1",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("attempt", "Attempt"),
            label("step", "Step"),
            whole("k", "k"),
            whole("p", "p"),
            Column("r", _columns_kept),
            whole("q", "q"),
            whole("n", "n"),
            decimal("median_cosine", "Median\ncosine", 4),
            small("median_relative_error", "Median\nrel. error"),
            small("iss_rank_difference", "Rank\ndiff."),
            small("iss_seed_deviation", "Seed\nsd"),
            Column("Failed", lambda row: "none" if row["passed"] else _failed(row), "l"),
        ),
        printed=_ends_of_steps,
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
            "and not a bound on these columns. Rad.: E_vec with Rademacher probes, otherwise Gaussian ones. Shown: "
            "layers of the window, for each k the smallest p, at the smallest and the largest q, and the largest r; "
            "rank_curve.csv has every layer and row."
        ),
        section="Jacobian-Transported ISS, 5.4 and 16",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            Column("r", _columns_kept),
            decimal("E_F", "E_F"),
            decimal("svd_floor_E_F", "best\nE_F"),
            with_deviation("E_vec", "E_vec_sd", "E_vec"),
            decimal("E_vec_rademacher", "Rad.\nE_vec"),
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
            "On calibration facts; not the official ISS. Median cosine and median relative error of activations "
            "transported with n and with 2n corpus prompts, the difference in ISS between them, whether the fixed "
            "rule holds (cosine ≥ {corpus_cosine} and difference ≤ {corpus_iss_difference}), and the n it chooses: "
            "the smallest at which it holds, else the largest."
        ),
        section="Jacobian-Transported ISS, 8.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("n", "n"),
            decimal("cosine_to_2n", "Cosine to 2n", 4),
            small("relative_error_to_2n", "Rel. error to 2n"),
            decimal("iss_difference", "|ISS(n) − ISS(2n)|", 4),
            yes_no("converged", "Holds"),
            yes_no("chosen", "Chosen"),
        ),
    ),
    "corpus_halves": Layout(
        title="Split halves of the corpus, the noise floor",
        caption=(
            "On calibration facts; not the official ISS. The exact averages over two disjoint halves of the corpus, n "
            "prompts each, against each other: no error of an estimator below these is a claim about the population. "
            "Shown: layers of the window; corpus_halves.csv has every layer."
        ),
        section="Jacobian-Transported ISS, 8",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("n", "n"),
            decimal("E_F", "E_F"),
            decimal("E_vec", "E_vec"),
            decimal("C_vec", "C_vec", 4),
            decimal("E_vec_centred", "E_vec\ncentred"),
            decimal("C_vec_centred", "C_vec\ncentred", 4),
            decimal("E_ISS", "E_ISS", 4),
        ),
        printed=_window,
    ),
    "seed_stability": Layout(
        title="Sketch seeds",
        caption=(
            "On calibration facts; not the official ISS. Mean and sample sd over sketch seeds of every registered "
            "metric of transported states and of the agreement with direct actions, per layer at the estimator "
            "setting of the validation table. Reported is the preregistered seed where the sd of ISS is ≤ "
            "{negligible_seed_deviation}, else the mean over seeds (column reporting of estimator_validation.csv)."
        ),
        section="Jacobian-Transported ISS, 9",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Status"),
            whole("k", "k"),
            whole("p", "p"),
            whole("q", "q"),
            whole("n", "n"),
            named("metric", "Metric"),
            whole("seeds", "Seeds"),
            small("mean", "Mean"),
            small("sd", "sd"),
        ),
    ),
}
