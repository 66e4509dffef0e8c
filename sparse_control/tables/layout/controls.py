"""How selectors beside their controls, the gate and the effects check are shown."""

from sparse_control.tables.layout.columns import (
    EMPTY,
    Column,
    Layout,
    Row,
    decimal,
    fixed,
    label,
    named,
    of,
    out_of,
    small,
    whole,
    with_count,
    with_deviation,
)
from sparse_control.tables.layout.protocol import HEAD, STATUS


def _range(row: Row) -> str:
    if row["draws"] is None:
        return EMPTY
    low, middle, high = (fixed(row[f"draw_p{share}"], 2) for share in ("05", "50", "95"))
    return f"{middle} [{low}, {high}], {of(row['draw_passes'], row['draws'])}"


def _additivity(row: Row) -> str:
    return f"{fixed(row['predicted_mean'], 2)}, {fixed(row['measured_mean'], 2)}"


def _pairs(split: str, heading: str) -> Column:
    return out_of(f"{split}_kept", f"{split}_built", heading)


def _why(row: Row) -> str:
    return row["status"] if row["reason"] is None else f"{row['status']}: {row['reason']}"


LAYOUTS: dict[str, Layout] = {
    "gate": Layout(
        title="The baseline gate",
        caption=(
            "Before any intervention, pairs whose gap (target readout less source readout, unpatched) reaches the "
            "minimum, of those built, per split and over seeds; a task that keeps too few in any split is not "
            "supported by the model and never scored. Prompts: the project's own, or the data set they come from."
        ),
        section="Six-axis protocol, What every axis needs",
        group="protocol",
        columns=(
            named("task", "Task"),
            Column("Seeds", lambda row: of(row["n_seeds"], row["n_seeds"] + row["seeds_not_supported"])),
            Column("Gap", lambda row: EMPTY if row["minimum_gap"] is None else f"{row['minimum_gap']:g}"),
            _pairs("fit", "Fit"),
            _pairs("evaluate", "Evaluate"),
            _pairs("reuse", "Reuse"),
            whole("dropped", "Dropped"),
            label("pairs_from", "Pairs"),
            label("off_target_from", "Off-target"),
            Column("Result", _why, "w40"),
        ),
    ),
    "controls": Layout(
        title="Selectors and controls",
        caption=(
            "At the same number of sites (all sites: every candidate): Rel_tar at dose 1 and seeds ≤ .40, share of "
            "pairs moving the wrong way, reversal ratio and seeds ≥ 2, median off-target KL in nats, recovery on unseen "
            "pairs with refitted and with frozen strengths, and progress on the fitting pairs that single effects "
            "predict and that the joint patch has. Random controls stand with their first draw of each seed; over all "
            "draws: median Rel_tar, in brackets the 5th and 95th percentile (nearest rank), draws ≤ .40."
        ),
        section="Six-axis protocol, What every axis needs",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            decimal("sites_mean", "Sites", 1),
            with_deviation("rel_tar_mean", "rel_tar_sd", "Rel_tar", 2),
            out_of("passes_0.40", "n_seeds", "≤ .40"),
            decimal("wrong_way_mean", "Wrong\nway", 2),
            with_count(
                lambda row: fixed(row["ratio_mean"], 2),
                lambda row: of(row["passes"], row["n_seeds"]),
                "Reversal\n≥ 2",
            ),
            small("median", "Median\nKL"),
            decimal("refit_mean", "Refit", 2),
            decimal("frozen_mean", "Frozen", 2),
            Column("Predicted,\nmeasured", _additivity),
            Column("Over draws", _range, "l"),
        ),
    ),
    "effects_check": Layout(
        title="Effects by gradients against patches",
        caption=(
            "What fills the effect columns of the selectors (first order: one gradient; measured: a patch at each site "
            "alone), candidate sites and those left out as no fitting pair has a contrast there, and the correlation of "
            "the two kinds over randomly drawn sites and all fitting pairs, lowest and median over seeds."
        ),
        section="Six-axis protocol, What every axis needs",
        group="protocol",
        columns=(
            named("task", "Task"),
            STATUS,
            named("kind", "Effects"),
            whole("candidates", "Candidate\nsites"),
            whole("without_contrast", "Left\nout"),
            whole("check_sites", "Sites\nchecked"),
            decimal("pearson_min", "Pearson\nlowest"),
            decimal("pearson_median", "Pearson\nmedian"),
            whole("undefined", "Undefined"),
        ),
    ),
}
