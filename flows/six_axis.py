"""Six-axis protocol: one study per (task, selector, condition)."""

from itertools import product
from typing import Any

from prefect import flow

from flows.common import Progress, checked_root, checked_settings, merged, task_runner
from sparse_control.models.fetch import weights_identity
from tasks.six_axis import study
from tasks.tables import manifest

NAME = "six-axis"


@flow(name=NAME, task_runner=task_runner(), persist_result=False)
def six_axis(preset: str = "smoke", model: str | None = None, root: str = ".") -> dict[str, Any]:
    """Measure every study of the preset into `root`; unchanged studies whose files are whole are skipped.

    Args, Returns, Raises: as `official_iss`; `root` gets `measurements/`.
    """
    settings, place = checked_settings(preset, model), checked_root(root)
    weights = weights_identity(settings.model)
    progress = Progress(NAME)
    protocol = settings.protocol
    receipts = []
    for panel, selector, condition in product(protocol.tasks, protocol.selectors, protocol.conditions):
        receipt = progress.run(
            study, f"{panel}, {selector}, {condition}", below=place,
            root=str(place), settings=settings, weights=weights,
            panel=panel, selector=selector, condition=condition,
        )  # fmt: skip
        receipts.append(receipt)
    manifest.submit(root=str(place), names=list(merged(receipts))).result()
    return progress.summary(settings, place)
