"""What every record has in common, and errors that name the file, the line, the field and the value."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines


def _relative(name: str) -> str:
    if not (name.isascii() and name.isprintable()):
        raise ValueError(f"a path must be of printable ASCII, got {_short(repr(name))}")
    parts = name.replace("\\", "/").split("/")  # as another system would split it
    if any(part in ("", ".", "..") or len(part) > 255 for part in parts) or ":" in parts[0]:
        raise ValueError(f"a path must be relative, without '..', parts up to 255 characters, got {_short(repr(name))}")
    return name


def printable(text: str) -> str:
    """One line that cannot drive a terminal: every other character is shown as a space."""
    return "".join(character if character.isprintable() else " " for character in text)


Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
# shared with the settings that lead to them, so that nothing is measured for hours and then not read
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Resamples = Annotated[int, Field(ge=1, le=10**6)]  # of a bootstrap
FeedbackReadouts = Annotated[int, Field(ge=1, le=1000)]  # of one target
LamRel = Annotated[
    float, Field(ge=1e-12, le=1e12)
]  # of a sweep; below it float64 has no covariance left to whiten with
Name = Annotated[str, Field(min_length=1)]
# of forward slashes and printable ASCII, without empty parts, "." and ".."; fits every file system
RelativePath = Annotated[str, Field(max_length=1000), AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """Frozen; unknown fields, coerced types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


R = TypeVar("R", bound=Record)


def same_length(reference: str, length: int, **lists: list[Any]) -> None:
    """Refuse lists that are not as long as `reference`; the message names the first that differs."""
    for name, values in lists.items():
        if len(values) != length:
            raise ValueError(f"{name} must have one entry for each of {reference} ({length}), got {len(values)}")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _fields(kind: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def validate(kind: type[R], value: Any, place: str) -> R:
    """Check one JSON value against a record type.

    Raises:
        InputError: `place: field: message, got value`.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "is no field here" + (
                f"; there are: {', '.join(_fields(kind))}" if len(first["loc"]) == 1 else ""
            )
        field = printable(".".join(_short(str(part)) for part in first["loc"]))
        got = repr(first["input"])
        # a check over several fields has the whole section as its input; its message holds the values already
        tail = "" if first["type"] == "value_error" else f", got {_short(got)}"
        raise InputError(f"{place}: {field + ': ' if field else ''}{message}{tail}") from error


def read_record(kind: type[R], path: Path) -> R:
    """Read one JSON file as a record."""
    return validate(kind, read_json(path), str(path))


def read_record_lines(kind: type[R], path: Path) -> list[R]:
    """Read a JSON-lines file, one record a line."""
    return [validate(kind, row, f"{path}:{number}") for number, row in enumerate(read_json_lines(path), start=1)]
