"""The files of `jacobian_iss/` that tables are made of, typed (source document of ISS, section 14)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from sparse_control.artifact.records import (
    Count,
    Name,
    NonNegative,
    Record,
    RelativePath,
    Sha256,
    read_record,
    read_record_lines,
    same_length,
)  # fmt: skip
from sparse_control.errors import InputError

Interval = Annotated[list[float | None], Field(min_length=2, max_length=2)]  # low, high; null where undefined
Metric = Literal["ISS", "Raw-ISS"]
LayerNumber = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,3})$")]  # as a JSON key


class ComparisonRow(Record):
    """One low-rank estimator against the full empirical Jacobian reference (Experiment A)."""

    layer: Count
    estimator: Name  # qb, or a named alternative
    probe: Name  # gaussian or rademacher
    oversampling: Count  # p
    power_iterations: Count  # q
    seed: Count  # of the sketch
    k: Count  # rank
    r: Count  # columns kept, k + p or the width
    E_F: NonNegative  # relative Frobenius error
    E_vec: NonNegative  # mean relative error of transported vectors
    C_vec: float  # mean cosine of transported vectors
    E_vec_centred: NonNegative  # the same with the mean activation taken off
    C_vec_centred: float
    E_ISS: NonNegative | None  # |ISS_full - ISS_k|
    rho_fact: float | None  # Spearman of per-fact ISS; null where either side is constant
    svd_floor_E_F: NonNegative  # the same errors of the best matrix of rank r
    svd_floor_E_vec: NonNegative


class NoiseFloor(Record):
    """Two disjoint halves of the corpus against each other: the corpus error at n/2."""

    layer: Count
    E_F: NonNegative
    E_vec: NonNegative
    C_vec: float


class FullComparison(Record):
    """validation/small_model_full_comparison.json."""

    model: Name
    corpus_size: Count  # n
    rows: list[ComparisonRow]
    noise_floor: list[NoiseFloor]


class ActionValidation(Record):
    """One rung of the failure ladder at one layer, validation/per_model_action_validation.jsonl."""

    model: Name
    layer: Count
    k: Count  # rank
    k_over_d: NonNegative  # rank over width
    r: Count  # columns kept
    oversampling: Count  # p
    power_iterations: Count  # q
    corpus_size: Count  # n
    direct_action: Literal["exact_reference", "jvp"]  # where J h comes from
    median_cosine: float | None  # of J h and its estimate over held-out activations
    median_relative_error: NonNegative | None
    iss_rank_difference: NonNegative | None  # |ISS(2k) - ISS(k)|
    iss_seed_deviation: NonNegative | None  # sample sd of ISS over sketch seeds
    iss: float | None  # calibration ISS at this rung
    partner_r: Count | None  # columns of the comparison partner, 2k + p or the width
    passed: bool  # whether all criteria hold
    step: Name  # what the ladder enlarged to get here
    reason: str | None  # the criteria that failed, or a remark on the one that passed
    chosen: bool  # whether this rung is the frozen one

    @model_validator(mode="after")
    def _chosen_passed(self) -> "ActionValidation":
        if self.chosen and not self.passed:
            raise ValueError("chosen must be false where passed is false: a failed rung is never frozen")
        return self


class RankConvergence(Record):
    """validation/rank_convergence.jsonl."""

    model: Name
    layer: Count
    k: Count
    r: Count
    oversampling: Count
    power_iterations: Count
    seed: Count
    iss: float | None  # calibration ISS


class CorpusConvergence(Record):
    """validation/corpus_convergence.jsonl: n prompts against 2n."""

    model: Name
    layer: Count
    n: Count
    cosine_to_2n: float  # of transported vectors
    iss_difference: NonNegative | None  # |ISS_n - ISS_2n|


class SeedStability(Record):
    """validation/seed_stability.jsonl: one metric over sketch seeds."""

    model: Name
    layer: Count
    k: Count
    oversampling: Count
    power_iterations: Count
    metric: Name  # cosine, relative error, ISS, ...
    seeds: list[Count]
    values: list[float]  # per seed
    mean: float
    sd: NonNegative  # sample standard deviation

    @model_validator(mode="after")
    def _shapes(self) -> "SeedStability":
        same_length("seeds", len(self.seeds), values=self.values)
        return self


class FrozenLayer(Record):
    """The frozen estimator of one layer; null settings where unresolved."""

    status: Literal["validated", "unresolved"]
    k: Count | None = None
    oversampling: Count | None = None
    power_iterations: Count | None = None
    corpus_size: Count | None = None
    step: str | None  # the ladder step that led here


class Whitening(Record):
    """Ledoit-Wolf regularisation of one layer's calibration rows, relative to tr(Sigma)/d."""

    iss: NonNegative  # of transported states
    raw: NonNegative  # of raw states


