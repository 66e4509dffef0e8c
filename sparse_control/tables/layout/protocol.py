"""How the six axes are shown, as tables and as the score of one intervention."""

from typing import Any

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
    significant,
    small,
    whole,
    with_count,
    with_deviation,
)
from sparse_control.tables.protocol import PASSES

HEAD = (named("task", "Task"), named("selector", "Selector"), label("condition", "Dir."))
STATUS = Column("Seeds", lambda row: str(row["n_seeds"]) if row["n_seeds"] else row["status"], "w26")

MAIN = ("driver_omp", "coverage_driver")
CONTROLS_ELSEWHERE = (
    " Shown: the two selectors; the .csv has the controls too, and table Selectors and controls compares them."
)


def main_selectors(rows: list[Row]) -> list[Row]:
    """The rows of the two selectors; every row where there is none of them."""
    return [row for row in rows if row["selector"] in MAIN] or rows


def once_where_unsupported(rows: list[Row]) -> list[Row]:
    """A task that the model does not support stands once, whatever the selector and direction; the .csv has all."""
    shown: list[Row] = []
    seen = set()
    for row in rows:
        if row.get("n_seeds") != 0:
            shown.append(row)
        elif (row["model"], row["task"]) not in seen:
            seen.add((row["model"], row["task"]))
            shown.append(row | dict.fromkeys(("selector", "condition")))
    return shown


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
            named("task", "Task"),
            STATUS,
            with_count(
                lambda r: fixed(r["rel_tar_mean"], 3), lambda r: of(r["passes_0.40"], r["n_seeds"]), "01 Reach\n≤ .4"
            ),
            with_count(
                lambda r: fixed(r["ratio_mean"], 2), lambda r: of(r["passes"], r["n_seeds"]), "02 Reversal\n≥ 2"
            ),
            Column("03 Dose\nρ ≥ .95", lambda r: of(r["ordered"], r["n_seeds"]) if r["ordered"] is not None else EMPTY),
            out_of("hits", "endpoints", "04 Feedback\nhits"),
            with_count(
                lambda r: significant(r["median"]),
                lambda r: of(r["seed_mean_passes"], r["n_seeds"]),
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
            "seeds), seeds at or below the operating choice .40, and the share of pairs whose readout moves away from "
            "the target (mean over seeds)." + CONTROLS_ELSEWHERE
        ),
        section="Six-axis protocol, Reachability",
        group="protocol",
        columns=(
            *HEAD,
            STATUS,
            with_deviation("rel_tar_mean", "rel_tar_sd", "Rel_tar"),
            out_of("passes_0.40", "n_seeds", "≤ .40"),
            decimal("wrong_way_mean", "Wrong\nway", 2),
        ),
        printed=main_selectors,
    ),
    "reach_counts": Layout(
        title="Reachability over thresholds",
        caption=(
            "Seeds whose Rel_tar at dose 1 is at or below each threshold ε, with evaluation-pair directions (P) and "
            "with training means (F); .40 is the operating choice."
        ),
        section="Six-axis protocol, Reachability",
        group="protocol",
        columns=(
            named("task", "Task"),
            named("selector", "Selector"),
            *(
                column
                for condition in "PF"
                for column in (
                    whole(f"{condition}_seeds", f"{condition}\nseeds"),
                    *(whole(f"{condition}_{name}", f"{condition}\n≤ {name[-3:]}") for name in PASSES),
                )
            ),
        ),
    ),
    "signed_reversal": Layout(
        title="Signed reversal",
        caption=(
            "Distance of the reversed output from the target over its distance from the source (mean ± sample sd over "
            "seeds with a finite ratio), seeds with an infinite (x/0) or undefined (0/0) ratio, and seeds that pass "
            "with a ratio ≥ 2." + CONTROLS_ELSEWHERE
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
        printed=main_selectors,
    ),
    "dose_response": Layout(
        title="Dose response",
        caption=(
            "Spearman correlation of target progress with dose over the ten doses: mean over seeds, seeds ordered (ρ "
            "≥ .95), ordered the wrong way (ρ ≤ −.95, never a pass), and undefined (constant curve)."
            + CONTROLS_ELSEWHERE
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
        printed=main_selectors,
    ),
    "feedback": Layout(
        title="Feedback controllability",
        caption=(
            "Endpoints over all seeds that end within the tolerance (logits) of the requested margin, mean absolute "
            "terminal error, mean number of readouts, endpoints already met at dose zero, hits among the others, "
            "endpoints whose dose was held at its limit, and endpoints whose loop diverged." + CONTROLS_ELSEWHERE
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
        printed=main_selectors,
    ),
    "preservation": Layout(
        title="Off-target preservation",
        caption=(
            "KL(unpatched || patched) over the full vocabulary in nats on the fixed off-target panel at dose 1, over "
            "all prompt-seed observations: mean, median, nearest-rank P95, maximum; seeds whose mean, and whose every "
            "prompt, is ≤ .001." + CONTROLS_ELSEWHERE
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
        printed=main_selectors,
    ),
    "reuse": Layout(
        title="Held-out reuse",
        caption=(
            "Recovery of the source-to-target gap in the mean margin on unseen pairs (mean ± sample sd over seeds): "
            "strengths refitted there, and the whole intervention frozen; seeds without a gap. No threshold."
            + CONTROLS_ELSEWHERE
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
        printed=main_selectors,
    ),
}


def score_rows(axes: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """The six axes of one intervention as (axis, statistic, value, pass), rounded."""
    rows = {
        "reachability": lambda r: (
            "Rel_tar",
            _spread(r, "rel_tar", 3),
            f"{of(r['passes_0.40'], r['n_seeds'])} ≤ .4",
        ),
        "signed_reversal": lambda r: ("ratio", _spread(r, "ratio", 3), f"{of(r['passes'], r['n_seeds'])} ≥ 2"),
        "dose_response": lambda r: (
            "mean ρ",
            fixed(r["rho_mean"], 3),
            f"{of(r['ordered'], r['n_seeds'])} ≥ .95; {r['reversed']} ≤ −.95; {r['undefined']} undefined",
        ),
        "feedback": lambda r: (
            "MAE",
            fixed(r["mae"], 3),
            f"{of(r['hits'], r['endpoints'])} hits; {r['already_met']} already met",
        ),
        "preservation": lambda r: (
            "median KL",
            significant(r["median"]),
            f"{of(r['seed_mean_passes'], r['n_seeds'])} seed mean, "
            f"{of(r['every_prompt_passes'], r['n_seeds'])} every prompt",
        ),
        "reuse": lambda r: ("refit, frozen", f"{_spread(r, 'refit', 3)}, {_spread(r, 'frozen', 3)}", "no threshold"),
    }
    return [(axis, *rows[axis](r)) if r["n_seeds"] else (axis, "not measured", "", "") for axis, r in axes.items()]


def _spread(row: Row, name: str, digits: int) -> str:
    return with_deviation(f"{name}_mean", f"{name}_sd", "", digits).text(row)
