"""The paper's prose: sentences that numbers could break, and numbers that it quotes."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pandas as pd

from sparse_control.files import read_text
from sparse_control.records.paths import committed_root
from sparse_control.tables.values import misquotes, read_values, value_text
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.claims import check_claim, read_claims

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
    texts, check = attempt("claims in paper/main.tex", lambda: [read_text(path) for path in _prose(project)])
    if texts is None:
        yield check
        return
    prose = " ".join(" ".join(texts).split())
    for claim in claims:
        if claim.table in skipped:
            yield Check(f"claim {claim.id}", "skip", f"table {claim.table} was not recomputed")
            continue
        text, check = attempt(f"claim {claim.id}", lambda claim=claim: check_claim(claim, frames))
        if text is not None and " ".join(claim.sentence.split()) not in prose:
            yield Check(check.name, "FAIL", f"paper/main.tex does not have the sentence: {claim.sentence}")
        else:
            yield Check(check.name, "ok", text) if text is not None else check


def _prose(project: Path) -> list[Path]:
    return [project / "paper" / "main.tex", *_sections(project)]


def _sections(project: Path) -> list[Path]:
    return sorted((project / "paper" / "sections").glob("*.tex"))


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
    for path in _sections(project):
        name = f"section paper/sections/{path.name}"
        wrong, check = attempt(name, lambda path=path: list(misquotes(path, names)))
        yield from (Check(name, "FAIL", detail) for detail in wrong or ())
        if not wrong:
            yield check
