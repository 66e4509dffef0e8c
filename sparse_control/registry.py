"""The models that have a name: where their weights come from, and their shape."""

import difflib
import json
import re
from dataclasses import dataclass
from importlib.resources import files

from sparse_control.errors import InputError
from sparse_control.packages import Package


@dataclass(frozen=True)
class Source:
    """One entry of `data/models.json`."""

    name: str
    gguf: str  # file name of the weights
    sha256: str  # of the GGUF file
    bytes: int  # size of the GGUF file
    architecture: str
    width: int  # d
    layers: int  # L
    licence: str
    hub: str  # repository of the official release
    packages: tuple[Package, ...]  # in part order
    member: str  # glob of the weights inside each package


def natural_order(text: str) -> list[str | int]:
    """Sort key by which part10 comes after part9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def _part_order(package: Package) -> list[str | int]:
    return natural_order(package.package)


def registry() -> dict[str, Source]:
    """The known models by name, in the order of the file."""
    content = json.loads(files("sparse_control").joinpath("data", "models.json").read_text("utf-8"))
    return {
        name: Source(
            name=name,
            packages=tuple(sorted((Package(**part) for part in entry.pop("packages")), key=_part_order)),
            **entry,
        )
        for name, entry in content.items()
    }


def find_source(name: str) -> Source:
    """The registry entry of `name`.

    Raises:
        InputError: no such name; the message names the nearest one and lists all.
    """
    known = registry()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"model {name!r}: not in the registry; {hint}known names: {', '.join(known)}")
