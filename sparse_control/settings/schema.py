"""The settings of `params.yaml` as one strict schema, and what they become on a model whose shape is known."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from sparse_control.errors import InputError
from sparse_control.records.base import FeedbackReadouts, LamRel, Name, Resamples, Seed, Sha256
from sparse_control.records.paths import Null

MOST = 10**6  # of anything that is counted; a slip of the keyboard is found before the hours
Whole = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Sizes = Annotated[list[Annotated[int, Field(ge=2, le=MOST)]], Field(min_length=1)]
Ranks = Annotated[list[Count], Field(min_length=1)]
PowerIterations = Annotated[list[Annotated[int, Field(ge=0, le=100)]], Field(min_length=1)]


def _layer_or_depth(value: Any) -> int | float:
    if (type(value) is int and 0 <= value <= MOST) or (type(value) is float and 0 <= value < 1):
        return value
    raise ValueError(f"must be a layer (0, 1, 2 ...) or a depth (from 0.0 to below 1.0), got {str(value)[:80]!r}")


Layers = Annotated[list[Annotated[int | float, PlainValidator(_layer_or_depth)]], Field(min_length=1)]


class Section(BaseModel):
    """A part of params.yaml: unknown keys, coerced types, NaN and infinity are refused; values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CorpusSettings(Section):
    sequence_length: Annotated[int, Field(ge=2, le=MOST)]
    windows_per_article: Count
    minimum_paragraph_characters: Whole
    seed: Seed


class IssSettings(Section):
    layers: Layers
    benchmark_relations: Count
    calibration_relations: Count
    facts_per_relation: Annotated[int, Field(ge=2, le=MOST)]
    families: Annotated[int, Field(ge=2, le=MOST)]
    templates: Count
    lam_rel_sweep: Annotated[list[LamRel], Field(min_length=1)]
    bootstrap_resamples: Resamples
    bootstrap_seed: Seed

    @model_validator(mode="after")
    def _distinct(self) -> "IssSettings":
        for name in ("layers", "lam_rel_sweep"):
            _without_repeats(name, getattr(self, name))
        return self


class EstimatorSettings(Section):
    reference: bool
    reference_layers: Literal["all", "window"]
    matrix_free: bool
    block_prompts: Count
    checkpoint_seconds: NonNegative
    corpus_sizes: Sizes
    ranks: Ranks
    oversampling: Annotated[list[Whole], Field(min_length=1)]
    power_iterations: PowerIterations
    probe: Literal["gaussian", "rademacher"]
    sketch_seeds: Annotated[list[Seed], Field(min_length=3)]

    @model_validator(mode="after")
    def _ordered(self) -> "EstimatorSettings":
        for name in ("corpus_sizes", "ranks", "oversampling", "power_iterations"):
            _ascending(name, getattr(self, name))
        _without_repeats("sketch_seeds", self.sketch_seeds)
        return self

    @property
    def products(self) -> Literal["exact_reference", "jvp"]:
        """Where sketches and direct actions come from: the exact references, or products behind the model."""
        return "exact_reference" if self.reference and not self.matrix_free else "jvp"


class ValidationSettings(Section):
    activations: Count
    seed: Seed
    median_cosine: Share
    median_relative_error: NonNegative
    iss_rank_difference: NonNegative
    iss_seed_deviation: NonNegative
    negligible_seed_deviation: NonNegative
    corpus_cosine: Share
    corpus_iss_difference: NonNegative


class AlternativeSettings(Section):
    layers: Layers
    ranks: Ranks
    power_iterations: PowerIterations

    @model_validator(mode="after")
    def _ordered(self) -> "AlternativeSettings":
        _without_repeats("layers", self.layers)
        for name in ("ranks", "power_iterations"):
            _ascending(name, getattr(self, name))
        return self


class NullSettings(Section):
    layers: Layers
    corpus_sizes: Sizes

    @model_validator(mode="after")
    def _ordered(self) -> "NullSettings":
        _without_repeats("layers", self.layers)
        _ascending("corpus_sizes", self.corpus_sizes)
        return self


def _ascending(name: str, values: list) -> None:
    if values != sorted(set(values)):
        raise ValueError(f"{name} must be ascending without repeats, got {values}")


def _without_repeats(name: str, values: list) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{name} must be without repeats, got {values}")


class PairCounts(Section):
    fit: Count
    evaluate: Count
    reuse: Count


class FeedbackSettings(Section):
    readouts: FeedbackReadouts
    dose_limits: Annotated[list[float], Field(min_length=2, max_length=2)]
    targets: dict[str, Count]
    tolerance: dict[str, NonNegative]

    @model_validator(mode="after")
    def _limits_around_zero(self) -> "FeedbackSettings":
        low, high = self.dose_limits
        if not low < 0 < high:
            raise ValueError(f"dose_limits must be one negative and one positive dose, got {self.dose_limits}")
        return self


