"""Means and bootstrap intervals that the measuring run stored, against the facts' own rows (18)."""

from collections.abc import Iterator
from typing import Any

from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.records.jacobian_iss.results import OfficialIss
from sparse_control.verify.check import Check, Status, named
from sparse_control.verify.finding import same
from sparse_control.verify.reading import Study


def interval_checks(study: Study) -> Iterator[Check]:
    """Of ISS and of Raw-ISS, drawn again with the frozen seed; nothing before stage D."""
    iss = study.iss
    if iss.summary is None or iss.freeze is None:
        return
    for metric, stored in (("ISS", iss.summary.ISS), ("Raw-ISS", iss.raw)):
        facts = [(row.relation, row.iss) for row in iss.facts if row.metric == metric and row.iss is not None]
        if facts or stored is not None:
            name = f"stored mean and intervals of {metric} of {study.name}"
            yield named(name, lambda stored=stored, facts=facts: _verdict(study, stored, facts))


def _verdict(study: Study, stored: OfficialIss | None, facts: list[tuple[str, float]]) -> tuple[Status, str]:
    if stored is not None and not facts and {stored.mean, *stored.percentile, *stored.bca} == {None}:
        return "ok", ""  # of Raw-ISS where no fact is defined at every layer
    if stored is None or stored.mean is None or not facts:
        return "FAIL", f"{len(facts)} facts have a value, but the stored summary is {stored!r:.60}"
    settings = study.iss.freeze.settings.iss
    found = relation_bootstrap(
        [value for _, value in facts],
        [relation for relation, _ in facts],
        n_resamples=settings.bootstrap_resamples,
        seed=settings.bootstrap_seed,
    )
    wrong = [
        f"{part} stored {old}, recomputed {new}"
        for part in ("mean", "percentile", "bca")
        for old, new in [(_edges(getattr(stored, part)), _edges(found[part]))]
        if not all(map(same, old, new))
    ]
    return ("FAIL", "; ".join(wrong)) if wrong else ("ok", "")


def _edges(value: Any) -> list[float | None]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
