"""The files of `jacobian_iss/` that tables are made of, typed (source document of ISS, section 14)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.records.base import Record, read_record, read_record_lines
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.jacobian_iss.results import FactLayer, FactMean, IssSummary, RawIss
from sparse_control.records.jacobian_iss.validation import (
    ActionValidation,
    AlternativeAttempt,
    CorpusConvergence,
    FullComparison,
    RankConvergence,
    SeedStability,
)
from sparse_control.records.paths import ModelPaths


@dataclass(frozen=True, kw_only=True)
class IssRecords:
    """What is in `jacobian_iss/`; a file that is not there is None or empty."""

    comparison: FullComparison | None = None
    actions: tuple[ActionValidation, ...] = ()
    rank_convergence: tuple[RankConvergence, ...] = ()
    corpus_convergence: tuple[CorpusConvergence, ...] = ()
    seed_stability: tuple[SeedStability, ...] = ()
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


# field of IssRecords -> file below jacobian_iss/, its type
FILES: dict[str, tuple[str, type[Record]]] = {
    "comparison": ("validation/small_model_full_comparison.json", FullComparison),
    "actions": ("validation/per_model_action_validation.jsonl", ActionValidation),
    "rank_convergence": ("validation/rank_convergence.jsonl", RankConvergence),
    "corpus_convergence": ("validation/corpus_convergence.jsonl", CorpusConvergence),
    "seed_stability": ("validation/seed_stability.jsonl", SeedStability),
    "alternatives": ("validation/alternatives.jsonl", AlternativeAttempt),
    "freeze": ("freeze_manifest.json", FreezeManifest),
    "fact_layers": ("iss_per_fact_layer.jsonl", FactLayer),
    "facts": ("iss_per_fact.jsonl", FactMean),
    "summary": ("iss_model_summary.json", IssSummary),
    "raw": ("raw_iss_ablation.json", RawIss),
}


def iss_file(paths: ModelPaths, field: str) -> Path:
    """The file of a field of `IssRecords`."""
    return paths.base / FILES[field][0]


def read_iss_file(paths: ModelPaths, field: str) -> Any:
    """Read one file of `jacobian_iss/` by its field in `IssRecords`: a record, a tuple of records, or None / ().

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    path, kind = iss_file(paths, field), FILES[field][1]
    if path.suffix == ".json":
        return read_record(kind, path) if path.exists() else None
    rows = tuple(read_record_lines(kind, path)) if path.exists() else ()
    if kind in (FactLayer, FactMean):
        _once_per_fact(path, rows)
    return rows


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
    return IssRecords(**{field: read_iss_file(paths, field) for field in FILES})
