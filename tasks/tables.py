"""Tables from saved measurements, as tasks. They take seconds, so they are never skipped."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE


@task(name="tables", cache_policy=NO_CACHE, persist_result=False)
def tables(root: str, out: str) -> None:
    """Recompute and render every table of `root` into `out`."""
    from sparse_control.artifact import render

    render.reproduce(Path(root), Path(out))


@task(name="manifest", cache_policy=NO_CACHE, persist_result=False)
def manifest(root: str) -> None:
    """Write the manifest of the measurements below `root`."""
    from sparse_control.artifact.manifest import write_manifest

    write_manifest(Path(root))