class FrozenIssSettings(Record):
    """The settings of the bootstrap, among others."""

    model_config = ConfigDict(extra="allow")

    bootstrap_resamples: Annotated[int, Field(ge=1, le=10**6)]
    bootstrap_seed: Count


class FrozenSettings(Record):
    """All settings as they were at the freeze; those read here are typed."""

    model_config = ConfigDict(extra="allow")

    iss: FrozenIssSettings


class FreezeManifest(Record):
    """freeze_manifest.json: what stage D was allowed to use."""

    schema_: Literal["freeze/1"] = Field(alias="schema")
    model: Name
    settings: FrozenSettings
    corpus_sha256: Sha256
    layers: dict[LayerNumber, FrozenLayer]
    lam_rel: dict[LayerNumber, Whitening]
    code_sha256: Sha256  # of the four stages
    files: dict[RelativePath, Sha256]  # path below jacobian_iss/ -> SHA-256 of configs, validation files, factors


class FactLayer(Record):
    """One fact at one layer, iss_per_fact_layer.jsonl."""

    model: Name
    layer: Count
    fact: Name  # relation/subject
    relation: Name
    metric: Metric
    s_plus: float | None  # similarity of the fact across condition families
    s_minus: float | None  # similarity to other facts of its relation
    iss: float | None
    reason: str | None  # why it is undefined

    @model_validator(mode="after")
    def _null_has_a_reason(self) -> "FactLayer":
        if (self.iss is None) != (self.reason is not None):
            raise ValueError(
                f"reason must be given exactly where iss is null, got iss {self.iss} and reason {self.reason!r}"
            )
        return self


class FactMean(Record):
    """One fact over the layer window, iss_per_fact.jsonl."""

    model: Name
    fact: Name
    relation: Name
    metric: Metric
    iss: float | None
    n_layers: Count  # layers in the mean
    reason: str | None


class OfficialIss(Record):
    """A mean over facts with its relation-clustered bootstrap intervals."""

    mean: float  # over facts
    percentile: Interval  # low, high
    bca: Interval
    n_facts: Count
    n_relations: Count


class LayerSummary(Record):
    """ISS and Raw-ISS at one layer."""

    layer: Count
    status: Literal["validated", "unresolved"]
    iss: float | None  # null where unresolved
    raw_iss: float | None  # at its own regularisation
    raw_iss_matched_lam: float | None  # at the regularisation of ISS
    lam_rel_iss: NonNegative | None
    lam_rel_raw: NonNegative | None

    @model_validator(mode="after")
    def _unresolved_has_no_iss(self) -> "LayerSummary":
        if self.status == "unresolved" and self.iss is not None:
            raise ValueError(f"iss must be null at an unresolved layer, got {self.iss}")
        return self


class RelationSummary(Record):
    """ISS and Raw-ISS of one relation."""

    relation: Name
    iss: float | None
    raw_iss: float | None
    n_facts: Count


class SweepRow(Record):
    """ISS and Raw-ISS of one layer at one regularisation."""

    layer: Count
    lam_rel: NonNegative
    iss: float | None
    raw_iss: float | None


