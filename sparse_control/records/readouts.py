"""Six axes for somebody else's intervention, from a JSON file of readouts (source document, 08).

    {
      "schema": "score/1",
      "name": "my intervention",                    free text, optional
      "tolerance": 0.3,                             for feedback; logits or whatever unit the readouts have
      "seeds": [{
        "seed": 0,
        "source": [y, ...], "target": [y, ...],     readouts on the source and on the targets, per pair
        "patched": [y, ...],                        01 on the source inputs under the patch at dose 1
        "reversed": [y, ...],                       02 on the target inputs under the opposite patch
        "doses": [g, ...],                          03 with patched_by_dose (per dose, per pair) or progress
        "patched_by_dose": [[y, ...], ...],
        "progress": [p, ...],
        "feedback": [{"target": m, "initial_margin": m0, "terminal_margin": m1, "readouts": n}, ...],   04
        "kl": [nats, ...],                          05 per off-target prompt
        "reuse": {"source": [y, ...], "target": [y, ...], "refit": [y, ...], "frozen": [y, ...]}          06
      }, ...]
    }

As JSON lines the first line has `schema`, `name` and `tolerance`, and every other line is one of the seeds.
Only `schema`, `seeds` and `seed` must be there. An axis is scored over the seeds that have its readouts; one that
no seed has is "not measured". `examples/score_example.json` has every field.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sparse_control.errors import InputError
from sparse_control.files import read_json_lines
from sparse_control.metrics import over_seeds
from sparse_control.records.base import Count, NonNegative, Record, Seed, read_record, same_length, validate

Readouts = Annotated[list[float], Field(min_length=1)]


class ScoredEndpoint(Record):
    """One requested value of the feedback loop."""

    target: float  # m*
    initial_margin: float  # M at dose 0
    terminal_margin: float  # M at the last dose
    readouts: Count | None = None  # evaluations of M


class ScoredReuse(Record):
    """Margins on unseen pairs."""

    source: Readouts  # on the source inputs, per pair
    target: Readouts  # on the target inputs
    refit: Readouts | None = None  # strengths fitted there
    frozen: Readouts | None = None  # everything carried over

    @model_validator(mode="after")
    def _shapes(self) -> "ScoredReuse":
        given = {name: values for name in ("target", "refit", "frozen") if (values := getattr(self, name)) is not None}
        same_length("source", len(self.source), **given)
        return self


class ScoredSeed(Record):
    """The readouts of one seed; what was not measured is left out."""

    seed: Seed
    source: Readouts | None = None  # y on the source inputs, per pair
    target: Readouts | None = None  # y on the target inputs, per pair
    patched: Readouts | None = None  # y on the source inputs at dose 1
    reversed: Readouts | None = None  # y on the target inputs at dose -1
    doses: Readouts | None = None  # gamma
    patched_by_dose: list[Readouts] | None = None  # y per dose, per pair
    progress: Readouts | None = None  # instead: progress per dose
    feedback: list[ScoredEndpoint] | None = None
    kl: Readouts | None = None  # nats, per off-target prompt
    reuse: ScoredReuse | None = None

    @model_validator(mode="after")
    def _shapes(self) -> "ScoredSeed":
        needs_pairs = [name for name in ("patched", "reversed", "patched_by_dose") if getattr(self, name) is not None]
        if needs_pairs and (self.source is None or self.target is None):
            raise ValueError(f"{needs_pairs[0]} needs source and target beside it")
        if self.source is not None:
            given = {
                name: values
                for name in ("target", "patched", "reversed")
                if (values := getattr(self, name)) is not None
            }
            same_length("source", len(self.source), **given)
        curves = [name for name in ("patched_by_dose", "progress") if getattr(self, name) is not None]
        if len(curves) != (self.doses is not None):
            raise ValueError(
                f"doses must come with one of patched_by_dose and progress, got {' and '.join(curves) or 'neither'}"
            )
        if curves:
            same_length("doses", len(self.doses), **{curves[0]: getattr(self, curves[0])})
        for index, row in enumerate(self.patched_by_dose or []):
            same_length("source", len(self.source), **{f"patched_by_dose[{index}]": row})
        return self


class ScoreFile(Record):
    """Readouts of one intervention."""

    schema_: Literal["score/1"] = Field(alias="schema")
    name: str = "intervention"
    tolerance: NonNegative | None = None  # of the feedback axis
    seeds: Annotated[list[ScoredSeed], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> "ScoreFile":
        numbers = [seed.seed for seed in self.seeds]
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"seeds must differ from each other, got {numbers}")
        if self.tolerance is None and any(seed.feedback for seed in self.seeds):
            raise ValueError("tolerance must be given where a seed has feedback")
        return self


# axis -> what a seed must have to be scored on it
NEEDS = {
    "reachability": "source, target and patched",
    "signed_reversal": "source, target and reversed",
    "dose_response": "doses, and progress or source, target and patched_by_dose",
    "feedback": "feedback, and the tolerance of the file",
    "preservation": "kl",
    "reuse": "reuse",
}


def read_score_file(path: Path) -> ScoreFile:
    """A file of readouts, as one JSON value or as JSON lines.

    Raises:
        InputError: names the file, of JSON lines the line, the field and the value.
    """
    path = Path(path)
    if path.suffix != ".jsonl":
        return read_record(ScoreFile, path)
    head, *rows = read_json_lines(path) or [None]
    if not isinstance(head, dict) or "schema" not in head or "seeds" in head:
        raise InputError(f"{path}:1: expected schema, name and tolerance, then a line per seed; see score --example")
    for number, row in enumerate(rows, start=2):
        validate(ScoredSeed, row, f"{path}:{number}")
    return validate(ScoreFile, head | {"seeds": rows}, f"{path}:1")


def _dose(seed: ScoredSeed) -> tuple[list[float], list[float] | None]:
    return seed.doses, seed.progress or over_seeds.curve(seed.source, seed.target, seed.patched_by_dose)


def _feedback(seeds: list[ScoredSeed], tolerance: float | None) -> dict[str, Any]:
    return over_seeds.feedback([end.model_dump() | {"tolerance": tolerance} for seed in seeds for end in seed.feedback])


def score(content: ScoreFile) -> dict[str, dict[str, Any]]:
    """Axis -> its statistics over the seeds that have its readouts; `n_seeds` 0 and nothing else where none has.

    Raises:
        ValueError: a readout that the metric refuses, such as a negative divergence.
    """
    statistics: dict[str, tuple[str, Callable[[list[ScoredSeed]], dict[str, Any]]]] = {
        "reachability": (
            "patched",
            lambda seeds: over_seeds.reachability([(s.source, s.target, s.patched) for s in seeds]),
        ),
        "signed_reversal": (
            "reversed",
            lambda seeds: over_seeds.signed_reversal([(s.source, s.target, s.reversed) for s in seeds]),
        ),
        "dose_response": ("doses", lambda seeds: over_seeds.dose_response([_dose(s) for s in seeds])),
        "feedback": ("feedback", lambda seeds: _feedback(seeds, content.tolerance)),
        "preservation": ("kl", lambda seeds: over_seeds.preservation({s.seed: s.kl for s in seeds})),
        "reuse": (
            "reuse",
            lambda seeds: over_seeds.reuse(
                [(s.reuse.source, s.reuse.target, s.reuse.refit, s.reuse.frozen) for s in seeds]
            ),
        ),
    }
    result = {}
    for axis, (needed, statistic) in statistics.items():
        seeds = [seed for seed in content.seeds if getattr(seed, needed)]
        try:
            result[axis] = {"n_seeds": len(seeds)} | (statistic(seeds) if seeds else {})
        except OverflowError as error:
            raise ValueError(f"{needed}: its readouts have a sum beyond float64") from error
        except ValueError as error:
            raise ValueError(f"{needed}: {error}") from error
    return result


def score_file(path: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Read a file of readouts and score it: (name, axis -> statistics).

    Raises:
        InputError: names the file, the field and the value.
    """
    content = read_score_file(path)
    try:
        result = score(content)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    for axis, statistics in result.items():
        for name, value in statistics.items():
            if value is not None and not math.isfinite(value):
                raise InputError(f"{path}: {axis}: {name} is {value}; the readouts are out of range")
    return content.name, result
