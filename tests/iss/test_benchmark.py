"""The project's facts and prompts: counts, prompts fit to be answered, strict reading, separation of the resources."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, replace

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.iss import benchmark
from sparse_control.iss.benchmark import (
    Query,
    benchmark_entities,
    check_separation,
    load_queries,
    normalise,
    read_facts,
)

FACTS = """relation,subject,answer,source
colour,grass,green,own
colour,snow,white,own
"""
PROMPTS = """
families:
  plain:
    - prompt: "{statement_1}"
  shown:
    - demonstration: "{subject} = {answer}\\n"
      prompt: "{subject} ="
relations:
  colour:
    phrases: {statement: ["The colour of {subject} is"]}
    demonstrations: {coal: black, milk chocolate: brown}
"""


@pytest.fixture(scope="module")
def benchmark_queries():
    return load_queries("benchmark", relations=12, facts_per_relation=24)


@pytest.fixture(scope="module")
def calibration_queries():
    return load_queries("calibration", relations=4, facts_per_relation=24)


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """Put a facts table and a prompts file in the benchmark's place; returns their paths."""

    def write(facts=FACTS, prompts=PROMPTS):
        paths = tmp_path / "facts.csv", tmp_path / "prompts.yaml"
        for path, text in zip(paths, (facts, prompts), strict=True):
            path.write_text(text, encoding="utf-8")
        monkeypatch.setattr(benchmark, "BENCHMARK_FACTS", paths[0])
        monkeypatch.setattr(benchmark, "BENCHMARK_PROMPTS", paths[1])
        return paths

    return write


def load_own(relations=1, facts_per_relation=2, **counts):
    return load_queries("benchmark", relations=relations, facts_per_relation=facts_per_relation, **counts)


def query(text="What is it?", fact="colour/grass", answer="green", relation="colour"):
    return Query(fact=fact, relation=relation, family="plain", template=0, text=text, answers=(answer,))


# the shipped sets


def test_benchmark_counts(benchmark_queries):
    assert len(benchmark_queries) == 12 * 24 * 5 * 3
    facts = read_facts(benchmark.BENCHMARK_FACTS)
    assert len(facts) == 12 and all(len(rows) >= 24 for rows in facts.values())
    assert set(Counter((q.fact, q.family) for q in benchmark_queries).values()) == {3}
    assert {q.template for q in benchmark_queries} == {0, 1, 2}


def test_calibration_counts(calibration_queries):
    assert len(calibration_queries) == 4 * 24 * 4 * 3
    assert set(Counter((q.fact, q.family) for q in calibration_queries).values()) == {3}


def test_smaller_set_is_the_first_part_of_everything(benchmark_queries):
    small = load_queries("benchmark", relations=6, facts_per_relation=16, families=4, templates=2)
    assert len(small) == 6 * 16 * 4 * 2
    assert set(small) < set(benchmark_queries)
    assert small[0] == benchmark_queries[0]
    relations = list(dict.fromkeys(q.relation for q in benchmark_queries))
    assert list(dict.fromkeys(q.relation for q in small)) == relations[:6]
    assert "few_shot" not in {q.family for q in small}


@pytest.mark.parametrize("which", ["benchmark_queries", "calibration_queries"])
def test_every_prompt_can_be_answered_next(which, request):
    queries = request.getfixturevalue(which)
    assert len({q.text for q in queries}) == len({q.id for q in queries}) == len(queries)
    for q in queries:
        assert q.subject in q.text, q.id
        assert q.text == q.text.strip(), q.id
        assert "{" not in q.text and "  " not in q.text, q.id
        assert q.answers[0][0].isalpha() and not re.search(r"\d", q.answers[0]), q.id
        tail = q.text[q.text.rindex(q.subject) + len(q.subject) :]
        searched = tail if q.family == "few_shot" else q.text
        assert not re.search(rf"\b{re.escape(q.answers[0])}\b", searched, re.IGNORECASE), q.id


@pytest.mark.parametrize("path", [benchmark.BENCHMARK_FACTS, benchmark.CALIBRATION_FACTS])
def test_answers_within_a_relation_differ(path):
    for rows in read_facts(path).values():
        assert max(Counter(normalise(row.answer) for row in rows).values()) == 1


def test_demonstrations_are_reserved(benchmark_queries, calibration_queries):
    prompts = yaml.safe_load(benchmark.BENCHMARK_PROMPTS.read_text(encoding="utf-8"))
    calibrated = {normalise(name) for q in calibration_queries for name in (q.subject, q.answers[0])}
    for name, relation in prompts["relations"].items():
        shown = relation["demonstrations"]
        assert 2 <= len(shown) <= 3 and len(set(shown.values())) == len(shown)
        assert not shown.keys() & {q.subject for q in benchmark_queries if q.relation == name}
        assert not {normalise(text) for text in (*shown, *shown.values())} & calibrated


