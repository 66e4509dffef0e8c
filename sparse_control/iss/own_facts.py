"""A reader's own facts as the two sets of official ISS: calibration relations and benchmark relations that never meet.

One file has both, so that which is which follows from the file and the settings alone, before anything is measured:
the relations whose facts share the fewest entities with other relations are calibrated on, and of their facts those
that share none with the benchmark (source document, 13). The counts of the settings are the most that is taken.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparse_control.errors import InputError
from sparse_control.iss.benchmark import Query, normalise
from sparse_control.iss.fact_files import FactSet, OwnFact
from sparse_control.settings.schema import IssSettings

FEWEST = 3  # relations: two to score, whose mean has an interval, and one to calibrate on


@dataclass(frozen=True)
class OwnSets:
    """The queries of both sets.

    Attributes:
        calibration, benchmark: in order: relation, fact, family, prompt.
        left_out: how many of what was left out, by reason.
    """

    calibration: tuple[Query, ...]
    benchmark: tuple[Query, ...]
    left_out: Mapping[str, int]


def own_sets(found: FactSet, iss: IssSettings) -> OwnSets:
    """Facts of a file as calibration and benchmark queries.

    Args:
        found: the facts and their prompts.
        iss: the most relations of each set, facts of a relation, families, and prompts of a family.

    Raises:
        InputError: too few relations, or none whose facts share no entity with the benchmark; names the file.
    """
    chosen = _calibration_relations(found, iss.calibration_relations)
    others = [relation for relation in found.facts if relation not in chosen]
    scored = {
        relation: found.facts[relation][: iss.facts_per_relation] for relation in others[: iss.benchmark_relations]
    }
    taken = {entity for facts in scored.values() for fact in facts for entity in _entities(fact)}
    left_out = Counter(found.dropped)
    left_out["relations beyond iss.benchmark_relations"] += len(others) - len(scored)
    left_out["facts beyond iss.facts_per_relation"] += sum(
        len(found.facts[name]) - len(scored[name]) for name in scored
    )
    calibrated: dict[str, Sequence[OwnFact]] = {}
    for relation in chosen:
        apart = [fact for fact in found.facts[relation] if not _entities(fact) & taken]
        left_out["calibration facts that share an entity with the benchmark"] += len(found.facts[relation]) - len(apart)
        left_out["facts beyond iss.facts_per_relation"] += max(0, len(apart) - iss.facts_per_relation)
        if len(apart) > 1:
            calibrated[relation] = apart[: iss.facts_per_relation]
    if not calibrated:
        raise InputError(
            f"{found.path}: relations: all of {', '.join(chosen)} share the entities of their facts with other "
            "relations; add a relation with two facts about other subjects and answers, to calibrate on"
        )
    return OwnSets(
        _queries(found, calibrated, iss), _queries(found, scored, iss), {why: n for why, n in left_out.items() if n}
    )


def own_entities(found: FactSet) -> frozenset[str]:
    """Normalised subjects of all facts: articles with such a title stay out of the Jacobian corpus."""
    return frozenset(normalise(fact.subject) for facts in found.facts.values() for fact in facts)


def _entities(fact: OwnFact) -> set[str]:
    return {normalise(name) for name in (fact.subject, *fact.answers)}


def _calibration_relations(found: FactSet, most: int) -> list[str]:
    """Those with the most facts that share no entity with another relation, in file order; of equals the later ones.

    Raises:
        InputError: too few relations.
    """
    relations = list(found.facts)
    if len(relations) < FEWEST:
        raise InputError(
            f"{found.path}: relations: facts that can be asked are of {len(relations)} ({', '.join(relations)}); "
            f"{FEWEST} are needed, two to score and one to calibrate on"
        )
    of = {name: {entity for fact in facts for entity in _entities(fact)} for name, facts in found.facts.items()}
    owners = Counter(entity for entities in of.values() for entity in entities)
    apart = {
        name: sum(all(owners[entity] == 1 for entity in _entities(fact)) for fact in facts)
        for name, facts in found.facts.items()
    }
    count = min(most, len(relations) // FEWEST)
    best = sorted(relations, key=lambda name: (apart[name], relations.index(name)))[-count:]
    return [name for name in relations if name in best]


def _queries(found: FactSet, facts: Mapping[str, Sequence[OwnFact]], iss: IssSettings) -> tuple[Query, ...]:
    """Every prompt about every fact, up to the families and prompts of the settings.

    Residuals take out the means of relations and of families (10.1), which says something only where families cross
    relations. Those that do not by name, as ParaRel's lemmas, are called by their order within the relation.
    """
    prompts = {relation: _first(found.prompts[relation], iss) for relation in facts}
    names = {tuple(sorted(families)) for families in prompts.values()}
    if len(names) > 1:
        prompts = {
            relation: {f"family {number}": texts for number, texts in enumerate(families.values(), start=1)}
            for relation, families in prompts.items()
        }
    return FactSet(facts, prompts, {}, found.source, found.path).queries()


def _first(families: Mapping[str, Sequence[str]], iss: IssSettings) -> dict[str, Sequence[str]]:
    return {name: families[name][: iss.templates] for name in list(families)[: iss.families]}
