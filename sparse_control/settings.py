"""`params.yaml`: one strict schema, presets laid over the base, errors that name the file, the field and the value."""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparse_control.errors import InputError
from sparse_control.files import read_yaml
from sparse_control.records.paths import Null

Whole = Annotated[int, Field(ge=0, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Sizes = Annotated[list[Annotated[int, Field(ge=2, strict=True)]], Field(min_length=1)]
Layers = Annotated[list[Whole], Field(min_length=1)]

MOST_TOLD = 8  # errors of one file that are told in full


class Section(BaseModel):
    """A part of params.yaml: unknown keys, wrong types, NaN and infinity are refused; values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CorpusSettings(Section):
    sequence_length: Annotated[int, Field(ge=2, strict=True)]
    windows_per_article: Count
    minimum_paragraph_characters: Whole
    seed: Whole


class IssSettings(Section):
    layers: Layers
    benchmark_relations: Count
    calibration_relations: Count
    facts_per_relation: Annotated[int, Field(ge=2, strict=True)]
    families: Annotated[int, Field(ge=2, strict=True)]
    templates: Count
    lam_rel_sweep: Annotated[list[NonNegative], Field(min_length=1)]
    bootstrap_resamples: Count
    bootstrap_seed: Whole

    @model_validator(mode="after")
    def _distinct_layers(self) -> "IssSettings":
        if _repeated(self.layers):
            raise ValueError(f"layers must be without repeats, got {self.layers}")
        return self


class EstimatorSettings(Section):
    reference: Annotated[bool, Field(strict=True)]
    reference_layers: Literal["all", "window"]
    block_prompts: Count
    checkpoint_seconds: NonNegative
    corpus_sizes: Sizes
    ranks: Annotated[list[Count], Field(min_length=1)]
    oversampling: Annotated[list[Whole], Field(min_length=1)]
    power_iterations: Annotated[list[Whole], Field(min_length=1)]
    probe: Literal["gaussian", "rademacher"]
    sketch_seeds: Annotated[list[Whole], Field(min_length=3)]

    @model_validator(mode="after")
    def _ordered(self) -> "EstimatorSettings":
        for name in ("corpus_sizes", "ranks", "oversampling", "power_iterations"):
            _ascending(name, getattr(self, name))
        if len(set(self.sketch_seeds)) != len(self.sketch_seeds):
            raise ValueError(f"sketch_seeds must differ from each other, got {self.sketch_seeds}")
        return self


class ValidationSettings(Section):
    activations: Count
    seed: Whole
    median_cosine: Share
    median_relative_error: NonNegative
    iss_rank_difference: NonNegative
    iss_seed_deviation: NonNegative
    negligible_seed_deviation: NonNegative
    corpus_cosine: Share
    corpus_iss_difference: NonNegative


class AlternativeSettings(Section):
    layers: Layers
    ranks: Annotated[list[Count], Field(min_length=1)]
    power_iterations: Annotated[list[Whole], Field(min_length=1)]

    @model_validator(mode="after")
    def _ordered(self) -> "AlternativeSettings":
        for name in ("layers", "ranks", "power_iterations"):
            _ascending(name, getattr(self, name))
        return self


class NullSettings(Section):
    layers: Layers
    corpus_sizes: Sizes

    @model_validator(mode="after")
    def _ordered(self) -> "NullSettings":
        for name in ("layers", "corpus_sizes"):
            _ascending(name, getattr(self, name))
        return self


def _ascending(name: str, values: list) -> None:
    if values != sorted(set(values)):
        raise ValueError(f"{name} must be ascending without repeats, got {values}")


def _repeated(values: list) -> bool:
    return len(set(values)) != len(values)


class PairCounts(Section):
    fit: Count
    evaluate: Count
    reuse: Count


class FeedbackSettings(Section):
    readouts: Count
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
    seeds: Annotated[list[Whole], Field(min_length=1)]
    task_seeds: dict[str, Annotated[list[Whole], Field(min_length=1)]]
    components: Annotated[list[Literal["head", "mlp", "resid"]], Field(min_length=1)]
    positions: Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1)]
    support_size: Count
    random_supports: Count
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
            if _repeated(getattr(self, name)):
                raise ValueError(f"{name} must be without repeats, got {getattr(self, name)}")
        for task, seeds in self.task_seeds.items():
            if _repeated(seeds):
                raise ValueError(f"task_seeds.{task} must be without repeats, got {seeds}")
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


class Settings(Section):
    """All settings of one preset. `width`-dependent checks stand in `check_width`, where the model is known."""

    preset: str
    model: str
    dtype: Literal["float32", "float64", "bfloat16", "float16"]
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)]
    corpus: CorpusSettings
    iss: IssSettings
    estimator: EstimatorSettings
    validation: ValidationSettings
    alternatives: AlternativeSettings
    nulls: NullSettings
    protocol: ProtocolSettings
    null: Null = "none"

    @model_validator(mode="after")
    def _alternatives_have_references(self) -> "Settings":
        if self.null == "none" and self.estimator.reference_layers == "window":
            missing = sorted(set(self.alternatives.layers) - set(self.iss.layers))
            if missing:
                raise ValueError(
                    f"alternatives.layers must be among iss.layers where estimator.reference_layers is window, got {missing}"
                )
        return self

    def as_null(self, null: Null) -> "Settings":
        """These settings for a null: the same tables with what ISS is about taken away, on fewer layers and prompts."""
        iss = self.iss.model_copy(update={"layers": self.nulls.layers})
        estimator = self.estimator.model_copy(
            update={"reference_layers": "window", "corpus_sizes": self.nulls.corpus_sizes}
        )
        return self.model_copy(update={"null": null, "iss": iss, "estimator": estimator})

    def check_width(self, width: int, n_layers: int) -> None:
        """Refuse ranks that do not fit the model width, and layers outside the model (source document, 5.3).

        Raises:
            InputError: a rank >= width, or a layer outside 0..n_layers-1.
        """
        for name in ("estimator", "alternatives"):
            for rank in getattr(self, name).ranks:
                if rank >= width:
                    raise InputError(
                        f"params.yaml: {name}.ranks: {rank} is not below the width {width} of {self.model}; "
                        f"use ranks 1..{width - 1}"
                    )
        for name in ("iss", "alternatives", "nulls"):
            for layer in getattr(self, name).layers:
                if layer >= n_layers:
                    raise InputError(
                        f"params.yaml: {name}.layers: {layer} is not a source layer of {self.model}; "
                        f"use 0..{n_layers - 1}"
                    )


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged


def _known_keys(section: type[BaseModel], place: tuple[Any, ...]) -> list[str]:
    for step in place:
        field = section.model_fields.get(step) if isinstance(step, str) else None
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        section = field.annotation
    return list(section.model_fields)


def _explain(path: Path, error: ValidationError) -> str:
    """Every error in one line."""
    # a misspelt key is both unknown and missing; the unknown one says what to mend
    errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    meant, told = set(), []
    for one in errors:
        place, field = one["loc"], ".".join(_short(str(part)) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            known = _known_keys(Settings, place[:-1])
            near = difflib.get_close_matches(str(place[-1]), known, n=1)
            meant |= {(*place[:-1], key) for key in near}
            mend = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            told.append(f"{field}: unknown key; {mend}")
        elif one["type"] == "value_error":  # of a section or of all of them; the message holds the values already
            told.append((field + ": " if field else "") + one["msg"].removeprefix("Value error, "))
        elif one["type"] != "missing":
            told.append(f"{field}: {one['msg']}, got {_short(repr(one['input']))}")
        elif place not in meant:
            told.append(f"{field}: is missing; add it")
    more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return f"{path}: {'; '.join(told[:MOST_TOLD])}{more}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def load_settings(path: Path, preset: str = "smoke", model: str | None = None) -> Settings:
    """Read params.yaml, lay `preset` over it and check everything.

    Args:
        path: the file.
        preset: a key of `presets`.
        model: replaces the file's `model` where given.

    Raises:
        InputError: one line that names the file, the field, the value and the mend.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of settings, got {type(content).__name__}")
    presets = content.pop("presets", {})
    if not isinstance(presets, dict) or preset not in presets:
        known = _short(", ".join(map(str, presets))) if isinstance(presets, dict) else "none"
        raise InputError(f"{path}: presets: no preset {preset!r}; there are: {known}")
    if not isinstance(presets[preset], dict):
        raise InputError(
            f"{path}: presets.{preset}: expected a mapping of settings, got {_short(repr(presets[preset]))}"
        )
    merged = _overlay(content, presets[preset]) | {"preset": preset}
    if model is not None:
        merged["model"] = model
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise InputError(_explain(path, error)) from error
