"""The experiments of the source document, section 16, one by one; the nulls; and the named alternatives."""

from typing import Any

from prefect import flow

from flows.common import Run, checked_run
from flows.steps import evaluated, measured, official_study, validated
from sparse_control.errors import InputError
from sparse_control.records.paths import NULL_NAMES


@flow(name="experiment-a", persist_result=False)
def experiment_a(
    preset: str = "smoke", model: str | None = None, root: str = ".", dask: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Full-reference calibration: exact Jacobians, and every candidate rank against them.

    Args, Returns, Raises: as `official_iss`.
    """
    run = checked_run(preset, model, root, dask)
    if not run.settings.estimator.reference:
        raise InputError(f"params.yaml: preset {preset}: estimator.reference is false; experiment A needs references")
    return measured("experiment-a", run, dask, wait, lambda study, corpus: [study.reference(corpus)])


@flow(name="experiment-b", persist_result=False)
def experiment_b(
    preset: str = "medium", model: str | None = None, root: str = ".", dask: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Medium-scale transfer check: direct actions and the behaviour of the rank on a medium model.

    Args, Returns, Raises: as `official_iss`; tables compare every model in `root`.
    """
    return measured("experiment-b", checked_run(preset, model, root, dask), dask, wait, validated)


@flow(name="experiment-c", persist_result=False)
def experiment_c(
    preset: str = "smoke", model: str | None = None, root: str = ".", dask: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Per-model validation: every layer's estimator chosen by the fixed rule.

    Args, Returns, Raises: as `official_iss`.
    """
    return measured("experiment-c", checked_run(preset, model, root, dask), dask, wait, validated)


@flow(name="experiment-d", persist_result=False)
def experiment_d(
    preset: str = "smoke",
    model: str | None = None,
    root: str = ".",
    dask: str | None = None,
    wait: bool = False,
    accept_code: str | None = None,
) -> dict[str, Any]:
    """Official evaluation: freeze every choice that stands in `root`, then measure the benchmark once.

    Choices that experiment C has not made, or not with these settings, are refused.

    Args, Returns, Raises: as `official_iss`, and
        accept_code: why a freeze made by other code is good enough, in words; that freeze is then kept as it is.
    """
    return measured("experiment-d", checked_run(preset, model, root, dask), dask, wait, evaluated(accept_code))


@flow(name="nulls", persist_result=False)
def nulls(
    preset: str = "smoke", model: str | None = None, root: str = ".", dask: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """Stages A to D with what ISS is about taken away: shuffled tokens, and redrawn weights.

    Args, Returns, Raises: as `official_iss`; the results are in `root`/MODEL/nulls/NAME.
    """
    whole = checked_run(preset, model, root, dask)
    steps = []
    for name in NULL_NAMES:
        null = Run(whole.settings.as_null(name), whole.root)
        summary = measured(f"nulls-{name}", null, dask, wait, official_study)
        steps += [step | {"step": f"{name}: {step['step']}"} for step in summary["steps"]]
    return summary | {"flow": "nulls", "steps": steps}


@flow(name="alternatives", persist_result=False)
def alternatives(
    preset: str = "smoke", model: str | None = None, root: str = ".", dask: str | None = None, wait: bool = False
) -> dict[str, Any]:
    """The named alternatives to the official estimator, validated apart and never picked by the official path.

    Args, Returns, Raises: as `official_iss`; `root` must hold the references of experiment A.
    """
    run = checked_run(preset, model, root, dask)
    return measured("alternatives", run, dask, wait, lambda study, corpus: [study.alternatives(corpus)])
