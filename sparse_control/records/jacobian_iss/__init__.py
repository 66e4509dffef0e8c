"""The files of `jacobian_iss/` that tables are made of, typed (source document of ISS, section 14)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.records.base import Record, printable, read_record, read_record_lines
from sparse_control.records.jacobian_iss.freeze import FreezeManifest, Penalties
from sparse_control.records.jacobian_iss.results import FactLayer, FactMean, IssSummary, RawIss
from sparse_control.records.jacobian_iss.validation import (
    ActionValidation,
    AlternativeAttempt,
    CorpusConvergence,
    FullComparison,
    RankConvergence,
    SeedStability,
)
from sparse_control.records.paths import ISS_FILES, ModelPaths, folder_name


@dataclass(frozen=True, kw_only=True)
class IssRecords:
    """What is in `jacobian_iss/`; a file that is not there is None or empty."""

    comparison: FullComparison | None = None
    actions: tuple[ActionValidation, ...] = ()
    rank_convergence: tuple[RankConvergence, ...] = ()
    corpus_convergence: tuple[CorpusConvergence, ...] = ()
    seed_stability: tuple[SeedStability, ...] = ()
    whitening: Penalties | None = None
    alternatives: tuple[AlternativeAttempt, ...] = ()
    freeze: FreezeManifest | None = None
    fact_layers: tuple[FactLayer, ...] = ()
    facts: tuple[FactMean, ...] = ()
    summary: IssSummary | None = None
    raw: RawIss | None = None

    @property
    def model(self) -> str | None:
        """The model they are of; None without records."""
        for record in (self.freeze, self.summary, self.comparison, *self.actions[:1]):
            if record is not None:
                return record.model
        return None


TYPES: dict[str, type[Record]] = {  # of the files and their lines, by field of IssRecords
    "comparison": FullComparison,
    "actions": ActionValidation,
    "rank_convergence": RankConvergence,
    "corpus_convergence": CorpusConvergence,
    "seed_stability": SeedStability,
    "whitening": Penalties,
    "alternatives": AlternativeAttempt,
    "freeze": FreezeManifest,
    "fact_layers": FactLayer,
    "facts": FactMean,
    "summary": IssSummary,
    "raw": RawIss,
}
FILES = {field: (ISS_FILES[field], kind) for field, kind in TYPES.items()}


def read_iss_file(paths: ModelPaths, field: str) -> Any:
    """Read one file of `jacobian_iss/` by its field in `IssRecords`: a record, a tuple of records, or None / ().

    Raises:
        InputError: names the file, the line, the field and the value; also where a record is of another model than its
            folder, or a fact is there twice.
    """
    path, kind = paths.iss_file(field), TYPES[field]
    lines = path.suffix == ".jsonl"
    if not path.exists():
        return () if lines else None
    rows = tuple(read_record_lines(kind, path) if lines else [read_record(kind, path)])
    for number, row in enumerate(rows, start=1):
        if folder_name(row.model) != (folder := folder_name(paths.model)):
            where = f"{path}:{number}" if lines else path
            raise InputError(printable(f"{where}: model: {row.model}, but its folder is that of {folder}"))
    if kind in (FactLayer, FactMean):
        _once_per_fact(path, rows)
    return rows if lines else rows[0]


def _once_per_fact(path: Path, rows: Iterable[FactLayer | FactMean]) -> None:
    seen = set()
    for number, row in enumerate(rows, start=1):
        key = (row.model, getattr(row, "layer", None), row.fact, row.metric)
        if key in seen:
            raise InputError(f"{path}:{number}: fact: is there twice for this layer and metric, got {row.fact!r}")
        seen.add(key)


def read_iss(paths: ModelPaths) -> IssRecords:
    """Read every file of `jacobian_iss/` of a model, or of one of its nulls, that is there.

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    return IssRecords(**{field: read_iss_file(paths, field) for field in TYPES})
