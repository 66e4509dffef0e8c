"""The six axes of one intervention, rounded, as `score` prints them."""

from typing import Any

from sparse_control.records.readouts import NEEDS
from sparse_control.tables.columns import Row, fixed, of, significant, with_deviation
from sparse_control.tables.terminal import Shown

HEADINGS = ("axis", "statistic", "value", "pass")


def score_rows(axes: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """The six axes of one intervention as (axis, statistic, value, pass)."""
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
    missing = {axis: (axis, "not measured", f"needs {NEEDS[axis]}", "") for axis in axes}
    return [(axis, *rows[axis](r)) if r["n_seeds"] else missing[axis] for axis, r in axes.items()]


def score_table(name: str, axes: dict[str, dict[str, Any]]) -> Shown:
    """The six axes as a table ready for a template."""
    return Shown(
        name="score",
        label="score",
        title=name,
        caption="Six axes of one intervention, over the seeds that have their readouts.",
        by_model=False,
        headings=HEADINGS,
        aligns=("l", "l", "l", "l"),
        rows=tuple(score_rows(axes)),
    )


def _spread(row: Row, name: str, digits: int) -> str:
    return with_deviation(f"{name}_mean", f"{name}_sd", "", digits).text(row)