def test_sets_share_nothing(benchmark_queries, calibration_queries):
    check_separation(["Some passage of text."], calibration_queries, benchmark_queries, articles=["Anarchism"])
    assert not {q.family for q in calibration_queries} & {q.family for q in benchmark_queries}


@pytest.mark.parametrize(("which", "hidden"), [("benchmark", "CALIBRATION"), ("calibration", "BENCHMARK")])
def test_one_set_loads_while_the_other_is_unreadable(which, hidden, tmp_path, monkeypatch):
    for kind in ("FACTS", "PROMPTS"):
        monkeypatch.setattr(benchmark, f"{hidden}_{kind}", tmp_path / "unreadable")
    assert load_queries(which, relations=2, facts_per_relation=3, families=1, templates=1)
    with pytest.raises(InputError, match="unreadable"):
        load_queries(hidden.lower(), relations=2, facts_per_relation=3)


@pytest.mark.parametrize(("which", "other"), [("benchmark", "calibration"), ("calibration", "benchmark")])
def test_one_set_opens_no_file_of_the_other(which, other, monkeypatch):
    opened = []
    read = benchmark.read_text
    monkeypatch.setattr(benchmark, "read_text", lambda path: opened.append(path.name) or read(path))
    load_queries(which, relations=1, facts_per_relation=2)
    assert opened == [f"{which}_facts.csv", f"{which}_prompts.yaml"]
    assert not any(other in name for name in opened)


def test_import_is_light():
    code = (
        "import sys, sparse_control.iss.benchmark; assert not {'torch', 'prefect', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=benchmark.DATA.parent.parent)


# queries


def test_query_is_frozen_and_keeps_a_subject_with_a_slash():
    q = query(fact="colour/black/white film")
    assert q.subject == "black/white film"
    assert q.id == "colour/black/white film/plain/0"
    with pytest.raises(FrozenInstanceError):
        q.text = "other"


def test_own_files_make_the_expected_texts(own_files):
    own_files()
    texts = [(q.fact, q.family, q.text, q.answers[0]) for q in load_own()]
    shown = "coal = black\nmilk chocolate = brown\n"
    assert texts == [
        ("colour/grass", "plain", "The colour of grass is", "green"),
        ("colour/grass", "shown", f"{shown}grass =", "green"),
        ("colour/snow", "plain", "The colour of snow is", "white"),
        ("colour/snow", "shown", f"{shown}snow =", "white"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Odyssey ", "odyssey"),
        ("Moby-Dick", "moby dick"),
        ("“Gulliver’s Travels”", "gulliver s travels"),
        ("Straße", "strasse"),
        ("ﬁne Ａ", "fine a"),
        ("Bronte\u0308", "bront\u00eb"),
        ("A", "a"),
        ("हिन्दी!", "हिन्दी"),
        ("?!", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected
    assert normalise(expected) == expected


# malformed files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("relation,subject,answer,source", "relation,subject,source", r"facts.csv:1: answer: the column is missing"),
        ("answer,source", "answer,source,year", r"facts.csv:1: header: got '.*year'"),
        ("colour,snow,white,own", "colour,snow,,own", r"facts.csv:3: answer: '' is blank"),
        ("colour,snow,white,own", "colour,snow,white,", r"facts.csv:3: source: '' is blank"),
        ("colour,snow,white,own", "colour, snow,white,own", r"facts.csv:3: subject: ' snow'"),
        ("colour,snow,white,own", "colour,snow,white", r"facts.csv:3: row: 3 cells"),
        ("colour,snow,white,own", "colour,Grass,white,own", r"facts.csv:3: subject: 'Grass' stands already in line 2"),
        ("colour,snow,white,own", "colour,snow,1969,own", r"facts.csv:3: answer: '1969' must start with a letter"),
        ("colour,snow,white,own", "co/lour,snow,white,own", r"facts.csv:3: relation: 'co/lour'"),
        ("colour,snow,white,own", '"colour,snow', r"facts.csv:\d+: not valid CSV"),
        ("colour,snow,white,own", "shape,snow,white,own", r"prompts.yaml: relations.shape: is missing"),
        ("colour,snow,white,own", "colour,milk chocolate,tan,own", r"demonstrations.milk chocolate"),
        ("colour,snow,white,own", "colour,snow,Black,own", r"demonstrations.coal: 'black'"),
        ("colour,snow,white,own", "colour,snow,colour,own", r"facts.csv:3: answer: 'colour' stands in the prompt"),
        (FACTS, "", r"facts.csv:1: relation: the column is missing"),
    ],
)
def test_malformed_facts(own_files, old, new, message):
    own_files(facts=FACTS.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_own()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("relations:\n  colour:", "relations:\n  color:", r"prompts.yaml: relations.color: no such relation"),
        ("of {subject} is", "of things is", r"families.plain\[0\] with relations.colour: .* has no {subject} slot"),
        ("{subject} is", "{subject} is ", r"families.plain\[0\] .* ends with a space"),
        ("{subject} is", "{subject} is {answer}", r"holds the answer"),
        ("{statement_1}", "{statement_2}", r"'{statement_2}' is no slot; there are: subject, statement_1"),
        ("    demonstrations: {coal: black, milk chocolate: brown}\n", "", r"has no demonstrations"),
        ("prompt:", "promt:", r"families.plain.0"),
        ("{coal: black", "{coal: No", r"relations.colour.demonstrations.coal"),
        ('    - prompt: "{statement_1}"', "    []", r"families.plain"),
        (PROMPTS, "families: [", r"not valid YAML"),
        (PROMPTS, "", r"prompts.yaml: file: "),
    ],
)
def test_malformed_prompts(own_files, old, new, message):
    own_files(prompts=PROMPTS.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_own()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"relations": 2}, r"facts.csv: relations: 2 asked, there are 1"),
        ({"relations": 0}, r"relations: 0 asked"),
        ({"facts_per_relation": 3}, r"facts.csv: colour: facts_per_relation: 3 asked, there are 2"),
        ({"families": 3}, r"prompts.yaml: families: 3 asked, there are 2"),
        ({"templates": 2}, r"families.plain: templates: 2 asked, there are 1"),
        ({"templates": -1}, r"templates: -1 asked"),
    ],
)
def test_more_asked_than_there_is(own_files, counts, message):
    own_files()
    with pytest.raises(InputError, match=message):
        load_own(**counts)


