"""How the validation of the estimator is shown."""

from itertools import groupby

from sparse_control.artifact.layout.columns import (
    Column,
    Layout,
    Row,
    decimal,
    label,
    named,
    small,
    whole,
    with_deviation,
)


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


LAYOUTS: dict[str, Layout] = {
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
