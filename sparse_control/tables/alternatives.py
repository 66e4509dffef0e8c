"""Named alternatives to the official estimator, each validated on its own and none of them official (12.2)."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import AlternativeAttempt
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import EMPTY, Column, Row, decimal, fixed, label, named, whole, yes_no
from sparse_control.tables.estimator import CRITERIA, CRITERIA_COLUMNS, width, with_setting
from sparse_control.tables.layers import status_of
from sparse_control.tables.table import Table, mean_of_known

QB = "qb"  # the official estimator, for comparison
ORDER = (QB, "qb_deflated", "qb_activation", "output_sketch", "svd")
ERRORS = ("E_F", "E_vec", "C_vec", "E_vec_centred", "C_vec_centred", "E_ISS", "rho_fact")
PASSES, NOWHERE, NOT_TRIED = "yes", "none", "not tried"
WHICH = (whole("layer", "Layer"), label("status", "Official\nstatus"), named("estimator", "Estimator"), whole("q", "q"))


def _curve(model: ModelRecords) -> Iterator[Row]:
    """At the preregistered sketch seed."""

    def key(row: AlternativeAttempt) -> tuple[int, ...]:
        return row.layer, ORDER.index(row.estimator), row.power_iterations or 0, row.oversampling or 0, row.k

    for row in sorted(model.iss.alternatives, key=key):
        yield with_setting(row) | {"status": status_of(model.iss, row.layer)}


ALTERNATIVES_CURVE = Table(
    name="alternatives_curve",
    title="Named alternatives at every rank",
    caption=(
        "On calibration facts; none of these is official. At the preregistered sketch seed, judged by the criteria "
        "of the official estimator."
    ),
    section="Jacobian-Transported ISS, 12.2",
    group="iss",
    reads=("alternatives", "actions", "freeze"),
    rows=_curve,
    fields=(
        *("layer", "status", "estimator", "probe", "q", "p", "k", "r", "n", *ERRORS, *CRITERIA),
        *("passed", "reason", "chosen"),
    ),
    columns=(
        *WHICH,
        whole("p", "p"),
        whole("k", "k"),
        decimal("E_F", "E_F"),
        decimal("E_vec", "E_vec"),
        decimal("C_vec", "C_vec", 4),
        *CRITERIA_COLUMNS,
        yes_no("passed", "Passes"),
        Column("Why not", lambda row: EMPTY if row["passed"] else row["reason"] or EMPTY, "l"),
    ),
)

# --- per layer and estimator ----------------------------------------------------------------------------------------


def _alternatives(model: ModelRecords) -> Iterator[Row]:
    """Per layer and estimator the smallest k that passes, and the errors at one k common to all, beside plain QB.

    The common k is the middle one of those that every estimator was measured at. Criteria are those of the official
    estimator; plain QB passes where an attempt of its ladder does, and `qb_fails_at_smallest_k` is null where its
    ladder has no attempt at that k with as many power iterations.
    """
    iss = model.iss
    curve = list(_curve(model))
    if not curve:
        return
    common = _common_rank(curve, iss)
    widths = {width(rung) for rung in iss.actions}
    d = widths.pop() if len(widths) == 1 else None
    for layer, group in groupby(curve, key=lambda row: row["layer"]):
        attempts = list(group)
        plain = _plain(iss, layer, sorted({row["q"] for row in attempts if row["q"] is not None}), common)
        base = {row["q"]: row["E_vec"] for row in plain}
        first = next(iter(base.values()), None)
        settings = groupby(attempts, key=lambda row: (row["estimator"], row["q"]))
        named_ones = [_named(list(rows), common) for _, rows in settings]
        for row in sorted([*plain, *named_ones], key=lambda row: (ORDER.index(row["estimator"]), row["q"] or 0)):
            reference = base.get(row["q"], first)
            yield row | {
                "layer": layer,
                "status": status_of(iss, layer),
                "common_k": common,
                "k_over_d": row["smallest_k"] / d if d and row["smallest_k"] else None,
                "E_vec_over_qb": row["E_vec"] / reference if reference and row["E_vec"] is not None else None,
                "qb_fails_at_smallest_k": _qb_fails(iss, layer, row),
            }


def _qb_fails(iss: IssRecords, layer: int, row: Row) -> bool | None:
    """Whether plain QB fails at the rank this estimator passes at; null where it was not tried there."""
    if row["estimator"] == QB or row["smallest_k"] is None:
        return None
    setting = layer, row["smallest_k"], row["q"] or 0
    tried = [rung.passed for rung in iss.actions if (rung.layer, rung.k, rung.power_iterations) == setting]
    return not any(tried) if tried else None


def _common_rank(curve: Sequence[Row], iss: IssRecords) -> int | None:
    ranks = [{row["k"] for row in curve if row["estimator"] == name} for name in {row["estimator"] for row in curve}]
    if iss.comparison:
        ranks.append({row.k for row in iss.comparison.rows})
    shared = sorted(set.intersection(*ranks))
    return shared[len(shared) // 2] if shared else None


def _named(attempts: Sequence[Row], common: int | None) -> Row:
    passing = min((row for row in attempts if row["passed"]), key=lambda row: (row["k"], row["r"]), default=None)
    at = [row for row in attempts if row["k"] == common]
    errors = min(at, key=lambda row: row["r"], default=dict.fromkeys(ERRORS))
    return {
        "estimator": attempts[0]["estimator"],
        "q": attempts[0]["q"],
        "passes": PASSES if passing else NOWHERE,
        "smallest_k": passing["k"] if passing else None,
        "r": passing["r"] if passing else None,
    } | {name: errors[name] for name in ERRORS}


def _plain(iss: IssRecords, layer: int, powers: Sequence[int], common: int | None) -> list[Row]:
    """Plain QB at each power: its ladder, and its errors at the common k with the smallest oversampling."""
    probe = iss.freeze.settings.estimator.probe if iss.freeze else "gaussian"
    rows = []
    for power in powers:
        attempts = [rung for rung in iss.actions if (rung.layer, rung.power_iterations) == (layer, power)]
        passing = min((rung for rung in attempts if rung.passed), key=lambda rung: (rung.k, rung.r), default=None)
        measured = [
            row
            for row in (iss.comparison.rows if iss.comparison else ())
            if (row.layer, row.power_iterations, row.k, row.estimator, row.probe) == (layer, power, common, QB, probe)
        ]
        smallest = min((row.oversampling for row in measured), default=None)
        measured = [row for row in measured if row.oversampling == smallest]
        rows.append(
            {
                "estimator": QB,
                "q": power,
                "passes": PASSES if passing else NOWHERE if attempts else NOT_TRIED,
                "smallest_k": passing.k if passing else None,
                "r": passing.r if passing else None,
            }
            | {name: mean_of_known(getattr(row, name) for row in measured) for name in ERRORS}
        )
    return rows


def _passing(row: Row) -> str:
    if row["passes"] != PASSES:
        return str(row["passes"])
    return f"{row['smallest_k']}" + ("" if row["k_over_d"] is None else f" ({fixed(row['k_over_d'], 2)})")


ALTERNATIVES = Table(
    name="alternatives",
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
    reads=("alternatives", "comparison", "actions", "freeze"),
    rows=_alternatives,
    fields=(
        *("layer", "status", "estimator", "q", "passes", "smallest_k", "k_over_d", "r", "common_k", *ERRORS),
        *("E_vec_over_qb", "qb_fails_at_smallest_k"),
    ),
    columns=(
        *WHICH,
        Column("Smallest k", _passing),
        whole("common_k", "at k"),
        decimal("E_F", "E_F"),
        decimal("E_vec", "E_vec"),
        decimal("C_vec", "C_vec", 4),
        decimal("E_vec_centred", "E_vec\ncentred"),
        decimal("E_ISS", "E_ISS", 4),
        decimal("E_vec_over_qb", "E_vec\nover QB", 2),
    ),
)

TABLES = (ALTERNATIVES, ALTERNATIVES_CURVE)
