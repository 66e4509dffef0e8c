"""Facts of the reader's own: what is read, what is left out and counted, what is refused in one line."""

import json

import pytest

from sparse_control.errors import InputError
from sparse_control.iss import read_facts
from sparse_control.iss.benchmark import check_separation

FACTS = "relation,subject,answer\ncapital,France,Paris\ncapital,Peru,Lima\ncapital,Bolivia,Sucre|La Paz\n"
PROMPTS = (
    "relation,family,prompt\ncapital,cloze,The capital of {subject} is\n"
    "capital,question,What is the capital of {subject}? It is\ncapital,question,{subject}'s capital is\n"
)


def written(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_csv", ".csv").replace("_jsonl", ".jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
    return folder


def own(folder, facts=FACTS, prompts=PROMPTS):
    written(folder, facts_csv=facts, prompts_csv=prompts)
    return read_facts(folder / "facts.csv", folder / "prompts.csv")


def test_every_prompt_about_every_fact(tmp_path):
    queries = own(tmp_path).queries()
    assert len(queries) == 3 * 3
    last = queries[-1]
    assert (last.id, last.text) == ("capital/Bolivia/question/1", "Bolivia's capital is")
    assert last.answers == ("Sucre", "La Paz") and last.subject == "Bolivia"


def test_facts_and_prompts_in_one_file_of_json_lines(tmp_path):
    rows = [
        {"relation": "capital", "subject": s, "answers": a} for s, a in (("Peru", ["Lima"]), ("Bolivia", ["Sucre"]))
    ]
    rows += [{"relation": "capital", "family": f, "prompt": f"{f}: {{subject}} ->"} for f in ("a", "b")]
    one = read_facts(written(tmp_path, facts_jsonl=rows) / "facts.jsonl")
    assert [query.text for query in one.queries()] == ["a: Peru ->", "b: Peru ->", "a: Bolivia ->", "b: Bolivia ->"]
    assert one.source.startswith("own sha256:")
    rows[0]["subject"] = "Chile"
    assert read_facts(written(tmp_path, facts_jsonl=rows) / "facts.jsonl").source != one.source


def pararel(folder):
    patterns = [
        {"pattern": "[X] is located in [Y].", "lemma": "locate", "extended_lemma": "is-located", "tense": "present"},
        {"pattern": "[X],  which lies in [Y] .", "lemma": "lie", "extended_lemma": "lies", "tense": "present"},
        {"pattern": "In [Y] lies [X].", "lemma": "lie", "extended_lemma": "lies", "tense": "present"},
        {"pattern": "[X] lies in the [Y] area.", "lemma": "lie", "extended_lemma": "lies", "tense": "present"},
    ]
    facts = [
        {"sub_label": "Bath", "obj_label": "England", "uuid": "1"},
        {"sub_label": "Lyon", "obj_label": "France", "uuid": "2"},
        {"sub_label": "Lyon", "obj_label": "Europe", "uuid": "3"},
        {"sub_label": "Mexico City", "obj_label": "Mexico", "uuid": "4"},
    ]
    return written(
        folder,
        **{
            "data__pattern_data__graphs_json__P17_jsonl": patterns,
            "data__pattern_data__graphs_json__P31_jsonl": patterns[:1],
            "data__pattern_data__graphs_json__P99_jsonl": patterns,
            "data__trex_lms_vocab__P17_jsonl": facts,
            "data__trex_lms_vocab__P31_jsonl": facts,
        },
    )


@pytest.mark.parametrize("inside", ["", "data"])
def test_pararel_as_it_is_published(tmp_path, inside):
    found = read_facts(pararel(tmp_path) / inside)
    assert {relation: dict(families) for relation, families in found.prompts.items()} == {
        "P17": {"locate": ["{subject} is located in"], "lie": ["{subject}, which lies in"]}
    }
    assert [(fact.subject, fact.answers) for fact in found.facts["P17"]] == [
        ("Bath", ("England",)),
        ("Lyon", ("France", "Europe")),
    ]
    assert found.dropped == {
        "patterns that do not end with the answer": 2,
        "relations without facts": 1,
        "relations with patterns of one family": 1,
        "the prompt holds the answer": 1,
    }


def test_prompts_of_ones_own_are_a_further_family_of_pararel(tmp_path):
    """P31 has patterns of one lemma alone, and is left out without them."""
    folder = pararel(tmp_path)
    written(tmp_path, prompts_csv="relation,family,prompt\nP31,question,What is {subject}? A\n")
    found = read_facts(folder, tmp_path / "prompts.csv")
    assert set(found.facts) == {"P17", "P31"} and list(found.prompts["P31"]) == ["locate", "question"]
    assert "relations with patterns of one family" not in found.dropped


def test_the_first_so_many_facts(tmp_path):
    assert [fact.subject for fact in read_facts(pararel(tmp_path), facts_per_relation=2).facts["P17"]] == [
        "Bath",
        "Lyon",
    ]
    with pytest.raises(ValueError, match="facts_per_relation must be an integer at least 2, got 1"):
        read_facts(tmp_path, facts_per_relation=1)


def test_lama_has_one_template_and_needs_further_prompts(tmp_path):
    folder = written(
        tmp_path,
        relations_jsonl=[{"relation": "P19", "template": "[X] was born in [Y] .", "label": "place of birth"}],
        **{"TREx__P19_jsonl": [{"sub_label": s, "obj_label": o} for s, o in (("Ada", "London"), ("Carl", "Uppsala"))]},
    )
    with pytest.raises(InputError, match="relation 'P19' has prompts of 1 families and needs two; .* --prompts"):
        read_facts(folder)
    written(tmp_path, prompts_csv="relation,family,prompt\nP19,question,Where was {subject} born? In\n")
    found = read_facts(folder, tmp_path / "prompts.csv")
    assert found.source.startswith("lama sha256:") and len(found.queries()) == 4


@pytest.mark.parametrize(
    ("facts", "prompts", "message"),
    [
        (
            FACTS + "capital,peru,Cusco\n",
            PROMPTS,
            r"given more than once: capital/Peru in facts.csv:3, facts.csv:5; keep",
        ),
        (FACTS + "capital,,Rome\n", PROMPTS, r"facts.csv:5: subject: '' must be text"),
        (FACTS + "capital,Italy,Rome|\n", PROMPTS, r"facts.csv:5: answer: '' must be text"),
        (FACTS + "capital,Italy,Rome|Rome\n", PROMPTS, r"facts.csv:5: answers: one is given twice"),
        (FACTS + "capital,Italy\n", PROMPTS, r"facts.csv:5: 2 cells, the header has 3"),
        (FACTS + "river,Egypt,Nile\n", PROMPTS, r"facts.csv:5: relation 'river' has prompts of 0 families"),
        (FACTS.replace("answer", "object"), PROMPTS, r"facts.csv:2: object: unknown field; known: relation, subject"),
        (
            FACTS,
            PROMPTS + "capital,cloze,The capital is\n",
            r"prompts.csv:5: prompt: 'The capital is' must hold \{subject\}",
        ),
        (FACTS, PROMPTS + "capital,cloze,The capital of {subject} is\n", r"prompts.csv:5: .* is given twice"),
        (FACTS, PROMPTS + "capital,cloze,Of {subject} \n", r"prompts.csv:5: prompt: .* must be text without spaces"),
        (FACTS[: FACTS.index("capital,Peru")], PROMPTS, r"no relation has two facts that can be asked; 1 dropped"),
        ('relation,subject,answer\n"x,y\n', PROMPTS, r"facts.csv:2: not valid CSV"),
        ("", PROMPTS, r"facts.csv:1: header: got ''; it needs relation"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, facts, prompts, message):
    with pytest.raises(InputError, match=message) as raised:
        own(tmp_path, facts, prompts)
    assert "\n" not in str(raised.value)


def test_neither_file_nor_known_folder(tmp_path):
    with pytest.raises(InputError, match="is neither ParaRel .* nor LAMA"):
        read_facts(tmp_path)
    with pytest.raises(InputError, match="facts are read from .csv, .jsonl"):
        read_facts(written(tmp_path, x="") / "x")


def test_any_right_answer_is_held_against_the_calibration_set(tmp_path):
    queries = own(tmp_path).queries()
    one = queries[-1]
    other = type(one)(
        fact="river/La Paz", relation="river", family="f", template=0, text="Of?", answers=("Choqueyapu",)
    )
    with pytest.raises(InputError, match=r"entities in both sets: river/La Paz .* ~ capital/Bolivia \(Sucre, La Paz\)"):
        check_separation([], [other], queries)
