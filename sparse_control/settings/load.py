"""Reading `params.yaml`: a preset laid over the base, and one line that tells every mistake."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sparse_control.errors import InputError
from sparse_control.files import read_yaml
from sparse_control.settings.schema import Settings

MOST_TOLD = 8  # errors of one file that are told in full


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged


def _preset(path: Path, presets: Any, name: str, under: tuple[str, ...] = ()) -> dict[str, Any]:
    """A preset, laid over the one that its key `over` names."""
    if not isinstance(presets, dict) or not isinstance(name, str) or name not in presets:
        known = _short(", ".join(map(str, presets))) if isinstance(presets, dict) else "none"
        where = f"presets.{under[-1]}.over" if under else "presets"
        raise InputError(f"{path}: {where}: no preset {_short(repr(name))}; there are: {known}")
    if not isinstance(presets[name], dict):
        raise InputError(f"{path}: presets.{name}: expected a mapping of settings, got {_short(repr(presets[name]))}")
    if name in under:
        raise InputError(f"{path}: presets.{under[-1]}.over: {name} lies over {under[-1]} already; name another")
    own = dict(presets[name])
    return _overlay(_preset(path, presets, own.pop("over"), (*under, name)), own) if "over" in own else own


def _known_keys(section: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    for step in path:
        field = section.model_fields.get(step) if isinstance(step, str) else None
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        section = field.annotation
    return list(section.model_fields)


def _explain(path: Path, error: ValidationError) -> str:
    """Every error in one line."""
    # a misspelt key is both unknown and missing; the unknown one says what to mend
    errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    meant, told = set(), []
    for one in errors:
        place, field = one["loc"], ".".join(_short(str(part)) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            known = _known_keys(Settings, place[:-1])
            near = difflib.get_close_matches(str(place[-1]), known, n=1)
            meant |= {(*place[:-1], key) for key in near}
            mend = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            told.append(f"{field}: unknown key; {mend}")
        elif one["type"] == "value_error":  # of a section or of all of them; the message holds the values already
            told.append((field + ": " if field else "") + one["msg"].removeprefix("Value error, "))
        elif one["type"] != "missing":
            told.append(f"{field}: {one['msg']}, got {_short(repr(one['input']))}")
        elif place not in meant:
            told.append(f"{field}: is missing; add it")
    more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return f"{path}: {'; '.join(told[:MOST_TOLD])}{more}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def load_settings(path: Path, preset: str = "smoke", model: str | None = None) -> Settings:
    """Read params.yaml, lay `preset` over it, and whatever that lies over before, and check everything.

    Args:
        path: the file.
        preset: a key of `presets`.
        model: replaces the file's `model` where given.

    Raises:
        InputError: one line that names the file, the field, the value and the mend.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of settings, got {type(content).__name__}")
    presets = content.pop("presets", {})
    merged = _overlay(content, _preset(path, presets, preset)) | {"preset": preset}
    if model is not None:
        merged["model"] = model
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise InputError(_explain(path, error)) from error
