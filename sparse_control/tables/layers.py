"""Which layers are official: validated and unresolved ones of the preregistered window, and those outside it."""

from sparse_control.records.jacobian_iss import IssRecords

VALIDATED, UNRESOLVED = "validated", "unresolved"
OUTSIDE = "not in the window"


def statuses(iss: IssRecords) -> dict[int, str]:
    """Status of each layer of the window, from the freeze; before it, from the attempts."""
    if iss.freeze:
        return {int(number): layer.status for number, layer in iss.freeze.layers.items()}
    tried = {rung.layer for rung in iss.actions}
    passed = {rung.layer for rung in iss.actions if rung.chosen}
    return {layer: VALIDATED if layer in passed else UNRESOLVED for layer in sorted(tried)}


def status_of(iss: IssRecords, layer: int) -> str:
    """Status of one layer."""
    return statuses(iss).get(layer, OUTSIDE)
