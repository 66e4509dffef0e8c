"""One six-axis study, a (task, selector, condition) over all seeds, as a task."""

from pathlib import Path

from prefect import task

from sparse_control.settings import Settings
from tasks.caching import content_key


@task(
    name="study",
    cache_key_fn=content_key(
        "study",
        schema=1,
        modules=("sparse_control.protocol.study",),
        without=("preset", "corpus", "iss", "estimator", "validation"),
    ),
    persist_result=True,
    result_serializer="json",
)
def study(root: str, settings: Settings, weights: str, panel: str, selector: str, condition: str) -> dict[str, str]:
    """Receipt of the measurement file of one study."""
    from sparse_control.protocol import study as protocol

    return protocol.run(
        root=Path(root), settings=settings, task=panel, selector=selector, condition=condition
    ).as_json()
