"""Six-axis protocol: one study per (task, selector, condition), one record per seed."""

from dataclasses import asdict
from typing import Any

import click
from prefect import flow

from flows.cluster import started_runners
from flows.common import Progress, Step, files_of
from flows.parameters import Run, checked_run, resolved_path
from flows.reports import tables_artifact
from sparse_control.models.identity import model_identity
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.grid import restricted, studies, templated
from sparse_control.protocol.panels import PairFile, PanelSources, drawn_from
from sparse_control.protocol.stored import Survey, said, survey
from sparse_control.records.lock import root_lock
from tasks.six_axis import STUDY, record, study
from tasks.tables import manifest

NAME = "six-axis"


def measure(
    run: Run,
    sources: PanelSources = PanelSources(),
    replace: bool = False,
    given: tuple[GivenFile, ...] = (),
) -> dict[str, Any]:
    """Can a push hit, undo, dial, track, spare and carry over?

    Measures every study that the settings ask for; unchanged studies whose files are whole are skipped.

    Args:
        sources: files in place of the project's own texts, and pairs from a file, which the settings have as a task.
        replace: whether records that are asked for and were measured with other settings, code or model files are
            measured again; the old ones are moved to `replaced/` of the root. Without it such a run is refused.
        given: interventions from files, whose names the settings have among their selectors.

    Returns, Raises: as `flows.official_iss.measure`.
    """
    with root_lock(run.root, wait=run.wait):
        found = survey(run.root, run.settings, sources, given)
        if not replace:
            found.refuse()
        for line in said(found, run.root):
            click.echo(f"{run.flow}: {line}", err=True)
        with started_runners(run.dask, run.workers, run.root, STUDY) as runners:
            progress = Progress(run.flow, runners)
            receipts = progress.run(_studies(run, sources, found, given), below=run.root)
            manifest(root=str(run.root), names=files_of(receipts))
            tables_artifact(run.flow, run.root, "protocol")
    return progress.summary(run)


@flow(name=NAME, persist_result=False)
def six_axis(
    preset: str = "smoke",
    model: str | None = None,
    root: str = ".",
    dask: str | None = None,
    wait: bool = False,
    workers: int | str = 1,
    tasks: list[str] | None = None,
    selectors: list[str] | None = None,
    conditions: list[str] | None = None,
    seeds: list[int] | None = None,
    mmlu: str | None = None,
    xstest: str | None = None,
    pairs: str | None = None,
    name: str | None = None,
    last_token_only: bool = False,
    off_target: str | None = None,
    template: dict[str, str | bool | int | float] | None = None,
    replace: bool = False,
    interventions: list[str] | None = None,
    layer: int | None = None,
    row: int | None = None,
    strength: float | None = 1.0,
) -> dict[str, Any]:
    """`measure`, for a deployment.

    Args, Raises: as `flows.official_iss.official_iss` and `measure`, and
        tasks, selectors, conditions, seeds: those asked for, in place of the preset's; records of others stay.
        mmlu, xstest, off_target: files in place of the project's own texts.
        pairs, name, last_token_only: a file of pairs, what it is called, and how it is read.
        template: arguments of the chat template, over those of the settings.
        root: folder that gets `MODEL/six_axis/`.
        interventions, layer, row, strength: files, and how each is read; strength None is fitted.
    """
    read = {"layer": layer, "row": row, "strength": strength}
    given = tuple(GivenFile.of(resolved_path("intervention", path), **read) for path in interventions or ())
    which = {"tasks": tasks or (), "selectors": selectors or (), "conditions": conditions or (), "seeds": seeds or ()}
    files = {"mmlu": mmlu, "xstest": xstest, "off_target": off_target, "pairs": pairs}
    paths = {key: None if path is None else resolved_path(key, path) for key, path in files.items()}
    own = None if pairs is None else PairFile.of(paths["pairs"], name, last_token_only)
    which |= {"given": given, "pairs": own}
    narrowed = lambda settings: templated(restricted(settings, **which), template or {})  # noqa: E731
    run = checked_run(NAME, preset, model, root, dask, wait, workers, narrowed=narrowed)
    return measure(run, PanelSources(**paths | {"pairs": own}), replace=replace, given=given)


def _studies(run: Run, sources: PanelSources, found: Survey, given: tuple[GivenFile, ...]) -> list[Step]:
    replaced = {(key.task, key.selector, key.condition) for key in found.others}
    protocol = run.settings.protocol
    common = {
        "root": str(run.root),
        "settings": run.settings,
        "weights": model_identity(run.settings.model, run.settings.dtype).sha256,
        "sources": asdict(sources),
    }

    def step(panel: str, selector: str, condition: str) -> Step:
        own = common | {"panel": panel, "selector": selector, "condition": condition}
        if file := next((each for each in given if selector in each.names), None):
            own["intervention"] = asdict(file)
        if (
            panel,
            selector,
            condition,
        ) in replaced:  # of any other study the task is that of a run that replaces nothing
            own["replace"] = True
        label = f"{panel}, {selector}, {condition}"

        def units() -> list[Step]:
            # records of one seed whose fitting pairs are the same share most of their work, so they follow each other
            of = drawn_from(panel, "fit")[0]
            first = min(index for index, task in enumerate(protocol.tasks) if drawn_from(task, "fit")[0] == of)
            return [
                Step(record, f"{label}, seed {seed}", own | {"seed": seed}, order=(first, seed))
                for seed in protocol.seeds_of(panel)
            ]

        return Step(study, label, own, units)

    return [step(*names) for names in studies(protocol, sources.pairs)]
