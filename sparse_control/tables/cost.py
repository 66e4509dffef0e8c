"""What a patch costs: its size, and how far it moves the target at the same off-target divergence."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

from sparse_control.metrics import over_seeds
from sparse_control.metrics.cost import BUDGETS
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis import CONDITIONS, Measurement
from sparse_control.tables.columns import EMPTY, Column, Row, decimal, named, significant, small
from sparse_control.tables.controls import in_order
from sparse_control.tables.protocol import (
    COUNTS,
    KEYS,
    MEASURED,
    NOT_MEASURED,
    STATUS,
    WHICH,
    Seeds,
    axis_rows,
    once_where_unsupported,
)
from sparse_control.tables.table import Table, mean_of_known

AT = tuple(f"at_{budget:g}" for budget in BUDGETS)


def _pushes(record: Measurement) -> Iterator[tuple[float, str]]:
    """`||beta_s d_s|| / ||a_s||` and the site, of each site of a support whose activation is not zero."""
    sizes = zip(record.support, record.strengths, record.norms.direction, record.norms.activation, strict=True)
    for site, strength, direction, activation in sizes:
        if activation > 0:
            yield abs(strength) * direction / activation, site


def _push(seeds: Seeds) -> Row:
    found = [push for seed in seeds for push in _pushes(seed)]
    largest = max(found, default=(None, None))
    return {
        "sites_mean": mean_of_known(len(seed.support) for seed in seeds),
        "push_median": median(size for size, _ in found) if found else None,
        "push_max": largest[0],
        "push_max_site": largest[1],
        "push_joint_mean": mean_of_known(sum(size**2 for size, _ in _pushes(seed)) ** 0.5 for seed in seeds),
        "activation_median": median(norm for seed in seeds for norm in seed.norms.activation) if found else None,
    }


PUSH = Table(
    name="push",
    title="The size of the push",
    caption=(
        "Norm of what is added at a site at dose 1 over the mean norm of the activation there, |β d|/|a|: median over "
        "sites and seeds, the largest and its site, and the root of the sum of squares over the sites of a seed (mean "
        "over seeds). Norms of a random control are those of its first draw."
    ),
    section="Six-axis protocol, What every axis needs",
    group="protocol",
    reads=("six_axis",),
    rows=lambda model: in_order(axis_rows(model, _push)),
    fields=(
        *(*KEYS, *COUNTS, "sites_mean", "push_median", "push_max", "push_max_site", "push_joint_mean"),
        "activation_median",
    ),
    columns=(
        *WHICH,
        STATUS,
        decimal("sites_mean", "Sites", 1),
        small("push_median", "Median"),
        small("push_max", "Largest"),
        Column("At", lambda row: row["push_max_site"] or EMPTY, "l"),
        small("push_joint_mean", "All sites\ntogether"),
        small("activation_median", "Median\n|a|"),
    ),
    printed=once_where_unsupported,
)


def _at_budgets(seeds: Seeds) -> Row:
    known = [seed for seed in seeds if seed.preservation.kl_by_dose is not None]
    curves = [
        (
            seed.evaluate.doses,
            over_seeds.curve(seed.evaluate.source, seed.evaluate.target, seed.evaluate.patched),
            seed.preservation.kl_by_dose,
        )
        for seed in known
    ]
    return {"known": len(known), **(over_seeds.equal_cost(curves) if known else {})}


def _equal_cost(model: ModelRecords) -> list[Row]:
    """All direction rules in a row."""
    rows: dict[tuple[str, str], Row] = {}
    for row in in_order(axis_rows(model, _at_budgets)):
        if row["status"] == MEASURED:
            found = rows.setdefault((row["task"], row["selector"]), {name: row[name] for name in ("task", "selector")})
            rule = row["condition"]
            found |= {f"{rule}_seeds": row["known"], f"{rule}_not_measured": row["n_seeds"] - row["known"]}
            found |= {f"{rule}_{name}": row.get(name) for name in AT}
    return list(rows.values())


def _at(rule: str, name: str, row: Row) -> str:
    if row[f"{rule}_seeds"] is None:
        return EMPTY
    value = row[f"{rule}_{name}"]
    return NOT_MEASURED if not row[f"{rule}_seeds"] else "none" if value is None else significant(value)


def _columns(text: Callable[[str, str, Row], str]) -> Iterator[Column]:
    for budget, name in zip(BUDGETS, AT, strict=True):
        for rule in CONDITIONS:
            yield Column(f"{rule}\n{budget:g} nat", partial(text, rule, name))


EQUAL_COST = Table(
    name="equal_cost",
    title="Progress at equal cost",
    caption=(
        "The largest share of the source-to-target gap that is covered at a positive dose whose mean off-target KL is "
        "at most the budget, on curves that are means over seeds, straight between doses; none: the smallest positive "
        "dose is above the budget. P: evaluation-pair directions, F: training means, O: oriented training means."
    ),
    section="Six-axis protocol, Off-target preservation",
    group="protocol",
    reads=("six_axis",),
    rows=_equal_cost,
    fields=(
        *("task", "selector"),
        *(f"{rule}_{kind}" for rule in CONDITIONS for kind in ("seeds", "not_measured", *AT)),
    ),
    columns=(named("task", "Task"), named("selector", "Selector"), *_columns(_at)),
)

TABLES = (PUSH, EQUAL_COST)
