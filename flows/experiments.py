"""The experiments of the source document, section 16, one by one; the nulls; and the named alternatives.

Each takes checked parameters and returns what `flows.official_iss.measure` does.
"""

from typing import Any

from flows.official_steps import measuring
from flows.parameters import Run
from sparse_control.errors import InputError
from sparse_control.records.paths import NULL_NAMES


def experiment_a(run: Run) -> dict[str, Any]:
    """Full-reference calibration: exact Jacobians, and every candidate rank against them.

    Raises:
        InputError: settings without references, or as the steps.
    """
    if not run.settings.estimator.reference:
        raise InputError("params.yaml: estimator.reference: is false; experiment A needs references")
    with measuring(run) as study:
        study.corpus()
        study.reference()
    return study.summary()


def experiment_b(run: Run) -> dict[str, Any]:
    """Medium-scale transfer check: direct actions and the behaviour of the rank on another model in the same root."""
    return _validated(run)


def experiment_c(run: Run) -> dict[str, Any]:
    """Per-model validation: every layer's estimator chosen by the fixed rule."""
    return _validated(run)


def _validated(run: Run) -> dict[str, Any]:
    with measuring(run) as study:
        study.corpus()
        study.reference()
        study.validate()
    return study.summary()


def experiment_d(run: Run) -> dict[str, Any]:
    """Official evaluation: freeze every choice that was made in the root, then measure the benchmark once.

    Raises:
        InputError: choices that experiment C has not made, or not with these settings; or as the steps.
    """
    with measuring(run) as study:
        study.corpus()
        if run.accept_code is None:
            study.freeze()
        study.official()
    return study.summary()


def nulls(run: Run) -> dict[str, Any]:
    """Stages A to D with what ISS is about taken away: shuffled tokens, and redrawn weights."""
    with measuring(run) as whole:
        whole.corpus()
        for name in NULL_NAMES:
            study = whole.of_null(name)
            study.reference()
            study.validate()
            study.freeze()
            study.official()
    return whole.summary()


def alternatives(run: Run) -> dict[str, Any]:
    """The named alternatives to the official estimator, validated apart and never picked by the official path.

    Raises:
        InputError: no references of experiment A in the root, or as the steps.
    """
    with measuring(run) as study:
        study.corpus()
        study.alternatives()
    return study.summary()
