"""Every selector and control of the protocol, one row each: what it is, how it chooses, how it refits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse_control.protocol.selectors import baselines
from sparse_control.protocol.selectors.controls import chosen_sites, random_supports, top_k
from sparse_control.protocol.selectors.coverage import coverage_driver
from sparse_control.protocol.selectors.omp import Measure, driver_omp, driver_omp_remeasured
from sparse_control.protocol.selectors.selection import Selection
from sparse_control.protocol.selectors.strengths import common_strength, fit_strengths


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Pairs that a selector works on, and the settings it heeds.

    Attributes:
        columns: (N, S) effects of the candidate sites, or of the support where its strengths are refitted.
        gap: (N,) wanted change of the readouts.
        support_size: sites wanted.
        minimum_effect: share of the strongest column below which a site is no candidate.
        maximum_strength: bound on |strength|.
        draws: of a random control.
        generator: draws them.
        measure: as in `driver_omp_remeasured`.
    """

    columns: np.ndarray
    gap: np.ndarray
    support_size: int
    minimum_effect: float
    maximum_strength: float
    draws: int
    generator: np.random.Generator
    measure: Measure


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A row of the table.

    Attributes:
        description: what it is, for people.
        select: its choice on the fitting split, a `Fit` or, of a baseline, a `Stream`: one selection, or one per draw
            of random supports.
        refit: strengths (k,) of a fixed support on other pairs (axis 6); a site without effect there gets 0.
        baseline: whether it has a direction of the residual stream of its own, whatever effect columns say. Then the
            direction rule is that of the fitting split.
        conditions: the direction rules it is measured under; of a baseline F alone, and without O of the two whose
            records cost most.
        tasks: the tasks it is measured on; None: all.
        support_size: sites wanted; None: as many as the settings say.
        replaces: whether it replaces what lies along its direction, so that there is no strength to choose.
        remeasures: whether effects are measured again after each choice.
        all_sites: whether it takes every candidate, however many sites are wanted.
        draws: whether it is a random control, of which further draws are measured in short.
        random_directions: whether random directions of the same norms are in place of the true ones.
        choice_of: the selector whose choice it takes over; None: it makes its own.
    """

    description: str
    select: Callable[[Any], tuple[Selection, ...]]
    refit: Callable[[Any], np.ndarray]
    baseline: bool = False
    replaces: bool = False
    conditions: tuple[str, ...] = ("P", "F", "O")
    tasks: tuple[str, ...] | None = None
    support_size: int | None = None
    remeasures: bool = False
    all_sites: bool = False
    draws: bool = False
    random_directions: bool = False
    choice_of: str | None = None


def _omp(fit: Fit) -> tuple[Selection, ...]:
    return (driver_omp(fit.columns, fit.gap, fit.support_size, fit.minimum_effect, fit.maximum_strength),)


def _omp_remeasured(fit: Fit) -> tuple[Selection, ...]:
    limits = fit.minimum_effect, fit.maximum_strength
    return (driver_omp_remeasured(fit.measure, fit.columns, fit.gap, fit.support_size, *limits),)


def _random_supports(fit: Fit) -> tuple[Selection, ...]:
    return random_supports(fit.columns, fit.gap, fit.support_size, fit.draws, fit.generator, fit.maximum_strength)


def _all_sites(fit: Fit) -> tuple[Selection, ...]:
    return (chosen_sites(fit.columns, fit.gap, range(fit.columns.shape[1]), fit.maximum_strength),)


def _least_squares(fit: Fit) -> np.ndarray:
    strengths = np.zeros(fit.columns.shape[1])
    live = fit.columns.any(axis=0)
    if live.any():
        strengths[live] = fit_strengths(fit.columns[:, live], fit.gap, fit.maximum_strength)
    return strengths


def _least_squares_remeasured(fit: Fit) -> np.ndarray:
    strengths = np.zeros(fit.columns.shape[1])
    again = driver_omp_remeasured(fit.measure, fit.columns, fit.gap, len(strengths), max_strength=fit.maximum_strength)
    strengths[list(again.support)] = again.strengths
    return strengths


def _common(fit: Fit) -> np.ndarray:
    return np.full(fit.columns.shape[1], common_strength(fit.columns, fit.gap, fit.maximum_strength))


def _baseline(description: str, choose: Callable[[baselines.Stream], Selection], replaces: bool = False) -> Selector:
    return Selector(
        description=f"baseline: {description}",
        select=lambda stream: (choose(stream),),
        refit=baselines.refitted_strengths,
        baseline=True,
        replaces=replaces,
        conditions=("F",),
    )


_DRIVER_OMP = Selector(
    description="orthogonal matching pursuit on the effect columns, least-squares strengths",
    select=_omp,
    refit=_least_squares,
)

_COVERAGE_DRIVER = Selector(
    description="greedy cover of the pairs' gaps, one common strength",
    select=lambda fit: (coverage_driver(fit.columns, fit.gap, fit.support_size),),
    refit=lambda fit: np.full(fit.columns.shape[1], common_strength(fit.columns, fit.gap)),
)

SELECTORS = {
    "driver_omp": _DRIVER_OMP,
    "coverage_driver": _COVERAGE_DRIVER,
    "driver_omp_remeasured": Selector(
        description="driver_omp with effects measured again after each choice",
        select=_omp_remeasured,
        refit=_least_squares_remeasured,
        conditions=("P", "F"),
        remeasures=True,
    ),
    "coverage_driver_k8": replace(
        _COVERAGE_DRIVER,
        description="coverage_driver with 8 sites, the source document's k = 8 of Sentiment",
        tasks=("sentiment",),
        support_size=8,
    ),
    "diff_in_means": _baseline("the mean contrast of one layer", baselines.diff_in_means),
    "diff_in_means_all": _baseline("the mean contrast of one layer, at every layer", baselines.diff_in_means_all),
    "pca": _baseline("the first principal direction of the contrasts of one layer", baselines.pca),
    "probe": _baseline("the weights of a logistic probe of one layer", baselines.probe),
    "ablate": _baseline(
        "the projection on the mean contrast of one layer replaced by its target-side mean",
        baselines.ablate,
        replaces=True,
    ),
    "top_k": Selector(
        description="control: the sites of largest mean effect, one common strength",
        select=lambda fit: (top_k(fit.columns, fit.gap, fit.support_size, fit.maximum_strength),),
        refit=_common,
    ),
    "random_support": Selector(
        description="control: sites drawn at random, one common strength",
        select=_random_supports,
        refit=_common,
        draws=True,
    ),
    "all_sites": Selector(
        description="control: every candidate site, one common strength",
        select=_all_sites,
        refit=_common,
        conditions=("P", "F"),
        all_sites=True,
    ),
    "random_direction": replace(
        _DRIVER_OMP,
        description="control: driver_omp's sites and strengths, random directions of equal norm",
        draws=True,
        random_directions=True,
        choice_of="driver_omp",
    ),
}  # names as settings and records have them, in the order of the tables
