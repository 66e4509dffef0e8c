"""The paper's prose: sentences that numbers could break, and numbers that it quotes."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pandas as pd

from sparse_control.records.paths import committed_root
from sparse_control.tables.values import misquotes, read_values, value_text
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.claims import Claim, Sentence, check_relation, read_claims, read_results, wrong_use

SECTIONS, RESULTS = "sections", "results"  # folders of paper/: what is measured how, and what was found
Frames = Mapping[str, pd.DataFrame]


def claim_checks(root: Path, project: Path, frames: Frames, skipped: Collection[str]) -> Iterator[Check]:
    """The paper speaks of the project's own measurements; another root is not held to it."""
    if root.resolve() != committed_root(project).resolve():
        yield Check("claims", "skip", "the paper speaks of the measurements of the project")
        return
    claims, check = attempt("claims", lambda: read_claims(project / "paper" / "claims.yaml"))
    if claims is None:
        yield check
        return
    sentences: list[Sentence] = []
    for path in _texts(project, RESULTS):
        title = f"results paper/{RESULTS}/{path.name}"
        found, check = attempt(title, lambda path=path: read_results(path))
        if found is None:
            yield check
            continue
        sentences += found[0]
        yield from (Check(title, "FAIL", detail) for detail in found[1])
    known = {claim.id for claim in claims}
    for one in sentences:
        if one.id not in known:
            yield Check(f"claim {one.id}", "FAIL", f"{one.file}:{one.line}: there is no such claim in claims.yaml")
    for claim in claims:
        yield _claim_check(claim, sentences, frames, skipped)


def _claim_check(claim: Claim, sentences: list[Sentence], frames: Frames, skipped: Collection[str]) -> Check:
    name = f"claim {claim.id}"
    if wrong := wrong_use(claim, sentences):
        return Check(name, "FAIL", wrong)
    if lost := sorted({relation.table for relation in claim.holds}.intersection(skipped)):
        return Check(name, "skip", f"not recomputed: {', '.join(lost)}")
    texts, check = attempt(name, lambda: [check_relation(relation, frames) for relation in claim.holds])
    return check if texts is None else Check(name, "ok", "; ".join(texts))


def _texts(project: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((project / "paper" / folder).glob("*.tex"))]


def value_checks(root: Path, project: Path, frames: Frames, skipped: Collection[str]) -> Iterator[Check]:
    """Every quoted number has its cell, and the sections that quote some write none by hand."""
    if root.resolve() != committed_root(project).resolve():
        return
    values, check = attempt("values", lambda: read_values(project))
    if values is None:
        yield check
        return
    for value in values:
        name = f"value {value.name}"
        if value.table in skipped:
            yield Check(name, "skip", f"table {value.table} was not recomputed")
            continue
        text, check = attempt(name, lambda value=value: value_text(value, frames))
        yield check if text is None else Check(name, "ok", text)
    names = {value.name for value in values}
    for path in _texts(project, SECTIONS, RESULTS):
        name = f"section paper/{path.parent.name}/{path.name}"
        wrong, check = attempt(name, lambda path=path: list(misquotes(path, names)))
        yield from (Check(name, "FAIL", detail) for detail in wrong or ())
        if not wrong:
            yield check
