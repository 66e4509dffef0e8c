"""How ISS on the benchmark is shown."""

from sparse_control.tables.layout.columns import (
    Column,
    Layout,
    Row,
    decimal,
    interval,
    label,
    named,
    signed,
    small,
    whole,
    with_deviation,
)
from sparse_control.tables.official import CALIBRATION_SIGMA, MATCHED, OWN

VARIANT_NAMES = {OWN: "own λ", MATCHED: "λ of ISS", CALIBRATION_SIGMA: "calibration Σ"}


def _by_layer(rows: list[Row]) -> list[Row]:
    """The variants of a layer next to each other."""
    order = list(dict.fromkeys(row["layer"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["layer"]))


LAYOUTS: dict[str, Layout] = {
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
    "robustness": Layout(
        title="ISS minus Raw-ISS under each variant",
        caption=(
            "ISS, Raw-ISS and their difference with each one's own frozen regularisation, with that of ISS for both, "
            "and with the whitening's Σ from the calibration rows instead of the evaluated ones. Over the validated "
            "layers both are means over the same layers. 95 % BCa interval of the paired difference: one resampling "
            "of relations for both (benchmark sampling alone)."
        ),
        section="Jacobian-Transported ISS, 10.2, 11 and 18",
        group="iss",
        columns=(
            label("layer", "Layer"),
            label("status", "Status"),
            Column("Variant", lambda row: VARIANT_NAMES[row["variant"]], "l"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
            signed("difference", "ISS − Raw-ISS"),
            interval("difference_bca", "95 % interval"),
        ),
        printed=_by_layer,
    ),
    "lam_rel_sweep": Layout(
        title="ISS over the regularisation",
        caption=(
            "ISS, Raw-ISS and their difference at each relative regularisation λ of the whitening; only the frozen λ "
            "is official. Over the validated layers all three are means over the same layers."
        ),
        section="Jacobian-Transported ISS, 10.2 and 11",
        group="iss",
        columns=(
            label("layer", "Layer"),
            label("status", "Status"),
            Column("λ rel", lambda row: f"{row['lam_rel']:g}"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
            signed("difference", "ISS − Raw-ISS"),
        ),
    ),
    "per_relation": Layout(
        title="Heterogeneity between relations",
        caption=(
            "ISS (mean over validated layers) and Raw-ISS (over all layers asked for) of each relation, with the "
            "sample sd over its facts, their difference, and its number of facts."
        ),
        section="Jacobian-Transported ISS, 18",
        group="iss",
        columns=(
            named("relation", "Relation"),
            with_deviation("iss", "iss_sd", "ISS"),
            with_deviation("raw_iss", "raw_iss_sd", "Raw-ISS"),
            signed("difference", "ISS − Raw-ISS"),
            whole("n_facts", "Facts"),
        ),
    ),
    "answer_accuracy": Layout(
        title="Answers of the model",
        caption=(
            "Share of benchmark prompts whose first answer token the model gets right, by condition family and by "
            "relation. No fact is left out for it."
        ),
        section="Jacobian-Transported ISS, 10",
        group="iss",
        columns=(label("by", "By"), named("name", "Prompts of"), decimal("share", "Right")),
    ),
}
