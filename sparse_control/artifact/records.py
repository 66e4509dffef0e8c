"""What every record has in common, and errors that name the file, the line, the field and the value."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines

Count = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
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
        field = ".".join(str(part) for part in first["loc"])
        got = repr(first["input"])
        # a check over several fields has the whole section as its input; its message holds the values already
        tail = "" if first["type"] == "value_error" else f", got {got if len(got) <= 80 else got[:77] + '...'}"
        raise InputError(f"{place}: {field + ': ' if field else ''}{message}{tail}") from error


def read_record(kind: type[R], path: Path) -> R:
    """Read one JSON file as a record."""
    return validate(kind, read_json(path), str(path))


def read_record_lines(kind: type[R], path: Path) -> list[R]:
    """Read a JSON-lines file, one record a line."""
    return [validate(kind, row, f"{path}:{number}") for number, row in enumerate(read_json_lines(path), start=1)]
