"""The acceptance rule and the failure ladder as code (source document, 7.3, 12, 17)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparse_control.records.jacobian_iss.freeze import MEAN_OF_SEEDS, PREREGISTERED
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


def rungs(settings: EstimatorSettings, corpus_size: int) -> Iterator[Rung]:
    """Larger k, then larger p, then larger n, then power iterations; within each step ranks ascend.

    Args:
        corpus_size: n of the first rungs, by the corpus-size rule (`starting_size`).
    """
    larger_sizes = [size for size in settings.corpus_sizes if size > corpus_size]
    oversampling, power = settings.oversampling[0], settings.power_iterations[0]

    def ranks(step: str) -> Iterator[Rung]:
        for rank in settings.ranks:
            yield Rung(step, rank, oversampling, corpus_size, power)

    yield from ranks("rank")
    for oversampling in settings.oversampling[1:]:
        yield from ranks("oversampling")
    for corpus_size in larger_sizes:
        yield from ranks("corpus size")
    for power in settings.power_iterations[1:]:
        yield from ranks("power iterations")


@dataclass(frozen=True)
class Convergence:
    """One corpus size n against 2n (source document, 8.2); None where there is no 2n.

    Attributes:
        n: corpus size.
        cosine_to_2n, relative_error_to_2n: medians over held-out actions.
        iss_difference: |ISS(2n) - ISS(n)|.
    """

    n: int
    cosine_to_2n: float | None
    relative_error_to_2n: float | None
    iss_difference: float | None

    def holds(self, thresholds: ValidationSettings) -> bool:
        """Whether this corpus is large enough by the fixed rule; NaN and a missing 2n never are."""
        if self.cosine_to_2n is None or self.iss_difference is None:
            return False
        return self.cosine_to_2n >= thresholds.corpus_cosine and self.iss_difference <= thresholds.corpus_iss_difference


def starting_size(sizes: Sequence[Convergence], thresholds: ValidationSettings) -> int:
    """The smallest converged corpus size, else the largest there is."""
    return next((size.n for size in sizes if size.holds(thresholds)), sizes[-1].n)


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


def reporting(seed_deviation: float, thresholds: ValidationSettings) -> str:
    """Which ISS of the sketch seeds is reported: the preregistered one where their spread is negligible (9)."""
    return PREREGISTERED if seed_deviation <= thresholds.negligible_seed_deviation else MEAN_OF_SEEDS


@dataclass(frozen=True)
class Attempt:
    """A rung that was tried; `failed` is empty for the accepted one."""

    rung: Rung
    evidence: Evidence
    failed: list[str]


def climb(
    settings: EstimatorSettings,
    thresholds: ValidationSettings,
    corpus_size: int,
    evaluate: Callable[[Rung], Evidence],
) -> list[Attempt]:
    """Try rungs in order and stop at the first that passes; if none does, the layer is unresolved."""
    attempts = []
    for rung in rungs(settings, corpus_size):
        evidence = evaluate(rung)
        attempts.append(Attempt(rung, evidence, failures(evidence, thresholds)))
        if not attempts[-1].failed:
            break
    return attempts