def test_unknown_set():
    with pytest.raises(InputError, match="'test' is no set"):
        load_queries("test", relations=1, facts_per_relation=1)


# separation


def test_benchmark_entities_are_all_normalised_subjects(own_files, benchmark_queries):
    assert benchmark_entities() == {normalise(q.subject) for q in benchmark_queries}
    assert "eiffel tower" in benchmark_entities()
    own_files(prompts="unreadable")
    assert benchmark_entities() == {"grass", "snow"}


OTHER = query(text="The sound of cows:", fact="sound/cow", answer="moo", relation="sound")


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (replace(OTHER, text="What is it?"), r"equal content hash: sound/cow/plain/0 ~ colour/grass/plain/0"),
        (replace(OTHER, text="what  is it"), r"equal normalised text: sound/cow/plain/0 ~ colour/grass/plain/0"),
        (replace(OTHER, fact="Colour/cow", relation="Colour"), r"relations in both sets: Colour ~ colour"),
        (replace(OTHER, fact="sound/Grass"), r"entities in both sets: sound/Grass \(moo\) ~ colour/grass \(green\)"),
        (replace(OTHER, answers=("Green",)), r"entities in both sets: sound/cow \(Green\) ~ colour/grass"),
        (replace(OTHER, answers=("grass",)), r"entities in both sets: sound/cow \(grass\) ~ colour/grass"),
        (replace(OTHER, fact="sound/green"), r"entities in both sets: sound/green \(moo\) ~ colour/grass"),
    ],
)
def test_overlap_of_calibration_and_benchmark_is_refused(calibration, message):
    check_separation([], [OTHER], [query()])
    with pytest.raises(InputError, match=message):
        check_separation([], [OTHER, calibration], [query()])


def test_corpus_article_about_a_subject_is_refused():
    check_separation(["a", "b"], [OTHER], [query()], articles=["Grassland", "Cow"])
    with pytest.raises(InputError, match=r"articles about benchmark subjects: window 1 \(Grass\)"):
        check_separation(["a", "b"], [OTHER], [query()], articles=["Cow", "Grass"])


@pytest.mark.parametrize(
    ("held", "offender"), [("so: what is\nit, then", "colour/grass"), ("The sound of cows!", "sound/cow")]
)
def test_corpus_text_that_holds_a_prompt_is_refused(held, offender):
    check_separation(["somewhat is it", "the sound of"], [OTHER], [query()])
    with pytest.raises(InputError, match=rf"window 1 ~ {offender}/plain/0"):
        check_separation(["other text", held], [OTHER], [query()])


def test_a_prompt_across_two_windows_is_no_hit():
    check_separation(["What is", "it?"], [OTHER], [query()])


def test_long_lists_of_offenders_are_cut():
    many = [query(text=f"Prompt {n}", fact=f"colour/thing {n}", answer=f"hue {n}") for n in range(15)]
    with pytest.raises(InputError, match="and 5 more"):
        check_separation([], [replace(q, relation="sound", fact=f"sound/{n}") for n, q in enumerate(many)], many)


def test_titles_and_texts_of_different_length():
    with pytest.raises(InputError, match="1 titles for 2"):
        check_separation(["a", "b"], [], [], articles=["A"])
