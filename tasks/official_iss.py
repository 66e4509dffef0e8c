"""The corpus and the stages of the source document, section 4, as tasks.

Stages are imported where they run, so that a skipped one loads no torch. `weights` and `reads` (the files a step
reads by itself) are in a signature for the key alone.
"""

from importlib import import_module
from pathlib import Path

from prefect import task

from sparse_control.receipt import Receipt
from sparse_control.records.paths import ALTERNATIVES, STAGES
from sparse_control.settings import Settings
from tasks.caching import content_key
from tasks.exclusive import exclusive

REFERENCE, VALIDATE = STAGES["reference"], STAGES["validate"]
NOT_READ = ("protocol", "alternatives", "nulls", "preset")  # a change to these leaves stages A and B alone


@task(
    name="corpus",
    cache_key_fn=content_key(
        "corpus",
        schema=1,
        modules=("sparse_control.corpus", "sparse_control.wikitext"),
        only=("model", "corpus", "facts"),
    ),
    persist_result=True,
    result_serializer="json",
)
def corpus(cache: str, settings: Settings, weights: str, reads: list[Path]) -> dict[str, str]:
    """Receipt of the two corpus files, relative to `cache`."""
    from sparse_control.corpus import METADATA, WINDOWS, build
    from sparse_control.models import load_model
    from sparse_control.stages.queries import entities_outside_corpus

    folder = build(settings, load_model(settings.model), excluded=entities_outside_corpus(settings), cache=Path(cache))
    return Receipt.of(Path(cache), [folder / WINDOWS, folder / METADATA]).as_json()


@task(persist_result=True, result_serializer="json")
def stage(module: str, root: str, corpus: Path, settings: Settings, weights: str, reads: list[Path]) -> dict[str, str]:
    """Receipt of one stage: the `run` of its module. Its unfinished work stays until `ModelPaths.finish`."""
    with exclusive(settings, weights):
        return (
            import_module(module).run(corpus=corpus, root=Path(root), settings=settings, keep_unfinished=True).as_json()
        )


def _stage_key(name: str, *modules: str, without: tuple[str, ...] = ()):
    return content_key(name, schema=3, modules=modules, without=without)


reference = stage.with_options(name="reference", cache_key_fn=_stage_key("reference", REFERENCE, without=NOT_READ))
validate = stage.with_options(name="validate", cache_key_fn=_stage_key("validate", VALIDATE, without=NOT_READ))
alternatives = stage.with_options(
    name="alternatives", cache_key_fn=_stage_key("alternatives", ALTERNATIVES, without=("protocol", "nulls", "preset"))
)


# the freeze manifest holds all settings and one hash over the code of all stages, and D refuses any other
@task(name="freeze", cache_key_fn=_stage_key("freeze", *STAGES.values()), persist_result=True, result_serializer="json")
def freeze(root: str, corpus: Path, settings: Settings, weights: str, reads: list[Path]) -> dict[str, str]:
    """Stage C, which is over in a moment and keeps nothing unfinished."""
    from sparse_control.stages import c_freeze

    return c_freeze.run(corpus=corpus, root=Path(root), settings=settings).as_json()


@task(
    name="official",
    cache_key_fn=_stage_key("official", *STAGES.values()),
    persist_result=True,
    result_serializer="json",
)
def official(
    root: str, corpus: Path, settings: Settings, weights: str, reads: list[Path], accept_code: str | None
) -> dict[str, str]:
    """Stage D; `accept_code` says in words why a freeze made by other code is good enough."""
    from sparse_control.stages import d_official

    with exclusive(settings, weights):
        return d_official.run(
            corpus=corpus, root=Path(root), settings=settings, accept_code=accept_code, keep_unfinished=True
        ).as_json()


@task(
    name="reference block",
    cache_key_fn=_stage_key("reference block", REFERENCE, without=NOT_READ),
    persist_result=True,
    result_serializer="json",
)
def reference_block(
    root: str, corpus: Path, settings: Settings, weights: str, reads: list[Path], start: int, stop: int
) -> dict[str, str]:
    """One unit of stage A: the sum over the prompts `start` to `stop` of the corpus, all layers."""
    from sparse_control.stages import a_reference

    with exclusive(settings, weights):
        return a_reference.run_block(
            corpus=corpus, root=Path(root), settings=settings, start=start, stop=stop
        ).as_json()


@task(
    name="validate layer",
    cache_key_fn=_stage_key("validate layer", VALIDATE, without=NOT_READ),
    persist_result=True,
    result_serializer="json",
)
def validate_layer(
    root: str, corpus: Path, settings: Settings, weights: str, reads: list[Path], layer: int
) -> dict[str, str]:
    """One unit of stage B: the ladder on one layer."""
    from sparse_control.stages import b_validate

    with exclusive(settings, weights):
        return b_validate.run_layer(corpus=corpus, root=Path(root), settings=settings, layer=layer).as_json()
