"""Experiment B: does the rank of a small model do for a medium one (source document, 7 and 16)?"""

from collections.abc import Iterator, Sequence

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.columns import Column, Row, decimal, fixed, label, whole, yes_no
from sparse_control.tables.estimator import final_rungs, width
from sparse_control.tables.layers import statuses
from sparse_control.tables.table import Table, mean_of_known

OF_A_MODEL = ("model", "layer", "d", "status", "k", "k_over_d", "p", "q", "n")
AT_SMALL = ("k", "E_vec", "C_vec", "E_ISS", "median_cosine", "median_relative_error", "passed")


def _rank_transfer(records: Records) -> Iterator[Row]:
    """Per representative depth the smallest k that passes on either model, and the medium one's errors at the small k.

    The small model is the first that has a full comparison; every other model is a medium one in turn. Depths are
    the representative layers of both settings in order. The rank transfers where the medium model, on its own corpus
    size, passes at the rank, oversampling and power of the small one; null where it was not tried there.
    """
    small = next((model for model in records.models if model.iss.comparison), None)
    for medium in records.models:
        if small is None or medium is small:
            continue
        pairs = zip(_representative(small.iss), _representative(medium.iss), strict=False)
        for depth, (first, second) in enumerate(pairs, start=1):
            yield (
                {"model": f"{small.name}, {medium.name}", "depth": depth}
                | _of_model("small", small, first)
                | _of_model("medium", medium, second)
                | _at_small_rank(final_rungs(small.iss).get(first), medium.iss, second)
            )


def _representative(iss: IssRecords) -> Sequence[int]:
    window = statuses(iss)
    chosen = iss.freeze.settings.alternatives.layers if iss.freeze else list(window)
    return [layer for layer in chosen if layer in window]


def _of_model(name: str, model: ModelRecords, layer: int) -> Row:
    rung = final_rungs(model.iss).get(layer)
    row: Row = {"model": model.name, "layer": layer, "status": statuses(model.iss)[layer]}
    if rung is not None:
        row["d"] = width(rung)
        if rung.chosen:
            row |= {"k": rung.k, "k_over_d": rung.k_over_d, "p": rung.oversampling, "q": rung.power_iterations}
            row["n"] = rung.corpus_size
    return {f"{name}_{key}": value for key, value in row.items()}


def _at_small_rank(rung: ActionValidation | None, medium: IssRecords, layer: int) -> Row:
    if rung is None or not rung.chosen:
        return {"reason": "no rank passes on the small model"}
    row: Row = {"k": rung.k}
    measured = [
        other
        for other in (medium.comparison.rows if medium.comparison else ())
        if (other.layer, other.k, other.oversampling, other.power_iterations, other.estimator)
        == (layer, rung.k, rung.oversampling, rung.power_iterations, "qb")
    ]
    probes = {other.probe for other in measured}
    probe = "gaussian" if "gaussian" in probes else next(iter(probes), None)
    for name in ("E_vec", "C_vec", "E_ISS"):
        row[name] = mean_of_known(getattr(other, name) for other in measured if other.probe == probe)
    tried = [other for other in medium.actions if other.layer == layer and _setting(other) == _setting(rung)]
    if tried:
        row |= {name: getattr(tried[-1], name) for name in ("median_cosine", "median_relative_error", "passed")}
    final = final_rungs(medium).get(layer)
    reason = None if tried else "not tried on the medium model"
    if tried and not tried[-1].passed:
        reason = tried[-1].reason
    elif not tried and final is not None and final.chosen:
        reason = f"not tried on the medium model, whose ladder ended at k = {final.k}"
    return {f"medium_at_small_k_{key}": value for key, value in row.items()} | {
        "transfers": tried[-1].passed if tried else None,
        "reason": reason,
    }


def _setting(rung: ActionValidation) -> tuple[int, ...]:
    return rung.k, rung.oversampling, rung.power_iterations


def _rank(name: str, heading: str) -> Column:
    def text(row: Row) -> str:
        if row[f"{name}_k"] is None:
            return "none"
        return f"{row[f'{name}_k']} ({fixed(row[f'{name}_k_over_d'], 2)})"

    return Column(heading, text)


RANK_TRANSFER = Table(
    name="rank_transfer",
    title="Does the rank transfer to a medium model? (Experiment B)",
    caption=(
        "Per representative depth the smallest rank k that meets all criteria on the small and on the medium "
        "model (k/d), and the errors of the medium model's estimator at the small model's rank, oversampling and "
        "power iterations: mean E_vec and C_vec, E_ISS, and the medians of the acceptance rule where that very "
        "setting was tried. The rank transfers where the medium model passes there; rank_transfer.csv says why "
        "not."
    ),
    section="Jacobian-Transported ISS, 7 and 16, Experiment B",
    group="iss",
    reads=("comparison", "actions", "freeze"),
    across=_rank_transfer,
    fields=(
        *("model", "depth", *(f"small_{name}" for name in OF_A_MODEL), *(f"medium_{name}" for name in OF_A_MODEL)),
        *(f"medium_at_small_k_{name}" for name in AT_SMALL),
        *("transfers", "reason"),
    ),
    columns=(
        whole("depth", "Depth"),
        whole("small_layer", "Layer\nsmall"),
        _rank("small", "k (k/d)\nsmall"),
        whole("medium_layer", "Layer\nmedium"),
        _rank("medium", "k (k/d)\nmedium"),
        label("medium_status", "Status\nmedium"),
        decimal("medium_at_small_k_E_vec", "E_vec"),
        decimal("medium_at_small_k_C_vec", "C_vec", 4),
        decimal("medium_at_small_k_E_ISS", "E_ISS", 4),
        decimal("medium_at_small_k_median_cosine", "Median\ncosine", 4),
        decimal("medium_at_small_k_median_relative_error", "Median\nrel. error"),
        yes_no("transfers", "Transfers"),
    ),
)

TABLES = (RANK_TRANSFER,)
