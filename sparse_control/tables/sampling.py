"""Benchmark sampling: intervals of a mean over facts, from a bootstrap that resamples relations (18)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.records.jacobian_iss import IssRecords

Fact = tuple[str, float]  # relation, value


def intervals(iss: IssRecords, facts: Sequence[Fact]) -> dict[str, Any]:
    """mean, percentile_low, percentile_high, bca_low and bca_high with the frozen resamples and seed; or nothing."""
    if not facts or iss.freeze is None:
        return {}
    settings = iss.freeze.settings.iss
    found = relation_bootstrap(
        [value for _, value in facts],
        [relation for relation, _ in facts],
        n_resamples=settings.bootstrap_resamples,
        seed=settings.bootstrap_seed,
    )
    row = {"mean": found["mean"]}
    for kind in ("percentile", "bca"):
        row |= {f"{kind}_{end}": edge for end, edge in zip(("low", "high"), found[kind], strict=True)}
    return row


def fact_values(iss: IssRecords, metric: str, layers: Sequence[int]) -> Mapping[str, Fact]:
    """Fact -> its relation and its mean over `layers`; a fact that is undefined in one of them is left out."""
    rows: dict[str, list[float | None]] = {}
    relations = {}
    for fact in iss.fact_layers:
        if fact.metric == metric and fact.layer in layers:
            rows.setdefault(fact.fact, []).append(fact.iss)
            relations[fact.fact] = fact.relation
    return {
        name: (relations[name], sum(values) / len(values))
        for name, values in rows.items()
        if None not in values and len(values) == len(layers)
    }
