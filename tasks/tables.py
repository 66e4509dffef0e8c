"""Tables from saved measurements, as tasks. They take seconds, so they are never skipped."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE


@task(name="tables", cache_policy=NO_CACHE, persist_result=False)
def tables(root: str, out: str | None) -> list[str]:
    """Recompute and render the tables and figures of `root` into `out`, by default its paper folder; the files."""
    from sparse_control import paper

    return [str(path) for path in paper.reproduce(Path(root), Path(out) if out else None)]


@task(name="manifest", cache_policy=NO_CACHE, persist_result=False)
def manifest(root: str, names: list[str]) -> None:
    """Record the hashes of what a run measured into `root`, at its end; files of other runs keep their entries."""
    from sparse_control.records.manifest import write_manifest

    write_manifest(Path(root), names)
