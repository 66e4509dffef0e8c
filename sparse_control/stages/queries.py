"""The prompts of a study, by its settings (source document, 13.2, 13.3).

The benchmark is opened by stage D alone, once everything is frozen; before a run its size is looked at, and no more.
"""

from sparse_control.errors import InputError
from sparse_control.iss.benchmark import Query, load_queries
from sparse_control.settings import Settings


def calibration_queries(settings: Settings) -> tuple[Query, ...]:
    """The calibration prompts of these settings; reads the calibration files alone."""
    return load_queries(
        "calibration",
        relations=settings.iss.calibration_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=min(4, settings.iss.families),
        templates=settings.iss.templates,
    )


def benchmark_queries(settings: Settings) -> tuple[Query, ...]:
    """The benchmark prompts of these settings; reads the benchmark files alone."""
    return load_queries(
        "benchmark",
        relations=settings.iss.benchmark_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=settings.iss.families,
        templates=settings.iss.templates,
    )


def check_queries(settings: Settings) -> None:
    """Refuse settings that ask for more than the facts and prompts have, before hours are spent on them.

    Raises:
        InputError: more relations, facts, families or templates than there are, or more held-out activations than
            calibration prompts.
    """
    sizes = {}
    for name, queries in (("calibration", calibration_queries), ("benchmark", benchmark_queries)):
        try:
            sizes[name] = len(queries(settings))
        except InputError as error:
            raise InputError(f"params.yaml: iss: more is asked for than the {name} has: {error}") from error
    if settings.validation.activations > sizes["calibration"]:
        raise InputError(
            f"params.yaml: validation.activations: {settings.validation.activations} asked for, there are "
            f"{sizes['calibration']} calibration prompts; ask for 1..{sizes['calibration']}"
        )
