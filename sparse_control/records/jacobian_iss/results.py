"""What stage D measured: ISS and Raw-ISS per fact and layer, per fact, and of the model."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sparse_control.records.base import Count, LamRel, Name, NonNegative, Record, Seed, Sha256
from sparse_control.records.jacobian_iss.freeze import FrozenFacts, LayerNumber, Reporting, Whitening
from sparse_control.records.paths import Null

Interval = Annotated[list[float | None], Field(min_length=2, max_length=2)]  # low, high; null where undefined
Metric = Literal["ISS", "Raw-ISS"]
Share = Annotated[float, Field(ge=0, le=1)]


class SeedScore(Record):
    """One fact at one layer with the factors of one sketch seed."""

    seed: Seed
    s_plus: float
    s_minus: float
    iss: float


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
    # behind the three means, where the mean of sketch seeds is reported; null elsewhere, and in records without it
    seeds: list[SeedScore] | None = None

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
    iss_calibration_sigma: float | None  # whitened with the covariance of the calibration rows; null where unresolved
    raw_iss_calibration_sigma: float | None
    reporting: Reporting | None  # null where unresolved

    @model_validator(mode="after")
    def _unresolved_has_no_iss(self) -> "LayerSummary":
        for name in ("iss", "iss_calibration_sigma", "reporting"):
            if self.status == "unresolved" and getattr(self, name) is not None:
                raise ValueError(f"{name} must be null at an unresolved layer, got {getattr(self, name)}")
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
    lam_rel: LamRel
    iss: float | None
    raw_iss: float | None


class AnswerAccuracy(Record):
    """Share of prompts whose first answer token the model gets right; nothing is filtered on it."""

    overall: Share
    per_relation: dict[Name, Share]
    per_family: dict[Name, Share]  # of prompts


class IssProvenance(Record):
    """What stage D measured with."""

    model: dict[str, Any]  # name, revision, weights and tokenizer hashes, dtype, device, versions
    params_sha256: Sha256  # of the settings
    corpus_sha256: Sha256
    facts: FrozenFacts | None = None  # measured on; null: the project's own
    code_sha256: Sha256  # of the four stages as they measured
    frozen_code_sha256: Sha256  # of the four stages at the freeze
    accepted_code: Name | None  # why a freeze by other code was good enough; null where it is the same code
    threads: Annotated[int, Field(ge=1)]


class IssSummary(Record):
    """iss_model_summary.json."""

    model: Name
    null: Null  # what was taken away from model or corpus, if anything
    window: list[Count]  # layers asked for
    validated_layers: list[Count]
    unresolved_layers: list[Count]
    lam_rel: dict[LayerNumber, Whitening]
    ISS: OfficialIss | None  # null where no layer is validated
    per_layer: list[LayerSummary]
    per_relation: list[RelationSummary]
    sweep: list[SweepRow]
    answer_accuracy: AnswerAccuracy
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

    mean: float | None  # null where no fact is defined at every layer
    reason: Name | None = None  # why it is null
    model: Name
    per_layer: list[RawLayer]
    provenance: IssProvenance