class ProtocolSettings(Section):
    """Names of tasks, selectors and conditions are checked by `protocol.grid`, which knows them."""

    tasks: Annotated[list[str], Field(min_length=1)]
    selectors: Annotated[list[str], Field(min_length=1)]
    conditions: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    task_seeds: dict[str, Annotated[list[Seed], Field(min_length=1)]]
    components: Annotated[list[Literal["head", "mlp", "resid"]], Field(min_length=1)]
    positions: Annotated[list[int], Field(min_length=1)]
    support_size: Count
    random_supports: Count
    template_arguments: dict[str, str | bool | int | float]  # of the chat template; date is what it takes for today
    pairs: PairCounts
    minimum_pairs: Count
    minimum_gap: NonNegative
    minimum_effect: Share
    maximum_strength: Annotated[float, Field(gt=0)]
    effects: Literal["first_order", "measured"]
    effects_check: Count
    doses: Annotated[list[float], Field(min_length=2)]
    feedback: FeedbackSettings

    @model_validator(mode="after")
    def _complete(self) -> "ProtocolSettings":
        for needed in (0.0, 1.0):
            if needed not in self.doses:
                raise ValueError(f"doses must contain {needed:g}, got {self.doses}")
        for name in ("tasks", "selectors", "conditions", "seeds", "components", "positions", "doses"):
            _without_repeats(name, getattr(self, name))
        for task, seeds in self.task_seeds.items():
            _without_repeats(f"task_seeds.{task}", seeds)
        if self.minimum_pairs > min(self.pairs.fit, self.pairs.evaluate, self.pairs.reuse):
            raise ValueError(f"minimum_pairs is more than a split has, got {self.minimum_pairs}")
        for task in self.tasks:
            for name in ("targets", "tolerance"):
                if task not in getattr(self.feedback, name):
                    raise ValueError(f"feedback.{name} has no entry for task {task!r}")
        return self

    def seeds_of(self, task: str) -> list[int]:
        """The seeds of one task: its own where `task_seeds` has some."""
        return self.task_seeds.get(task, self.seeds)


class FactsSettings(Section):
    """Facts of the reader's own, in place of the project's: what records say of them, and where they are.

    The paths are of this machine and never saved; `sha256` is over the names and contents of all files.
    """

    file: Name  # its name, or that of the folder
    prompts: Name | None  # name of the file of prompts, where there is one
    kind: Literal["own", "pararel", "lama"]
    sha256: Sha256
    left_out: dict[Name, Count]  # how many patterns, facts and relations, by reason
    path: str = Field(exclude=True)
    prompts_path: str | None = Field(exclude=True)


LAYERED = ("iss", "alternatives", "nulls")  # sections with layers
RANKED = ("estimator", "alternatives")  # sections with ranks


class Settings(Section):
    """All settings of one preset."""

    preset: str
    model: Annotated[str, Field(min_length=1, pattern=r"\S")]
    dtype: Literal["float32", "float64", "bfloat16", "float16"]
    threads: Annotated[int, Field(ge=1, le=1024)]
    corpus: CorpusSettings
    iss: IssSettings
    estimator: EstimatorSettings
    validation: ValidationSettings
    alternatives: AlternativeSettings
    nulls: NullSettings
    protocol: ProtocolSettings
    null: Null = "none"
    # of `--facts`; no key of the file, and none of records measured with the project's own
    facts: FactsSettings | None = Field(default=None, exclude_if=lambda facts: facts is None)

    def as_null(self, null: Null) -> "Settings":
        """These settings for a null: the same tables with what ISS is about taken away, on fewer layers and prompts."""
        iss = self.iss.model_copy(update={"layers": self.nulls.layers})
        estimator = self.estimator.model_copy(
            update={"reference_layers": "window", "corpus_sizes": self.nulls.corpus_sizes}
        )
        return self.model_copy(update={"null": null, "iss": iss, "estimator": estimator})

    def for_model(self, *, n_layers: int, width: int, uses: Collection[str] = ()) -> "Settings":
        """These settings on one model: depths as its source layers, ranks below its width (source document, 5.3).

        A depth t in [0, 1) is layer `round(t L)`, at most L - 1; depths that meet are one layer. Layers that are given
        as such stay. Every section is resolved, and those in use alone are refused.

        Args:
            n_layers: L.
            width: d.
            uses: names of the sections that a command reads.

        Raises:
            InputError: a section in use names a layer the model does not have, or no rank below its width.
        """
        update: dict[str, Any] = {}
        for name in LAYERED:
            layers = source_layers(getattr(self, name).layers, n_layers)
            update[name] = {"layers": layers}
            if name in uses and layers[-1] >= n_layers:
                raise InputError(
                    f"params.yaml: {name}.layers: {layers[-1]} is not a source layer of {self.model}; "
                    f"use 0..{n_layers - 1}, or depths from 0.0 to below 1.0"
                )
        for name in RANKED:
            ranks = [rank for rank in getattr(self, name).ranks if rank < width]
            update.setdefault(name, {})["ranks"] = ranks
            if name in uses and not ranks:
                raise InputError(
                    f"params.yaml: {name}.ranks: none is below the width {width} of {self.model}; "
                    f"add one of 1..{width - 1}"
                )
        sections = {name: getattr(self, name).model_copy(update=changed) for name, changed in update.items()}
        resolved = self.model_copy(update=sections)
        missing = sorted(set(resolved.alternatives.layers) - set(resolved.iss.layers))
        if "alternatives" in uses and self.estimator.reference_layers == "window" and missing:
            raise InputError(
                f"params.yaml: alternatives.layers: {missing} must be among iss.layers {resolved.iss.layers} where "
                "estimator.reference_layers is window"
            )
        return resolved

    def ranks_left_out(self, width: int) -> list[str]:
        """What `for_model` leaves out of the ranks of params.yaml, a line a section, for a person."""
        told = []
        for name in RANKED:
            if cut := [rank for rank in getattr(self, name).ranks if rank >= width]:
                told.append(f"{name}.ranks: {', '.join(map(str, cut))} left out, not below the width {width}")
        return told


def source_layers(layers: Collection[int | float], n_layers: int) -> list[int]:
    """Layers and depths as the layers of a model, ascending."""
    return sorted({layer if isinstance(layer, int) else min(round(layer * n_layers), n_layers - 1) for layer in layers})
