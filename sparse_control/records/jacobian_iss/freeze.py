"""freeze_manifest.json: what stage D was allowed to use; and the penalties it copies from stage B."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from sparse_control.files import sha256_json
from sparse_control.records.base import Count, Name, NonNegative, Record, RelativePath, Resamples, Seed, Sha256
from sparse_control.records.paths import Null

LayerNumber = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,3})$")]  # as a JSON key
Reporting = Literal["preregistered seed", "mean of seeds"]  # which sketch seeds the official number is of (9)
PREREGISTERED, MEAN_OF_SEEDS = get_args(Reporting)


class FrozenLayer(Record):
    """The frozen estimator of one layer; null settings where unresolved."""

    status: Literal["validated", "unresolved"]
    k: Count | None = None
    oversampling: Count | None = None
    power_iterations: Count | None = None
    corpus_size: Count | None = None
    step: str | None  # the ladder step that led here
    reporting: Reporting | None = None
    seeds: list[Seed] | None = None  # those seeds

    @model_validator(mode="after")
    def _validated_is_whole(self) -> "FrozenLayer":
        kept = ("k", "oversampling", "power_iterations", "corpus_size", "reporting", "seeds")
        for name in kept if self.status == "validated" else ():
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be given at a validated layer")
        return self


class Whitening(Record):
    """Ledoit-Wolf regularisation of one layer's calibration rows, relative to tr(Sigma)/d.

    Null where the rows have no covariance, as relation and family explain every state; then ISS is undefined there.
    """

    iss: NonNegative | None  # of transported states
    raw: NonNegative | None  # of raw states


class Penalties(Record):
    """validation/whitening.json: the regularisation of every layer of the window, before the freeze."""

    model: Name
    lam_rel: dict[LayerNumber, Whitening]


class FrozenIssSettings(Record):
    """The settings of the bootstrap, among others."""

    model_config = ConfigDict(extra="allow")

    bootstrap_resamples: Resamples
    bootstrap_seed: Seed


class FrozenEstimatorSettings(Record):
    """What was to be tried."""

    model_config = ConfigDict(extra="allow")

    reference: bool  # whether exact Jacobians were computed
    probe: Literal["gaussian", "rademacher"]
    sketch_seeds: Annotated[list[Seed], Field(min_length=1)]  # the first is the preregistered one


class Thresholds(Record):
    """The rules: what an estimator and a corpus size must reach, each of them inclusive."""

    model_config = ConfigDict(extra="allow")

    median_cosine: float
    median_relative_error: NonNegative
    iss_rank_difference: NonNegative
    iss_seed_deviation: NonNegative
    negligible_seed_deviation: NonNegative
    corpus_cosine: float
    corpus_iss_difference: NonNegative


class FrozenAlternatives(Record):
    """The representative layers, among others."""

    model_config = ConfigDict(extra="allow")

    layers: list[Count]


class FrozenCorpus(Record):
    """The sequences, among others."""

    model_config = ConfigDict(extra="allow")

    sequence_length: Count  # tokens


class FrozenFacts(Record):
    """Facts of the reader's own, in place of the project's."""

    model_config = ConfigDict(extra="allow")

    file: Name  # name of the file or folder
    sha256: Sha256  # of the names and contents of all its files


class FrozenSettings(Record):
    """All settings as they were at the freeze; those read here are typed."""

    model_config = ConfigDict(extra="allow")

    dtype: Name
    corpus: FrozenCorpus
    iss: FrozenIssSettings
    estimator: FrozenEstimatorSettings
    validation: Thresholds
    alternatives: FrozenAlternatives
    null: Null
    facts: FrozenFacts | None = Field(default=None, exclude_if=lambda facts: facts is None)


class FreezeManifest(Record):
    """freeze_manifest.json."""

    schema_: Literal["freeze/1"] = Field(alias="schema")
    model: Name
    identity: Sha256 | None = None  # of the model, `ModelIdentity.sha256`
    settings: FrozenSettings
    corpus_sha256: Sha256
    calibration_states_sha256: Sha256
    layers: dict[LayerNumber, FrozenLayer]
    lam_rel: dict[LayerNumber, Whitening]
    code_sha256: Sha256  # of the four stages
    files: dict[RelativePath, Sha256]  # path below jacobian_iss/ -> SHA-256 of configs, validation files, factors
    content_sha256: Sha256 | None = None  # `content_sha256` of all of the above; null in manifests without it

    @model_validator(mode="before")
    @classmethod
    def _content_is_whole(cls, value: Any) -> Any:
        stored = value.get("content_sha256") if isinstance(value, dict) else None
        if stored is not None and stored != (found := content_sha256(value)):
            raise ValueError(
                f"content_sha256: {stored!r:.80}, but the content has {found}; freeze again (experiment-c)"
            )
        return value


def content_sha256(manifest: Mapping[str, Any]) -> str:
    """The hash that a freeze manifest has of its own content: of everything in it but the hash itself.

    Stage C writes it as `content_sha256`; every reader of the manifest refuses another one.
    """
    return sha256_json({name: value for name, value in manifest.items() if name != "content_sha256"})
