"""Six-axis protocol: one study per (task, selector, condition), one record per seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow

from flows.cluster import started_runner
from flows.common import Progress, Run, Step, checked_run, files_of, resolved
from flows.reports import tables_artifact
from sparse_control.models.identity import model_identity
from sparse_control.protocol.grid import restricted, studies
from sparse_control.records.lock import root_lock
from tasks.six_axis import STUDY, record, study
from tasks.tables import manifest

NAME = "six-axis"


@flow(name=NAME, persist_result=False)
def six_axis(
    preset: str = "smoke",
    model: str | None = None,
    root: str = ".",
    dask: str | None = None,
    wait: bool = False,
    tasks: list[str] | None = None,
    selectors: list[str] | None = None,
    conditions: list[str] | None = None,
    seeds: list[int] | None = None,
    mmlu: str | None = None,
    xstest: str | None = None,
) -> dict[str, Any]:
    """Measure every study of the preset into `root`; unchanged studies whose files are whole are skipped.

    Args, Returns, Raises: as `official_iss`, and
        tasks, selectors, conditions, seeds: those asked for, in place of the preset's; records of others stay.
        mmlu, xstest: MMLU's folder and XSTest's file, in place of the project's own texts.
    `root` gets `MODEL/six_axis/`.
    """
    run = checked_run(preset, model, root, dask)
    which = {"tasks": tasks, "selectors": selectors, "conditions": conditions, "seeds": seeds}
    given = {name: values for name, values in which.items() if values}
    run = replace(run, settings=restricted(run.settings, **given))
    files = {
        "mmlu": None if mmlu is None else resolved("mmlu", mmlu),
        "xstest": None if xstest is None else resolved("xstest", xstest),
    }
    with root_lock(run.root, wait=wait), started_runner(dask, run.root, STUDY) as runner:
        progress = Progress(NAME, runner)
        receipts = progress.run(_studies(run, files), below=run.root)
        manifest(root=str(run.root), names=files_of(receipts))
        tables_artifact(NAME, run.root, "protocol")
    return progress.summary(run)


def _studies(run: Run, files: dict[str, Path | None]) -> list[Step]:
    protocol = run.settings.protocol
    common = {
        "root": str(run.root),
        "settings": run.settings,
        "weights": model_identity(run.settings.model, run.settings.dtype).sha256,
        **files,
    }

    def step(panel: str, selector: str, condition: str) -> Step:
        own = common | {"panel": panel, "selector": selector, "condition": condition}
        label = f"{panel}, {selector}, {condition}"

        def units() -> list[Step]:
            # the selectors and conditions of one seed share most of their work, so they follow each other
            return [
                Step(record, f"{label}, seed {seed}", own | {"seed": seed}, order=(protocol.tasks.index(panel), place))
                for place, seed in enumerate(protocol.seeds_of(panel))
            ]

        return Step(study, label, own, units)

    return [step(*names) for names in studies(protocol)]