class IssProvenance(Record):
    """What stage D measured with."""

    model: dict[str, Any]  # name, revision, weights and tokenizer hashes, dtype, device, versions
    params_sha256: Sha256  # of the settings
    corpus_sha256: Sha256
    code_sha256: Sha256  # of the four stages
    threads: Annotated[int, Field(ge=1)]


class IssSummary(Record):
    """iss_model_summary.json."""

    model: Name
    window: list[Count]  # layers asked for
    validated_layers: list[Count]
    unresolved_layers: list[Count]
    lam_rel: dict[LayerNumber, Whitening]
    ISS: OfficialIss | None  # null where no layer is validated
    per_layer: list[LayerSummary]
    per_relation: list[RelationSummary]
    sweep: list[SweepRow]
    answer_accuracy: dict[str, Any]  # share of prompts answered rightly, overall and by relation and family
    provenance: IssProvenance

    @model_validator(mode="after")
    def _layers_agree(self) -> "IssSummary":
        by_status = {status: sorted(row.layer for row in self.per_layer if row.status == status)
                     for status in ("validated", "unresolved")}  # fmt: skip
        for status, listed in (("validated", self.validated_layers), ("unresolved", self.unresolved_layers)):
            if sorted(listed) != by_status[status]:
                raise ValueError(f"{status}_layers must be those of per_layer {by_status[status]}, got {listed}")
        if sorted(self.window) != sorted(self.validated_layers + self.unresolved_layers):
            raise ValueError(f"window must be the validated and the unresolved layers, got {self.window}")
        if (self.ISS is None) is bool(self.validated_layers):
            raise ValueError("ISS must be given exactly where a layer is validated")
        return self


class RawLayer(Record):
    """Raw-ISS at one layer."""

    layer: Count
    raw_iss: float | None


class RawIss(OfficialIss):
    """raw_iss_ablation.json: identity transport, over all layers asked for; never the official metric."""

    model: Name
    per_layer: list[RawLayer]
    provenance: IssProvenance


@dataclass(frozen=True, kw_only=True)
class IssRecords:
    """What stands in `jacobian_iss/`; a file that is not there is None or empty."""

    comparison: FullComparison | None = None
    actions: tuple[ActionValidation, ...] = ()
    rank_convergence: tuple[RankConvergence, ...] = ()
    corpus_convergence: tuple[CorpusConvergence, ...] = ()
    seed_stability: tuple[SeedStability, ...] = ()
    freeze: FreezeManifest | None = None
    fact_layers: tuple[FactLayer, ...] = ()
    facts: tuple[FactMean, ...] = ()
    summary: IssSummary | None = None
    raw: RawIss | None = None


# field of IssRecords -> file below jacobian_iss/, its type
FILES: dict[str, tuple[str, type[Record]]] = {
    "comparison": ("validation/small_model_full_comparison.json", FullComparison),
    "actions": ("validation/per_model_action_validation.jsonl", ActionValidation),
    "rank_convergence": ("validation/rank_convergence.jsonl", RankConvergence),
    "corpus_convergence": ("validation/corpus_convergence.jsonl", CorpusConvergence),
    "seed_stability": ("validation/seed_stability.jsonl", SeedStability),
    "freeze": ("freeze_manifest.json", FreezeManifest),
    "fact_layers": ("iss_per_fact_layer.jsonl", FactLayer),
    "facts": ("iss_per_fact.jsonl", FactMean),
    "summary": ("iss_model_summary.json", IssSummary),
    "raw": ("raw_iss_ablation.json", RawIss),
}


def read_iss_file(root: Path, field: str) -> Any:
    """Read one file of `jacobian_iss/` by its field in `IssRecords`: a record, a tuple of records, or None / ().

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    name, kind = FILES[field]
    path = Path(root, "jacobian_iss", name)
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
            raise InputError(f"{path}:{number}: fact: stands twice for this layer and metric, got {row.fact!r}")
        seen.add(key)


def read_iss(root: Path) -> IssRecords:
    """Read every file of `jacobian_iss/` that is there.

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    return IssRecords(**{field: read_iss_file(root, field) for field in FILES})
