"""The prompts of a study, by its settings (source document, 13.2, 13.3).

The benchmark is opened by stage D alone, once everything is frozen; before a run its size is looked at, and no more.
Facts of the reader's own are both sets in one file, of which stages A to C take the calibration relations.
"""

from functools import lru_cache
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.iss.benchmark import Query, benchmark_entities, check_separation, load_queries
from sparse_control.iss.fact_files import FactSet, read_facts
from sparse_control.iss.own_facts import OwnSets, own_entities, own_sets
from sparse_control.settings import FactsSettings, Settings


def calibration_queries(settings: Settings) -> tuple[Query, ...]:
    """The calibration prompts of these settings; of the project's own files it reads the calibration ones alone."""
    if settings.facts is not None:
        return _own_sets(settings).calibration
    return load_queries(
        "calibration",
        relations=settings.iss.calibration_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=min(4, settings.iss.families),
        templates=settings.iss.templates,
    )


def benchmark_queries(settings: Settings) -> tuple[Query, ...]:
    """The benchmark prompts of these settings; of the project's own files it reads the benchmark ones alone."""
    if settings.facts is not None:
        return _own_sets(settings).benchmark
    return load_queries(
        "benchmark",
        relations=settings.iss.benchmark_relations,
        facts_per_relation=settings.iss.facts_per_relation,
        families=settings.iss.families,
        templates=settings.iss.templates,
    )


def entities_outside_corpus(settings: Settings) -> frozenset[str]:
    """Normalised titles of the articles that stay out of the Jacobian corpus."""
    return benchmark_entities() if settings.facts is None else own_entities(_read(settings.facts))


def check_queries(settings: Settings) -> None:
    """Refuse settings that ask for more than the facts and prompts have, before hours are spent on them.

    Raises:
        InputError: more relations, facts, families or templates than there are, more held-out activations than
            calibration prompts, or own facts whose sets have a prompt or an entity in common.
    """
    if settings.facts is not None:
        sets = _own_sets(settings)
        check_separation((), sets.calibration, sets.benchmark)
        file, n_prompts = settings.facts.path, len(sets.calibration)
    else:
        file, n_prompts = "params.yaml", _sizes(settings)
    if settings.validation.activations > n_prompts:
        raise InputError(
            f"{file}: validation.activations: {settings.validation.activations} asked for, there are "
            f"{n_prompts} calibration prompts; ask for 1..{n_prompts}" + ", or add facts" * (settings.facts is not None)
        )


def _sizes(settings: Settings) -> int:
    """Number of calibration prompts of the project's own files, which have as much as is asked for.

    Raises:
        InputError: they have not.
    """
    sizes = {}
    for name, queries in (("calibration", calibration_queries), ("benchmark", benchmark_queries)):
        try:
            sizes[name] = len(queries(settings))
        except InputError as error:
            raise InputError(f"params.yaml: iss: more is asked for than the {name} has: {error}") from error
    return sizes["calibration"]


# --- facts of the reader's own --------------------------------------------------------------------------------------


def with_facts(settings: Settings, path: Path, prompts: Path | None = None) -> Settings:
    """The settings with facts of these files in place of the project's own.

    Args:
        path, prompts: as of `read_facts`.

    Raises:
        InputError: as `read_facts` and `own_sets`.
    """
    found = read_facts(path, prompts)
    kind, _, sha256 = found.source.partition(" sha256:")
    facts = FactsSettings(
        file=Path(path).resolve().name,
        prompts=prompts and Path(prompts).name,
        kind=kind,
        sha256=sha256,
        left_out=dict(own_sets(found, settings.iss).left_out),
        path=str(path),
        prompts_path=prompts and str(prompts),
    )
    return settings.model_copy(update={"facts": facts})


def told_facts(settings: Settings) -> str:
    """What of a reader's own facts is taken and left out, for a person; nothing of the project's own."""
    if settings.facts is None:
        return ""
    sets = _own_sets(settings)
    parts = []
    for name in ("benchmark", "calibration"):
        queries = getattr(sets, name)
        relations = list(dict.fromkeys(query.relation for query in queries))
        facts = len({query.fact for query in queries})
        parts.append(f"{name}: {facts} facts, {len(queries)} prompts of {', '.join(relations)}")
    parts += [f"left out: {count} {reason}" for reason, count in sets.left_out.items()]
    return f"{settings.facts.file}: {'; '.join(parts)}"


def _own_sets(settings: Settings) -> OwnSets:
    return own_sets(_read(settings.facts), settings.iss)


def _read(facts: FactsSettings) -> FactSet:
    """
    Raises:
        InputError: the files cannot be read, or are not what they were when the run began.
    """
    found = _read_once(facts.path, facts.prompts_path, facts.sha256)
    if found.source != f"{facts.kind} sha256:{facts.sha256}":
        raise InputError(f"{facts.path}: its facts changed while they were measured; begin again")
    return found


@lru_cache(maxsize=1)
def _read_once(path: str, prompts: str | None, sha256: str) -> FactSet:
    return read_facts(path, prompts)
