"""Official ISS: corpus, then stages A to D of the source document."""

from typing import Any

from prefect import flow

from flows.common import checked_run
from flows.steps import evaluated, measured, official_study

NAME = "official-iss"


@flow(name=NAME, persist_result=False)
def official_iss(
    preset: str = "smoke",
    model: str | None = None,
    root: str = ".",
    dask: str | None = None,
    wait: bool = False,
    accept_code: str | None = None,
) -> dict[str, Any]:
    """Measure official ISS into `root`; steps whose inputs are unchanged and whose files are whole are skipped.

    Args:
        preset: of params.yaml.
        model: registry name, hub id, directory or GGUF path; the one of params.yaml by default.
        root: folder that gets `MODEL/jacobian_iss/`.
        dask: where the units run: the address of a Dask scheduler, or `local:N`; in this process by default.
        wait: for another run in `root` to end, instead of refusing.
        accept_code: why a freeze made by other code is good enough, in words; that freeze is then kept as it is, and
            stage D alone is measured.

    Returns:
        preset, model, root, and of each step whether it was skipped and the files with their hashes.

    Raises:
        InputError: settings, model or data are wrong; raised before any work where it can be seen there.
    """
    run = checked_run(preset, model, root, dask)
    return measured(NAME, run, dask, wait, official_study if accept_code is None else evaluated(accept_code))
