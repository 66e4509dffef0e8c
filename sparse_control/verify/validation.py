"""Numbers of stages A and B that follow from other saved ones, each computed again (source document of ISS, 5 to 9)."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import ActionValidation, AlternativeAttempt, ComparisonRow
from sparse_control.records.paths import ISS_FILES
from sparse_control.verify.finding import TOLERANCE, Finding, differ, same

ACTIONS, RANKS, SEEDS, COMPARISON, ALTERNATIVES = (
    ISS_FILES[field] for field in ("actions", "rank_convergence", "seed_stability", "comparison", "alternatives")
)


def broken_validation(iss: IssRecords) -> Iterator[Finding]:
    """Every number of the validation files that is not what the numbers it follows from give."""
    widths = [round(row.k / row.k_over_d) for row in iss.actions if row.k_over_d > 0]
    if not widths:
        return
    width = statistics.mode(widths)
    yield from _columns(iss, width)
    yield from _ranks(iss)
    if iss.comparison:
        yield from _floors(iss.comparison.rows, iss.alternatives)
    for layer in sorted({row.layer for row in iss.alternatives}):
        yield from _alternatives([row for row in iss.alternatives if row.layer == layer])


def _columns(iss: IssRecords, width: int) -> Iterator[Finding]:
    """k/d, and the columns that are kept: k + p, at most d."""
    for number, row in enumerate(iss.actions, start=1):
        yield from differ(f"{ACTIONS}:{number}", "k_over_d", row.k_over_d, row.k / width, f"k and d = {width} give")
        partner = min(min(2 * row.k, width - 1) + row.oversampling, width)
        if row.partner_r not in (None, partner):
            yield f"{ACTIONS}:{number}", f"partner_r: {row.partner_r}, but 2k + p, at most d, is {partner}"
    comparison = iss.comparison.rows if iss.comparison else ()
    for file, rows in (
        (ACTIONS, iss.actions),
        (RANKS, iss.rank_convergence),
        (COMPARISON, comparison),
        (ALTERNATIVES, iss.alternatives),
    ):
        for number, row in enumerate(rows, start=1):
            if row.r != (expected := min(row.k + (row.oversampling or 0), width)):
                yield f"{file}:{number}", f"r: {row.r}, but k + p, at most d, is {expected}"


def _setting(row: Any) -> tuple[int, ...]:
    return row.layer, row.k, row.oversampling, row.power_iterations, row.corpus_size


def _ranks(iss: IssRecords) -> Iterator[Finding]:
    """ISS of a rank and seed is the same in both files; that of 2k, where it was tried, gives the difference to k."""
    ranks = {(*_setting(row), row.seed): row.iss for row in iss.rank_convergence}
    for number, row in enumerate(iss.seed_stability, start=1):
        for seed, value in zip(row.seeds, row.values, strict=True) if row.metric == "ISS" else ():
            if (key := (*_setting(row), seed)) in ranks:
                yield from differ(f"{SEEDS}:{number}", f"value of seed {seed}", value, ranks[key], f"{RANKS} has")
    tried = {_setting(row): row for row in iss.actions}
    for number, row in enumerate(iss.actions, start=1):
        partner = tried.get((row.layer, 2 * row.k, *_setting(row)[2:]))
        if partner is not None:
            yield from _difference(f"{ACTIONS}:{number}", row, partner)


def _difference(
    file: str, row: ActionValidation | AlternativeAttempt, partner: ActionValidation | AlternativeAttempt
) -> Iterator[Finding]:
    if None in (row.iss, partner.iss, row.iss_rank_difference):
        return
    expected = abs(partner.iss - row.iss)
    yield from differ(
        file, "iss_rank_difference", row.iss_rank_difference, expected, f"ISS at {row.k} and twice it give"
    )


def _floors(rows: Sequence[ComparisonRow], alternatives: Sequence[AlternativeAttempt]) -> Iterator[Finding]:
    """No matrix of rank r is closer than the best one, which is one number a layer and r, and falls with r (A5)."""
    floors: dict[tuple[int, int], float] = {}
    for number, row in enumerate(rows, start=1):
        floor = floors.setdefault((row.layer, row.r), row.svd_floor_E_F)
        yield from differ(
            f"{COMPARISON}:{number}", "svd_floor_E_F", row.svd_floor_E_F, floor, f"r = {row.r} has before"
        )
        if row.E_F < row.svd_floor_E_F - TOLERANCE:
            yield f"{COMPARISON}:{number}", f"E_F: {row.E_F}, but no rank {row.r} is below {row.svd_floor_E_F}"
    for layer in sorted({layer for layer, _ in floors}):
        of_layer = sorted((r, floor) for (at, r), floor in floors.items() if at == layer)
        for (r, floor), (larger, next_floor) in zip(of_layer, of_layer[1:], strict=False):
            if next_floor > floor + TOLERANCE:
                yield COMPARISON, f"layer {layer}: svd_floor_E_F: {floor} at r = {r}, but {next_floor} at {larger}"
    for number, row in enumerate(alternatives, start=1):
        floor = floors.get((row.layer, row.r))
        if floor is not None and row.E_F is not None and row.estimator in ("svd", "qb_activation"):  # of rank r
            if row.E_F < floor - 1e-6:  # computed another way
                yield f"{ALTERNATIVES}:{number}", f"E_F: {row.E_F}, but no rank {row.r} is below {floor}"


def _alternatives(rows: Sequence[AlternativeAttempt]) -> Iterator[Finding]:
    """At one layer: differences from k to 2k, and distances from the one ISS of the exact Jacobian."""
    tried = {(*_candidate(row), row.k): row for row in rows}
    for row in rows:
        if partner := tried.get((*_candidate(row), 2 * row.k)):
            yield from _difference(f"{ALTERNATIVES}: layer {row.layer}, {row.estimator}, k = {row.k}", row, partner)
    known = [(row.iss, row.E_ISS) for row in rows if None not in (row.iss, row.E_ISS)]
    if known:
        (iss, distance), *_ = known
        exact = [iss + distance, iss - distance]
        if not any(all(same(abs(one - iss), distance) for iss, distance in known) for one in exact):
            yield (
                ALTERNATIVES,
                f"layer {rows[0].layer}: E_ISS: the distances are not from one ISS of the exact Jacobian",
            )


def _candidate(row: AlternativeAttempt) -> tuple[Any, ...]:
    return row.estimator, row.probe, row.oversampling, row.power_iterations, row.seed
