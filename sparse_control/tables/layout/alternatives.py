"""How the named alternatives are shown."""

from sparse_control.tables.alternatives import PASSES
from sparse_control.tables.layout.columns import (
    EMPTY,
    Column,
    Layout,
    Row,
    decimal,
    fixed,
    label,
    named,
    small,
    whole,
    yes_no,
)


def _passing(row: Row) -> str:
    if row["passes"] != PASSES:
        return str(row["passes"])
    return f"{row['smallest_k']}" + ("" if row["k_over_d"] is None else f" ({fixed(row['k_over_d'], 2)})")


LAYOUTS: dict[str, Layout] = {
    "alternatives": Layout(
        title="Named alternatives beside plain QB",
        caption=(
            "On calibration facts; none of these is official. Per layer and estimator the smallest k (k/d) that meets "
            "the criteria of the official estimator, or none, and the errors at one common k: E_F, E_vec, C_vec, the "
            "same with the mean activation taken off (centred), E_ISS, and E_vec over that of plain QB with as many "
            "power iterations q. SVD is the best matrix of its rank; an output sketch has no action and no errors. "
            "Held-out activations are of prompt types that no probe was shaped by. Plain QB passes where an attempt "
            "of its ladder does."
        ),
        section="Jacobian-Transported ISS, 12.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Official\nstatus"),
            named("estimator", "Estimator"),
            whole("q", "q"),
            Column("Smallest k", _passing),
            whole("common_k", "at k"),
            decimal("E_F", "E_F"),
            decimal("E_vec", "E_vec"),
            decimal("C_vec", "C_vec", 4),
            decimal("E_vec_centred", "E_vec\ncentred"),
            decimal("E_ISS", "E_ISS", 4),
            decimal("E_vec_over_qb", "E_vec\nover QB", 2),
        ),
    ),
    "alternatives_curve": Layout(
        title="Named alternatives at every rank",
        caption=(
            "On calibration facts; none of these is official. At the preregistered sketch seed, judged by the criteria "
            "of the official estimator."
        ),
        section="Jacobian-Transported ISS, 12.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            label("status", "Official\nstatus"),
            named("estimator", "Estimator"),
            whole("q", "q"),
            whole("p", "p"),
            whole("k", "k"),
            decimal("E_F", "E_F"),
            decimal("E_vec", "E_vec"),
            decimal("C_vec", "C_vec", 4),
            decimal("median_cosine", "Median\ncosine", 4),
            small("median_relative_error", "Median\nrel. error"),
            small("iss_rank_difference", "Rank\ndiff."),
            small("iss_seed_deviation", "Seed\nsd"),
            yes_no("passed", "Passes"),
            Column("Why not", lambda row: EMPTY if row["passed"] else row["reason"] or EMPTY, "l"),
        ),
    ),
}
