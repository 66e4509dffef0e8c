"""Where an artefact comes from: its making, its inputs with their hashes, back to weights and corpus.

Everything is read from the files themselves; nothing needs the model, torch or a network.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.project import project_folder
from sparse_control.provenance import iss
from sparse_control.provenance.corpus import CORPUS, corpus_artefact
from sparse_control.provenance.facts import Artefact, code_fact, model_facts
from sparse_control.provenance.sources import sources_of, sources_of_figure
from sparse_control.records import manifest
from sparse_control.records.base import printable
from sparse_control.records.code import changed_files, read_closure
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.records.paths import (
    FIGURES,
    JACOBIAN_ISS,
    NULLS,
    SIX_AXIS,
    TABLES,
    ModelPaths,
    model_folders,
    paper_folder,
)
from sparse_control.records.six_axis_files import read_measurements

__all__ = ["provenance_lines"]


def provenance_lines(path: Path, root: Path) -> list[str]:
    """The chain behind one artefact, a line a fact, inputs indented below what was made of them.

    Args:
        path: a table, page, record file, freeze manifest, factor folder or file, reference, states or corpus.json;
            relative to `root`, to the folder that its `paper/` is in, or as it is.
        root: the folder measured into.

    Raises:
        InputError: no such file, one outside the root and its paper, one of another kind, or one that cannot be read.
    """
    root, path = Path(root), Path(path)
    paper = paper_folder(root, project_folder())
    candidates = (root / path, paper.parent / path, path)
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        raise InputError(f"{path}: no such file or folder, neither below {root} nor here")
    chain = _Chain(root.resolve(), paper.resolve(), _listed(root, paper))
    return [printable(line) for line in chain.lines([found.resolve()], "")]


def _listed(root: Path, paper: Path) -> dict[Path, str]:
    """Hashes by the manifests and freezes of the root and its paper."""
    hashes: dict[Path, str] = {}
    for model in model_folders(root):
        own = ModelPaths(root, model)
        for study in (own, *own.nulls):
            freeze = read_iss_file(study, "freeze")
            hashes |= {study.base / name: sha256 for name, sha256 in (freeze.files if freeze else {}).items()}
    if listed := manifest.read_manifest(root):
        hashes |= {
            root / name: sha256 for part in (listed.measurements, listed.binaries) for name, sha256 in part.items()
        }
    if rendered := manifest.read_rendered_manifest(paper):
        hashes |= {paper / name: sha256 for name, sha256 in rendered.files.items()}
    return {path.resolve(): sha256 for path, sha256 in hashes.items()}


@dataclass
class _Chain:
    """One walk from an artefact to all that it was made of; every path is resolved."""

    root: Path
    paper: Path
    listed: dict[Path, str]

    def __post_init__(self) -> None:
        self._told: set[Path] = set()

    def lines(self, paths: Sequence[Path], indent: str) -> Iterator[str]:
        """What is known of `paths`, and below it of their inputs; those made alike are told of together."""
        alike: dict[Artefact, list[Path]] = {}
        for path in paths:
            if path in self._told:
                yield f"{indent}{self._name(path)}: told already"
            elif not path.exists():
                listed = f", listed with SHA-256 {self.listed[path]}" if path in self.listed else ""
                yield f"{indent}{self._name(path)}: not in this folder{listed}"
            else:
                alike.setdefault(self._artefact(path), []).append(path)
            self._told.add(path)
        for artefact, found in alike.items():
            for path in found:
                yield f"{indent}{self._name(path)}"
                if path.is_file():
                    yield f"{indent}  sha256: {self._hash(path)}"
            each = f"each of these {len(found)}: " if len(found) > 1 else ""
            yield f"{indent}  {each}{artefact.kind}"
            for fact in artefact.facts:
                yield f"{indent}  {fact}"
            if artefact.inputs:
                yield f"{indent}  made of:"
            yield from self.lines([source.resolve() for source in artefact.inputs], indent + "    ")

    def _name(self, path: Path) -> str:
        for folder in (self.root, self.paper.parent):
            if path.is_relative_to(folder):
                return path.relative_to(folder).as_posix()
        return path.as_posix()

    def _hash(self, path: Path) -> str:
        found = sha256_file(path)
        if path not in self.listed:
            return found
        same = self.listed[path] == found
        return f"{found}, as listed" if same else f"{found}, CHANGED: {manifest.NAME} lists {self.listed[path]}"

    def _artefact(self, path: Path) -> Artefact:
        if path.name == CORPUS.name:
            return corpus_artefact(path)
        if path.is_relative_to(self.paper):
            found = self._rendered(path.relative_to(self.paper).as_posix())
        elif path.is_relative_to(self.root):
            found = self._measured(path)
        else:
            raise InputError(f"{path}: is not below {self.root}; give the root it belongs to with --root")
        if found is None:
            raise InputError(f"{path}: is nothing that this project measures or renders")
        return found

    def _rendered(self, name: str) -> Artefact | None:
        match = re.fullmatch(rf"(?P<folder>{TABLES}|{FIGURES})/(?P<name>.+)\.(csv|tex|html|json|pdf|svg)", name)
        if match is None:
            return None
        kind = "rendered on the CPU by `reproduce` from saved measurements"
        made_of = sources_of if match["folder"] == TABLES else sources_of_figure
        sources = made_of(match["name"], manifest.measured_files(self.root))
        return Artefact(kind=kind, inputs=tuple(self.root / source for source in sources))

    def _measured(self, path: Path) -> Artefact | None:
        folder, *inside = path.relative_to(self.root).parts or ("",)
        if folder == "code" and len(inside) == 1:
            return _closure(self.root, path)
        paths = ModelPaths(self.root, folder)
        if len(inside) > 2 and inside[0] == NULLS:
            paths, inside = ModelPaths(self.root, folder, inside[1]), inside[2:]
        if inside[:1] == [JACOBIAN_ISS]:
            return iss.describe(paths, "/".join(inside[1:]))
        if inside[:1] == [SIX_AXIS] and path.suffix == ".jsonl":
            return _six_axis(self.root, path)
        return None


def _six_axis(root: Path, path: Path) -> Artefact:
    records = read_measurements(root, path)
    facts: list[str] = []
    for provenance in [record.provenance for record in records][:1]:
        facts += [
            *model_facts(provenance.model),
            f"params sha256: {provenance.params_sha256}",
            code_fact(root, provenance.code_sha256),
            f"threads: {provenance.threads}",
        ]
    facts.append(f"seeds: {', '.join(str(record.seed) for record in records)}")
    return Artefact(kind="six-axis records, one a seed", facts=tuple(facts))


def _closure(root: Path, path: Path) -> Artefact | None:
    if not re.fullmatch(r"[0-9a-f]{64}\.json", path.name):
        return None
    closure = read_closure(root, path.stem)
    facts: tuple[str, ...] = ()
    if closure is not None:
        since = [f"{what} since: {name}" for what, names in changed_files(closure).items() for name in names]
        facts = (f"modules: {', '.join(closure.modules)}", *(since or ["as it is here"]))
    return Artefact(kind="hashes of the files of the code that measured", facts=facts)
