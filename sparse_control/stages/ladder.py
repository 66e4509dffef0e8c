"""The acceptance rule and the failure ladder as code (source document, 7.3, 12, 17)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparse_control.settings import EstimatorSettings, ValidationSettings


@dataclass(frozen=True)
class Rung:
    """One setting of the estimator to try, and the step of the ladder it belongs to."""

    step: str
    rank: int
    oversampling: int
    corpus_size: int
    power_iterations: int


@dataclass(frozen=True)
class Evidence:
    """What the acceptance rule reads, unrounded."""

    median_cosine: float
    median_relative_error: float
    iss_rank_difference: float
    iss_seed_deviation: float


def rungs(settings: EstimatorSettings) -> Iterator[Rung]:
    """Larger k, then larger p, then larger n, then power iterations; within each step ranks ascend."""
    oversampling, corpus_size, power = (
        settings.oversampling[0],
        settings.corpus_sizes[0],
        settings.power_iterations[0],
    )

    def ranks(step: str) -> Iterator[Rung]:
        for rank in settings.ranks:
            yield Rung(step, rank, oversampling, corpus_size, power)

    yield from ranks("rank")
    for oversampling in settings.oversampling[1:]:
        yield from ranks("oversampling")
    for corpus_size in settings.corpus_sizes[1:]:
        yield from ranks("corpus size")
    for power in settings.power_iterations[1:]:
        yield from ranks("power iterations")


def failures(evidence: Evidence, thresholds: ValidationSettings) -> list[str]:
    """The criteria that are not met, each with both numbers; empty means accepted. NaN never passes."""
    failed = []
    if not evidence.median_cosine >= thresholds.median_cosine:
        failed.append(f"median cosine {evidence.median_cosine:.4g} < {thresholds.median_cosine:g}")
    for name in ("median_relative_error", "iss_rank_difference", "iss_seed_deviation"):
        value, limit = getattr(evidence, name), getattr(thresholds, name)
        if not value <= limit:
            failed.append(f"{name.replace('_', ' ')} {value:.4g} > {limit:g}")
    return failed


@dataclass(frozen=True)
class Attempt:
    """A rung that was tried; `failed` is empty for the accepted one."""

    rung: Rung
    evidence: Evidence
    failed: list[str]


def climb(
    settings: EstimatorSettings, thresholds: ValidationSettings, evaluate: Callable[[Rung], Evidence]
) -> list[Attempt]:
    """Try rungs in order and stop at the first that passes; if none does, the layer is unresolved."""
    attempts = []
    for rung in rungs(settings):
        evidence = evaluate(rung)
        attempts.append(Attempt(rung, evidence, failures(evidence, thresholds)))
        if not attempts[-1].failed:
            break
    return attempts
