"""Stages A to D as tasks (source document, 4).

Stages are imported where they run, so that a skipped one loads no torch. `weights`, `inputs` and `after` (the receipts
of the steps before) stand in a signature for the key alone: they are what the stage reads by itself.
"""

from pathlib import Path

from prefect import task

from sparse_control.receipt import Receipt
from sparse_control.settings import Settings
from tasks.caching import content_key

NOT_READ = ("protocol",)  # a change to the six-axis settings leaves stages A and B alone
# the freeze manifest holds all settings and one hash over the code of all stages, and D refuses any other
EVERY_STAGE = tuple(f"sparse_control.stages.{name}" for name in ("a_reference", "b_validate", "c_freeze", "d_official"))


@task(
    name="corpus",
    cache_key_fn=content_key(
        "corpus",
        schema=1,
        modules=("sparse_control.corpus", "sparse_control.wikitext"),
        without=("preset", "dtype", "threads", "iss", "estimator", "validation", "protocol"),
    ),
    persist_result=True,
    result_serializer="json",
)
def corpus(cache: str, settings: Settings, weights: str, inputs: list[Path]) -> dict[str, str]:
    """Receipt of the two corpus files, relative to `cache`."""
    from sparse_control.corpus import METADATA, WINDOWS, build
    from sparse_control.models import load_model

    folder = build(settings, load_model(settings.model), cache=Path(cache))
    return Receipt.of(Path(cache), [folder / WINDOWS, folder / METADATA]).as_json()


@task(
    name="reference",
    cache_key_fn=content_key("reference", schema=1, modules=("sparse_control.stages.a_reference",), without=NOT_READ),
    persist_result=True,
    result_serializer="json",
)
def reference(
    root: str, corpus: Path, settings: Settings, weights: str, inputs: list[Path], after: dict[str, str]
) -> dict[str, str]:
    """Stage A."""
    from sparse_control.stages import a_reference

    return a_reference.run(corpus=corpus, root=Path(root), settings=settings).as_json()


@task(
    name="validate",
    cache_key_fn=content_key("validate", schema=1, modules=("sparse_control.stages.b_validate",), without=NOT_READ),
    persist_result=True,
    result_serializer="json",
)
def validate(
    root: str, corpus: Path, settings: Settings, weights: str, inputs: list[Path], after: dict[str, str]
) -> dict[str, str]:
    """Stage B."""
    from sparse_control.stages import b_validate

    return b_validate.run(corpus=corpus, root=Path(root), settings=settings).as_json()


@task(
    name="freeze",
    cache_key_fn=content_key("freeze", schema=1, modules=EVERY_STAGE),
    persist_result=True,
    result_serializer="json",
)
def freeze(
    root: str, corpus: Path, settings: Settings, weights: str, inputs: list[Path], after: dict[str, str]
) -> dict[str, str]:
    """Stage C."""
    from sparse_control.stages import c_freeze

    return c_freeze.run(corpus=corpus, root=Path(root), settings=settings).as_json()


@task(
    name="official",
    cache_key_fn=content_key("official", schema=1, modules=EVERY_STAGE),
    persist_result=True,
    result_serializer="json",
)
def official(
    root: str, corpus: Path, settings: Settings, weights: str, inputs: list[Path], after: dict[str, str]
) -> dict[str, str]:
    """Stage D."""
    from sparse_control.stages import d_official

    return d_official.run(corpus=corpus, root=Path(root), settings=settings).as_json()
