"""The six-axis record: one line for one seed, with every readout the statistics need and nothing derived from them.

Files are named by `ModelPaths.six_axis`; margins and other readouts are in logits.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from sparse_control.files import sha256_json
from sparse_control.records.base import (
    Count,
    FeedbackReadouts,
    Name,
    NonNegative,
    Record,
    Seed,
    Sha256,
    same_length,
)  # fmt: skip
from sparse_control.records.given import GivenOrigin, Panels
from sparse_control.records.paths import ModelPaths

# P: direction of the evaluation pair; F: mean over the fitting split; O: that mean, each pair by its orientation
Condition = Literal["P", "F", "O"]
CONDITIONS = get_args(Condition)
SiteName = Annotated[str, Field(pattern=r"^L\d+\.(head\.\d+|mlp|resid)@-?\d+$")]
Readouts = Annotated[list[float], Field(min_length=1)]


class RecordKey(NamedTuple):
    """What a record is of; unique over a root. Sorts by model, task, selector, condition and seed."""

    model: str
    task: str
    selector: str
    condition: str
    seed: int

    def file(self, root: Path) -> Path:
        """The file that the record is in, with those of the other seeds."""
        return ModelPaths(root, self.model).six_axis(self.task, self.selector, self.condition)

    def __str__(self) -> str:
        return f"{self.task}.{self.selector}.{self.condition} seed {self.seed} of {self.model}"


class GateCount(Record):
    """Pairs of one split before and after the baseline gate."""

    built: Count  # pairs drawn
    kept: Count  # pairs whose gap reaches the minimum
    passed_over: Count | None = None  # candidates the tokenizer makes no minimal edit of, tried before

    @model_validator(mode="after")
    def _kept_of_built(self) -> "GateCount":
        if self.kept > self.built:
            raise ValueError(f"kept must not exceed built ({self.built}), got {self.kept}")
        return self


class Gate(Record):
    """The baseline gate, before any intervention."""

    minimum_gap: NonNegative  # g_min, logits
    fit: GateCount  # pairs the selector sees
    evaluate: GateCount  # pairs the axes are measured on
    reuse: GateCount  # unseen pairs of the reuse axis


class Selection(Record):
    """How the support was chosen, on the fitting split."""

    path: list[float]  # fit after each site was added (R^2, or coverage)
    stop_reason: Name  # why the selector stopped
    predicted_additivity: float | None  # progress that the sum of single-site effects predicts
    measured_additivity: float | None  # progress the joint patch has


class Candidates(Record):
    """The sites the selector may choose from."""

    components: Annotated[list[Literal["head", "mlp", "resid"]], Field(min_length=1)]  # of every layer
    positions: Annotated[list[int], Field(min_length=1)]  # token positions; negative ones count from the end
    sites: Count  # number of candidates
    without_contrast: Count  # sites left out, as the prompts of every fitting pair agree up to there


class Effects(Record):
    """Where the effect columns of the selector come from."""

    kind: Literal["first_order", "measured"]
    check_sites: Count  # sites whose first-order effect was compared with a patch
    check_pearson: float | None  # correlation of the two over these sites


class Norms(Record):
    """Units of the strengths, site by site."""

    direction: list[NonNegative]  # mean ||d_s||; times |beta_s|, over the activation's, it is the size of the push
    activation: list[NonNegative]  # mean ||a_s||
    contrast: list[NonNegative] | None = None  # mean ||a_s(x_tar) - a_s(x_src)||; null in records without it


class Evaluation(Record):
    """Readouts at every dose on the evaluation pairs."""

    pairs: Annotated[list[Name], Field(min_length=1)]  # pair ids
    source: Readouts  # y on the source input, per pair
    target: Readouts  # y on the target input, per pair
    doses: Readouts  # gamma
    patched: list[Readouts]  # y on the source input under the patch: per dose, per pair
    wrong_way: list[float] | None = None  # per dose, share of pairs whose y moves away from the target

    @model_validator(mode="after")
    def _shapes(self) -> "Evaluation":
        same_length("pairs", len(self.pairs), source=self.source, target=self.target)
        same_length("doses", len(self.doses), patched=self.patched)
        for index, row in enumerate(self.patched):
            same_length("pairs", len(self.pairs), **{f"patched[{index}]": row})
        if self.wrong_way is not None and self.wrong_way != self.moved_wrong_way():
            raise ValueError(f"wrong_way must be the shares that patched gives, got {self.wrong_way}")
        if len(set(self.doses)) != len(self.doses) or 1.0 not in self.doses:
            raise ValueError(f"doses must differ from each other and hold the nominal dose 1, got {self.doses}")
        return self

    def moved_wrong_way(self) -> list[float]:
        """Per dose, the share of pairs whose readout moves away from the target."""
        sides = list(zip(self.source, self.target, strict=True))
        return [
            sum((y - s) * (t - s) < 0 for y, (s, t) in zip(row, sides, strict=True)) / len(sides)
            for row in self.patched
        ]

    def at_dose(self, dose: float) -> list[float]:
        """Patched readouts (pairs,) at one of the doses."""
        return self.patched[self.doses.index(dose)]


class Reversal(Record):
    """The opposite patch on the target side."""

    reversed: Readouts  # y on the target input at dose -1, per evaluation pair


class Endpoint(Record):
    """One requested value and where the feedback loop ended."""

    target: float  # m*, the requested mean margin
    initial_margin: float  # M(0)
    terminal_margin: float  # M at the last dose read
    terminal_dose: float  # that dose
    readouts: FeedbackReadouts  # evaluations of M, the zero-dose one included
    stop_reason: Name  # e.g. within tolerance, readouts used up
    clipped: bool  # whether a dose was held at its limit
    trajectory: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    # [dose, M(dose)] in order

    @model_validator(mode="after")
    def _ends_where_it_says(self) -> "Endpoint":
        if self.trajectory[-1] != [self.terminal_dose, self.terminal_margin]:
            raise ValueError(
                f"trajectory must end at terminal_dose and terminal_margin "
                f"[{self.terminal_dose}, {self.terminal_margin}], got {self.trajectory[-1]}"
            )
        return self


class Feedback(Record):
    """The feedback axis of one seed."""

    gain: float  # eta, fixed
    tolerance: NonNegative  # largest error that is a hit
    endpoints: list[Endpoint]


class Preservation(Record):
    """Off-target prompts at the nominal dose, and at all doses."""

    prompts: Annotated[list[Name], Field(min_length=1)]  # prompt ids
    kl: Annotated[
        list[NonNegative], Field(min_length=1)
    ]  # KL(unpatched || patched) over the whole vocabulary, nats, per prompt
    kl_by_dose: list[list[NonNegative]] | None = None  # the same per dose of the evaluation; null in records without it

    @model_validator(mode="after")
    def _shapes(self) -> "Preservation":
        same_length("prompts", len(self.prompts), kl=self.kl)
        for index, row in enumerate(self.kl_by_dose or []):
            same_length("prompts", len(self.prompts), **{f"kl_by_dose[{index}]": row})
        return self


class Reuse(Record):
    """Unseen pairs, with strengths fitted there and with the whole intervention carried over."""

    pairs: Annotated[list[Name], Field(min_length=1)]  # pair ids
    source: Readouts  # y on the source input, per pair
    target: Readouts  # y on the target input, per pair
    refit: Readouts  # y under the support with strengths fitted on these pairs
    frozen: Readouts  # y under the intervention as it was, dose 1 included
    refit_strengths: list[float]  # per site

    @model_validator(mode="after")
    def _shapes(self) -> "Reuse":
        same_length(
            "pairs", len(self.pairs), source=self.source, target=self.target, refit=self.refit, frozen=self.frozen
        )
        return self


class Draw(Record):
    """One draw of a random control, at doses 1 and -1 alone; the record itself is the first draw."""

    support: list[SiteName]  # S
    strengths: list[float]  # beta, per site
    patched: Readouts  # y on the source input at dose 1, per evaluation pair
    reversed: Readouts  # y on the target input at dose -1, per evaluation pair

    @model_validator(mode="after")
    def _shapes(self) -> "Draw":
        same_length("support", len(self.support), strengths=self.strengths)
        same_length("patched", len(self.patched), reversed=self.reversed)
        return self


class Provenance(Record):
    """What a measurement was made with; no times, so that a rerun is byte-identical."""

    model: dict[str, Any]  # name, revision, weights and tokenizer hashes, dtype, device, versions
    params_sha256: Sha256  # of the settings
    code_sha256: Sha256  # of the code that measured
    seed: Seed  # as the record's
    threads: Annotated[int, Field(ge=1)]
    record_sha256: Sha256 | None = None  # `record_sha256` of the record; null in records without it


OPTIONAL = ("candidates", "draws")  # null in records without them, and always where supported is false
SECTIONS = (
    "support", "strengths", "selection", "effects", "norms", "evaluate", "reversal", "feedback", "preservation",
    "reuse",
)  # fmt: skip
SCHEMA = "six-axis/1"


class Measurement(Record):
    """One seed of one (model, task, selector, condition). Where `supported` is false every section is null."""

    schema_: Literal["six-axis/1"] = Field(alias="schema")
    model: Name  # registry name or hub id
    task: Name  # e.g. ioi
    selector: Name  # e.g. coverage_driver; of a given intervention as `given_name`
    condition: Condition
    seed: Seed
    supported: bool  # whether enough pairs pass the baseline gate
    reason: Name | None = None  # why not, where supported is false
    gate: Gate | None  # null where the pairs cannot be built for the model
    panels: Panels | None = None  # null in records without it
    # the file that the intervention was read from; null where it was selected
    origin: GivenOrigin | None = Field(default=None, exclude_if=lambda origin: origin is None)
    candidates: Candidates | None = None
    support: list[SiteName] | None  # S
    strengths: list[float] | None  # beta, per site
    selection: Selection | None
    effects: Effects | None
    norms: Norms | None
    evaluate: Evaluation | None
    reversal: Reversal | None
    feedback: Feedback | None
    preservation: Preservation | None
    reuse: Reuse | None
    draws: list[Draw] | None = None  # of random supports and random directions
    provenance: Provenance

    @model_validator(mode="after")
    def _consistent(self) -> "Measurement":
        for name in SECTIONS:
            if name == "effects" and self.origin is not None and self.effects is None:
                continue  # nothing is selected
            if (getattr(self, name) is None) is self.supported:
                rule = (
                    "must be given where supported is true"
                    if self.supported
                    else "must be null where supported is false"
                )
                raise ValueError(f"{name} {rule}")
        if self.origin is not None and self.origin.selector != self.selector:
            raise ValueError(f"selector must be {self.origin.selector}, as origin says, got {self.selector}")
        if self.provenance.seed != self.seed:
            raise ValueError(f"provenance.seed must be the record's seed {self.seed}, got {self.provenance.seed}")
        if not self.supported:
            return self._unsupported()
        if len(set(self.support)) != len(self.support):
            raise ValueError(f"support must not repeat a site, got {self.support}")
        sites = {
            "strengths": self.strengths,
            "norms.direction": self.norms.direction,
            "norms.activation": self.norms.activation,
            "reuse.refit_strengths": self.reuse.refit_strengths,
        }
        same_length("support", len(self.support), **sites)
        if self.norms.contrast is not None:
            same_length("support", len(self.support), **{"norms.contrast": self.norms.contrast})
        if (by_dose := self.preservation.kl_by_dose) is not None:
            same_length("evaluate.doses", len(self.evaluate.doses), **{"preservation.kl_by_dose": by_dose})
            if by_dose[self.evaluate.doses.index(1.0)] != self.preservation.kl:
                raise ValueError("preservation.kl must be the row of kl_by_dose at dose 1")
        same_length("evaluate.pairs", len(self.evaluate.pairs), **{"reversal.reversed": self.reversal.reversed})
        for index, draw in enumerate(self.draws or []):
            same_length("evaluate.pairs", len(self.evaluate.pairs), **{f"draws[{index}].patched": draw.patched})
        if self.gate is None or self.reason is not None:
            raise ValueError("gate must be given and reason null where supported is true")
        return self

    def _unsupported(self) -> "Measurement":
        for name in OPTIONAL:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} must be null where supported is false")
        if self.gate is None and self.reason is None:
            raise ValueError("gate or reason must be given where supported is false")
        return self

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.model, self.task, self.selector, self.condition, self.seed)


def record_sha256(record: Mapping[str, Any]) -> str:
    """The hash that a record has of its own content: of everything in it but the hash itself.

    A resumed run knows by it that a record is whole, and `verify` that nothing in it was changed.
    """
    provenance = {name: value for name, value in record["provenance"].items() if name != "record_sha256"}
    return sha256_json({**record, "provenance": provenance})


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the hash of its content in its provenance."""
    return {**record, "provenance": record["provenance"] | {"record_sha256": record_sha256(record)}}
