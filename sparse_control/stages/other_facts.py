"""Official ISS of other facts that a root has already: kept, or set aside where that is asked for."""

from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import read_json
from sparse_control.records.manifest import forget
from sparse_control.records.paths import ModelPaths, replaced_file
from sparse_control.settings import FactsSettings, Settings
from sparse_control.stages.resolve import paths_of

OWN = "the project's own facts"


def set_aside_other_facts(root: Path, settings: Settings, *, replace: bool) -> None:
    """Refuse to measure over official ISS of other facts, or move it to `ROOT/replaced/`; nulls go with their model.

    Args:
        replace: whether it is moved.

    Raises:
        InputError: there is some, and `replace` is false; says of which facts, and what to do.
    """
    paths = paths_of(root, settings.model_copy(update={"null": "none"}))
    wanted = settings.facts and settings.facts.sha256
    others = [(one, found) for one in (paths, *paths.nulls) if (found := _facts_of(one)) and found[1] != wanted]
    if others and not replace:
        base, (name, _) = others[0][0].base, others[0][1]
        raise InputError(
            f"{base}: was measured with {name}, and this run is of {_name(settings.facts)}; it is kept. To measure "
            f"again add --replace to run official-iss, which moves it to {replaced_file(root, base, 1).parent}; or "
            "choose another --root"
        )
    for one, _ in others:
        number = 1
        while (target := replaced_file(root, one.base, number)).exists():
            number += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        one.base.rename(target)
        forget(root, one.base)


def _name(facts: FactsSettings | None) -> str:
    return OWN if facts is None else f"{facts.file} (SHA-256 {facts.sha256[:12]})"


def _facts_of(paths: ModelPaths) -> tuple[str, str | None] | None:
    """Name and hash of the facts that a folder was measured with; None where nothing says so.

    The freeze says it, and before there is one the references of stage A.
    """
    try:
        if paths.manifest.is_file():
            facts = read_json(paths.manifest)["settings"].get("facts")
            return (OWN, None) if facts is None else (str(facts["file"]), facts["sha256"])
        if paths.reference_metadata.is_file():
            sha256 = read_json(paths.reference_metadata)["key"].get("facts")
            return (OWN, None) if sha256 is None else (f"facts of SHA-256 {sha256[:12]}", sha256)
    except (InputError, LookupError, TypeError, AttributeError):  # damaged: its stage writes it anew
        return None
    return None
