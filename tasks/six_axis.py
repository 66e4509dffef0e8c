"""One six-axis study, a (task, selector, condition) over all seeds, and one record of it, as tasks."""

from pathlib import Path
from typing import Any

from prefect import task

from sparse_control.settings import Settings
from tasks.caching import content_key
from tasks.exclusive import exclusive

STUDY = "sparse_control.protocol.study"
READ = ("model", "dtype", "threads", "protocol")  # the settings a record depends on


@task(
    name="study",
    cache_key_fn=content_key("study", schema=2, modules=(STUDY,), only=READ),
    persist_result=True,
    result_serializer="json",
)
def study(
    root: str,
    settings: Settings,
    weights: str,
    panel: str,
    selector: str,
    condition: str,
    sources: dict[str, Any],
    replace: bool = False,
    intervention: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Receipt of the measurement file of one study."""
    from sparse_control.protocol import study as protocol
    from sparse_control.protocol.panels import PanelSources

    with exclusive(settings, weights):
        return protocol.run(
            root=Path(root), settings=settings, task=panel, selector=selector, condition=condition,
            sources=PanelSources.from_plain(sources),
            replace=replace, given=_given(intervention),
        ).as_json()  # fmt: skip


@task(
    name="record",
    cache_key_fn=content_key("record", schema=1, modules=(STUDY,), only=READ),
    persist_result=True,
    result_serializer="json",
)
def record(
    root: str,
    settings: Settings,
    weights: str,
    panel: str,
    selector: str,
    condition: str,
    seed: int,
    sources: dict[str, Any],
    replace: bool = False,
    intervention: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Receipt of the part file of one seed of a study."""
    from sparse_control.protocol import study as protocol
    from sparse_control.protocol.panels import PanelSources

    with exclusive(settings, weights):
        return protocol.run_seed(
            root=Path(root), settings=settings, task=panel, selector=selector, condition=condition, seed=seed,
            sources=PanelSources.from_plain(sources), replace=replace, given=_given(intervention),
        ).as_json()  # fmt: skip


def _given(intervention: dict[str, Any] | None) -> Any:
    """The file of an intervention, from the plain values that a key is made of."""
    from sparse_control.protocol.given import GivenFile

    return None if intervention is None else GivenFile(**intervention)
