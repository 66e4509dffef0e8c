"""A reader's own facts as two sets that never meet: which relations are calibrated on, what is left out and counted."""

import pytest

from sparse_control.errors import InputError
from sparse_control.iss import read_facts
from sparse_control.iss.benchmark import check_separation, normalise
from sparse_control.iss.own_facts import own_entities, own_sets
from sparse_control.project import project_folder
from sparse_control.settings import load_settings
from tests.support.facts import letters, write_facts


def counts(**changes):
    return load_settings(project_folder() / "params.yaml").iss.model_copy(update=changes)


def relations(queries):
    return list(dict.fromkeys(query.relation for query in queries))


def test_the_relations_that_share_least_are_calibrated_on_and_nothing_meets(tmp_path):
    rows = {
        "river": [("Nile", "Egypt"), ("Seine", "France"), ("Ebro", "Spain")],
        "metal": [("Iron", "Fe"), ("Gold", "Au"), ("Tin", "France")],  # the last shares its answer with two
        "capital": [("France", "Paris"), ("Spain", "Madrid"), ("Peru", "Lima")],
    }
    found = read_facts(write_facts(tmp_path, rows))
    sets = own_sets(found, counts())
    assert relations(sets.calibration) == ["metal"] and relations(sets.benchmark) == ["river", "capital"]
    assert {query.subject for query in sets.calibration} == {"Iron", "Gold"}
    assert sets.left_out == {"calibration facts that share an entity with the benchmark": 1}
    check_separation((), sets.calibration, sets.benchmark)
    assert own_entities(found) == {normalise(s) for facts in rows.values() for s, _ in facts}


def test_settings_are_the_most_that_is_taken(tmp_path):
    rows = {name: [(f"{name}{i}", f"is{name}{i}") for i in range(6)] for name in ("a", "b", "c", "d", "e", "f", "g")}
    found = read_facts(write_facts(tmp_path, rows, families=3))
    sets = own_sets(found, counts(benchmark_relations=3, calibration_relations=4, facts_per_relation=4, families=2))
    assert relations(sets.calibration) == ["f", "g"], "a third of the relations at most, of equals the last"
    assert relations(sets.benchmark) == ["a", "b", "c"]
    assert len(sets.calibration) == 2 * 4 * 2 and len(sets.benchmark) == 3 * 4 * 2
    assert sets.left_out == {
        "relations beyond iss.benchmark_relations": 2,
        "facts beyond iss.facts_per_relation": 5 * 2,
    }


def test_families_cross_relations_by_name_or_by_order(tmp_path):
    rows = {name: [(f"{name}{i}", f"is{name}{i}") for i in range(2)] for name in letters(3)}
    alike = own_sets(read_facts(write_facts(tmp_path, rows)), counts())
    assert {query.family for query in alike.benchmark} == {"way1", "way2"}
    apart = own_sets(read_facts(write_facts(tmp_path, rows, own_families=True)), counts())
    assert {query.family for query in apart.benchmark} == {"family 1", "family 2"}
    assert {len({q.family for q in apart.benchmark if q.relation == name}) for name in ("a", "b")} == {2}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {"a": [("x", "y"), ("z", "w")], "b": [("u", "v"), ("s", "t")]},
            r"facts.jsonl: relations: .* of 2 \(a, b\); 3",
        ),
        (
            {name: [("France", "Paris"), ("Peru", "Lima")] for name in letters(3)},
            r"facts.jsonl: relations: all of c share the entities .* add a relation with two facts",
        ),
    ],
)
def test_too_little_is_one_line_that_names_the_file(tmp_path, rows, message):
    with pytest.raises(InputError, match=message) as raised:
        own_sets(read_facts(write_facts(tmp_path, rows)), counts())
    assert "\n" not in str(raised.value)
