"""Where an artefact comes from: its making, its inputs with their hashes, back to weights and corpus.

Everything is read from the files themselves; nothing needs the model, torch or a network.
"""

from collections.abc import Iterator
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.provenance.artifacts import CORPUS, Artefact, corpus_artefact, describe
from sparse_control.records import manifest
from sparse_control.records.base import printable
from sparse_control.records.jacobian_iss import read_iss_file

__all__ = ["provenance_lines"]


def provenance_lines(path: Path, root: Path) -> list[str]:
    """The chain behind one artefact, a line a fact, inputs indented below what was made of them.

    Args:
        path: a table, page, record file, freeze manifest, factor folder or file, reference, states or corpus.json;
            relative to `root`, or as it stands.
        root: the folder that holds `measurements/` and `jacobian_iss/`.

    Raises:
        InputError: no such file, one outside the root, one of another kind, or one that cannot be read.
    """
    root, path = Path(root), Path(path)
    found = root / path if (root / path).exists() else path
    if not found.exists():
        raise InputError(f"{path}: no such file or folder, neither below {root} nor here")
    if found.name == "corpus.json" and not found.resolve().is_relative_to(root.resolve()):
        return [printable(line) for line in _show(found.as_posix(), corpus_artefact(found), "", found)]
    try:
        name = found.resolve().relative_to(root.resolve()).as_posix()
    except ValueError as error:
        raise InputError(f"{path}: is not below {root}; give the root it belongs to with --root") from error
    return [printable(line) for line in _chain(root, name, "", _listed(root), set())]


def _listed(root: Path) -> dict[str, str]:
    """Path relative to the root -> hash, by the manifests and freezes of the root and its sub-roots."""
    hashes: dict[str, str] = {}
    for place in ("", *(f"{name}/" for name in manifest.SUB_ROOTS)):
        listed = manifest.read_manifest(root / place)
        for part in (listed.measurements, listed.binaries, listed.tables) if listed else ():
            hashes |= {place + name: sha256 for name, sha256 in part.items()}
        freeze = read_iss_file(root / place, "freeze")
        frozen = {f"{place}jacobian_iss/{name}": sha256 for name, sha256 in (freeze.files if freeze else {}).items()}
        hashes = frozen | hashes
    return hashes


def _chain(root: Path, name: str, indent: str, listed: dict[str, str], seen: set[str]) -> Iterator[str]:
    if name in seen:
        yield f"{indent}{name}: see above"
        return
    seen.add(name)
    path = Path(root, name)
    if not path.exists():
        listed_as = f", listed with SHA-256 {listed[name]}" if name in listed else ""
        yield f"{indent}{name}: not in this folder{listed_as}"
        return
    artefact = corpus_artefact(path) if path.is_absolute() and name.endswith(CORPUS) else describe(root, name)
    yield from _show(name, artefact, indent, path, listed)
    inner = indent + "    "
    for input_name in artefact.inputs:
        yield from _chain(root, input_name, inner, listed, seen)


def _show(
    name: str, artefact: Artefact, indent: str, path: Path, listed: dict[str, str] | None = None
) -> Iterator[str]:
    yield f"{indent}{name}"
    yield f"{indent}  {artefact.kind}"
    if path.is_file():
        yield f"{indent}  sha256: {sha256_file(path)}{_verdict(name, path, listed or {})}"
    for fact in artefact.facts:
        yield f"{indent}  {fact}"
    if artefact.inputs:
        yield f"{indent}  made of:"


def _verdict(name: str, path: Path, listed: dict[str, str]) -> str:
    if name not in listed:
        return ""
    return ", as listed" if listed[name] == sha256_file(path) else f", CHANGED: {manifest.NAME} lists {listed[name]}"
