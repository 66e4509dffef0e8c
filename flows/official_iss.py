"""Official ISS: corpus, then stages A to D of the source document."""

from typing import Any

from prefect import flow

from flows.common import Progress, checked_root, checked_settings, data_files, merged, task_runner
from sparse_control.models.fetch import weights_identity
from sparse_control.project import cache_folder
from tasks import official_iss as steps
from tasks.tables import manifest

NAME = "official-iss"


@flow(name=NAME, task_runner=task_runner(), persist_result=False)
def official_iss(preset: str = "smoke", model: str | None = None, root: str = ".") -> dict[str, Any]:
    """Measure official ISS into `root`; steps whose inputs are unchanged and whose files are whole are skipped.

    Args:
        preset: of params.yaml.
        model: registry name, hub id, directory or GGUF path; the one of params.yaml by default.
        root: folder that gets `jacobian_iss/`.

    Returns:
        preset, model, root, and of each step whether it was skipped and the files with their hashes.

    Raises:
        InputError: settings, model or data are wrong; raised before any work where it can be seen there.
    """
    settings, place, cache = checked_settings(preset, model), checked_root(root), cache_folder()
    weights = weights_identity(settings.model)
    progress = Progress(NAME)
    built = progress.run(
        steps.corpus, "corpus", below=cache,
        cache=str(cache), settings=settings, weights=weights, inputs=data_files("benchmark_facts.csv"),
    )  # fmt: skip
    common = {
        "root": str(place),
        "corpus": (cache / built.files[0][0]).parent,
        "settings": settings,
        "weights": weights,
    }
    receipts = []
    # stages A to C never see the benchmark: it is an input of D alone
    for task, label, inputs in (
        (steps.reference, "A reference", data_files("calibration_*")),
        (steps.validate, "B validation", data_files("calibration_*")),
        (steps.freeze, "C freeze", data_files("calibration_*")),
        (steps.official, "D official", data_files("benchmark_*", "calibration_*")),
    ):
        after = merged(receipts)
        receipts.append(progress.run(task, label, below=place, inputs=inputs, after=after, **common))
    manifest.submit(root=str(place), names=list(merged(receipts))).result()
    return progress.summary(settings, place)
