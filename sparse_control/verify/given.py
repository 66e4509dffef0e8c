"""Records of interventions that were given as files: the controls of each are of its size."""

from collections.abc import Iterable

from sparse_control.records.given import given_name
from sparse_control.records.six_axis import Measurement, RecordKey
from sparse_control.verify.check import Status
from sparse_control.verify.finding import same


def equal_size(records: Iterable[Measurement]) -> tuple[Status, str]:
    """Every control has the file, the strengths and the norms of the intervention of its task, rule and seed."""
    given = {record.key: record for record in records if record.origin is not None and record.supported}
    wrong = [f"{key}: {reason}" for key, record in given.items() if (reason := _unlike_its_own(record, given))]
    return ("FAIL", f"{wrong[0]}; measure it again with its controls") if wrong else ("ok", "")


def _unlike_its_own(record: Measurement, given: dict[RecordKey, Measurement]) -> str:
    origin = record.origin
    if origin.control is None:
        return ""
    key = record.key._replace(selector=given_name(origin.file, origin.layer, origin.row))
    own = given.get(key)
    if own is None:
        return f"is a control of {key}, which is not there"
    if own.origin != origin.model_copy(update={"control": None}):
        return f"origin is another than that of {key}"
    for name, mine, its in (
        ("strengths", record.strengths, own.strengths),
        ("norms.direction", record.norms.direction, own.norms.direction),
    ):
        if len(mine) != len(its) or not all(map(same, mine, its)):
            return f"{name} are other than those of {key}"
    if any(draw.strengths != record.strengths for draw in record.draws or []):
        return "draws have other strengths"
    if origin.control == "random_direction" and any(draw.support != own.support for draw in record.draws or []):
        return f"draws have another support than {key}"
    return ""
