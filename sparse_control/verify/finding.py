"""What a check over saved numbers finds: a file, and the field in it with what it says and what it should."""

import math
from collections.abc import Iterator

TOLERANCE = 1e-9  # relative and absolute; another order of the same sum rounds differently
Finding = tuple[str, str]  # file below the folder that is checked; the field and both values


def same(found: float | None, expected: float | None) -> bool:
    """Equal up to rounding; no number equals no number alone."""
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def differ(
    file: str, field: str, found: float | None, expected: float | None, source: str = "its rows give"
) -> Iterator[Finding]:
    """A finding where the two are not the same."""
    if not same(found, expected):
        yield file, f"{field}: {found}, but {source} {expected}"
