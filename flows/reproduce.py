"""Every table from the saved measurements, without a model."""

from typing import Any

from prefect import flow

from flows.parameters import resolved_path
from flows.reports import tables_artifact
from sparse_control.errors import InputError
from sparse_control.records.paths import MEASUREMENTS
from tasks.tables import tables

NAME = "reproduce"


@flow(name=NAME, persist_result=False)
def reproduce(root: str = MEASUREMENTS, out: str | None = None) -> dict[str, Any]:
    """Recompute and render the tables of `root` into `out` (that of the root's paper folder by default).

    Raises:
        InputError: `root` is no folder, or a measurement in it is malformed.
    """
    folder = resolved_path("root", root)
    if not folder.is_dir():
        raise InputError(f"root {root}: is not a folder; choose one that was measured into")
    target = str(resolved_path("out", out)) if out else None
    files = tables(root=str(folder), out=target)
    for group in ("iss", "protocol"):
        tables_artifact(f"{NAME}-{group}", folder, group)
    return {"flow": NAME, "root": str(folder), "files": files}
