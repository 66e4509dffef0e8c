"""Official ISS on one page: corpus, then stages A to D (source document, 4).

Each step below is a task around a module of `sparse_control.stages`, which reads as its sections of the document do.
What a step hands on is files below `ROOT/MODEL/jacobian_iss/`; one whose inputs and files are as they were is skipped.
"""

from typing import Any

from prefect import flow

from flows.official_steps import measuring
from flows.parameters import Run, checked_run

NAME = "official-iss"


def measure(run: Run) -> dict[str, Any]:
    """Is a fact held in one stable internal state, however it is asked for?

    Returns:
        preset, model, root, and of each step whether it was skipped and the files with their hashes.

    Raises:
        InputError: settings, model or data are wrong.
    """
    with measuring(run) as study:
        # the Jacobian corpus: seeded token windows of general text, none about a benchmark entity (8.1, 13.1)
        study.corpus()
        if run.accept_code is None:
            # A: J^l = mean over the corpus of dh^L/dh^l at the last token, exact, all layers from one reverse sweep a
            #    prompt (5.1, 5.2); what QB of every candidate rank loses against it (5.3, 5.4)
            study.reference()
            # B: for each layer the smallest rank whose actions and ISS hold by one rule, up the ladder of larger k,
            #    p, n and more power iterations (7 to 9, 12.1); where none does, the layer is unresolved
            study.validate()
            # C: every setting, penalty and factor, each file with its hash; nothing is chosen after this (13.3, 14)
            study.freeze()
        # D: the benchmark, opened for the first time, carried by the frozen factors and scored (10); Raw-ISS (11)
        study.official()
    return study.summary()


@flow(name=NAME, persist_result=False)
def official_iss(
    preset: str = "smoke",
    model: str | None = None,
    root: str = ".",
    dask: str | None = None,
    wait: bool = False,
    workers: int | str = 1,
    accept_code: str | None = None,
    facts: str | None = None,
    prompts: str | None = None,
    replace: bool = False,
) -> dict[str, Any]:
    """`measure`, for a deployment.

    Args:
        preset: of params.yaml.
        model: registry name, hub id, directory or GGUF path; the one of params.yaml by default.
        root: folder that gets `MODEL/jacobian_iss/`.
        dask: address of the Dask scheduler whose workers the units run on; this machine by default.
        workers: how many processes of this machine they run in, or `auto`: one per core, as far as memory goes.
        wait: for another writer in `root` to end, instead of refusing.
        accept_code: why a freeze made by other code is good enough, in words; that freeze is then kept as it is, and
            stage D alone is measured.
        facts, prompts: files of one's own facts and prompts, in place of the project's (`iss.read_facts`).
        replace: whether official ISS of other facts that the root has is moved to `replaced/`; refused otherwise.

    Raises:
        InputError: as `checked_run` and `measure`.
    """
    own = {"facts": facts, "prompts": prompts, "replace": replace}
    return measure(checked_run(NAME, preset, model, root, dask, wait, workers, accept_code=accept_code, **own))
