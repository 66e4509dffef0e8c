"""Sentences of the results: each is a claim, what it says is in the tables, and nothing is said beside them."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.records.read import read_records
from sparse_control.tables.parts import all_tables
from sparse_control.verify import verify
from sparse_control.verify.claims import Relation, check_relation, read_claims, read_results, words_sha256
from tests.support.measured_root import MODEL, reproduce

PROJECT = Path(__file__).parent.parent.parent
SENTENCE = "It reaches the target on every seed."
HOLDS = {
    "table": "reachability",
    "where": {"task": "ioi", "selector": "coverage_driver", "condition": "P"},
    "column": "rel_tar_mean", "operator": "<=", "value": 0.4,
}  # fmt: skip


def write(project, text=f"\\claim{{one}}{{{SENTENCE}}}", sentence=SENTENCE, **change):
    claim = {"id": "one", "words": words_sha256(sentence), "holds": [HOLDS]} | change
    (project / "paper" / "claims.yaml").write_text(yaml.safe_dump({"model": MODEL, "claims": [claim]}))
    (project / "paper" / "results").mkdir(exist_ok=True)
    (project / "paper" / "results" / "all.tex").write_text("% Results.\n\\paragraph{Reachability.}\n" + text + "\n")


@pytest.fixture
def project(built_root, tmp_path, monkeypatch):
    """A project folder with its committed measurements, and one claim."""
    monkeypatch.setattr("sparse_control.paper.project_folder", lambda: tmp_path)
    ignore = shutil.ignore_patterns("paper")
    shutil.copytree(built_root, tmp_path / "measurements", ignore=ignore)
    shutil.copytree(PROJECT / "paper" / "templates", tmp_path / "paper" / "templates")
    shutil.copy(PROJECT / "paper" / "published.yaml", tmp_path / "paper")
    write(tmp_path)
    reproduce(tmp_path / "measurements")
    return tmp_path


def checks_of(project):
    return verify(project / "measurements", project)


def only(project, *patterns):
    """The failures are exactly these, in any order."""
    found = [f"{check.name}: {check.detail}" for check in checks_of(project) if check.status == "FAIL"]
    assert len(found) == len(patterns), found
    assert all(any(re.search(pattern, line) for line in found) for pattern in patterns), found


def test_a_claim_that_holds(project):
    assert any(check.name == "claim one" and check.status == "ok" for check in checks_of(project))
    only(project)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": 0.1}, r"does not hold: rel_tar_mean 0\.1"),
        ({"operator": ">"}, "does not hold"),
        ({"where": {"task": "ioi"}}, "6 rows"),
        ({"where": {"task": "mcqa"}}, "0 rows"),
        ({"where": {"tusk": "ioi"}}, "no column 'tusk'"),
        ({"column": "rel"}, "no column 'rel'"),
        ({"table": "reach"}, "no table 'reach'"),
        ({"value": "high"}, "cannot be compared"),
        ({"where": {"task": "refusal"}}, "no value in rel_tar_mean"),
    ],
)
def test_a_relation_that_fails(project, change, message):
    write(project, holds=[HOLDS | change])
    only(project, message)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (f"\\claim{{one}}{{{SENTENCE}}} Every task passes all six axes.", ["all.tex:3: outside of a claim: 'Every"]),
        (f"Surely,\n\\claim{{one}}{{{SENTENCE}}}", ["all.tex:3: outside of a claim: 'Surely,'"]),
        (
            f"\\claim{{one}}{{{SENTENCE}}}\n\\claim{{two}}{{Every task passes all six axes.}}",
            ["claim two: all.tex:4: there is no such claim"],
        ),
        (
            f"\\claim{{one}}{{{SENTENCE}}}\n\\claim{{one}}{{Every task passes all six axes.}}",
            ["claim one: is to be used once in paper/results, is used 2 times .all.tex:3, all.tex:4"],
        ),
        ("\\claim{one}{It reaches the target on no seed.}", ["the sentence was changed; .* words: [0-9a-f]+"]),
        (
            f"\\claim{{one}}{{{SENTENCE} Every task does.}}",
            ["claim one holds more than one sentence", "the sentence was changed"],
        ),
        ("", ["claim one: is to be used once in paper/results, is used 0 times"]),
        (f"\\claim{{one}}{{{SENTENCE}", ["all.tex:3: .claim.one. does not end", "is used 0 times"]),
    ],
)  # fmt: skip
def test_what_the_text_does_wrong(project, text, messages):
    write(project, text)
    only(project, *messages)


def test_a_sentence_turned_round_fails_until_it_is_judged_again(project):
    turned = "Both are official."
    write(project, f"\\claim{{one}}{{{turned}}}", sentence="Neither is official.")
    only(project, "the sentence was changed")
    write(project, "\\claim{one}{Both\n  are\tofficial.}", sentence=turned)
    only(project)


def test_a_sentence_that_rests_on_nothing_fails(project):
    write(project, holds=[])
    only(project, "holds: is empty, and the sentence quotes no cell")


@pytest.mark.parametrize(
    "content, message",
    [
        ("[{id: a", "not valid YAML"),
        ("[1]", "claims.yaml"),
        ("{model: toy, claims: [{id: a}]}", "claim 1: words"),
        ("{model: toy, claims: [{id: a, words: 0123}]}", "claim 1: words"),
        (None, "cannot be read"),
    ],
)
def test_broken_claims_file(project, content, message):
    path = project / "paper" / "claims.yaml"
    path.unlink() if content is None else path.write_text(content)
    only(project, message)


def test_a_relation_may_compare_two_cells(built_root):
    frames = all_tables(read_records(built_root, PROJECT))
    other = {"where": {"condition": "F"}, "column": "rel_tar_mean"}
    check_relation(Relation(**HOLDS | {"operator": "<", "value": other}), frames)
    with pytest.raises(InputError, match="does not hold"):
        check_relation(Relation(**HOLDS | {"operator": ">", "value": other}), frames)


def test_braces_comments_and_commands_inside_a_claim(tmp_path):
    path = tmp_path / "r.tex"
    path.write_text("\\claim{a}{A \\emph{b {c}} \\{ 5\\% % no }\n\\val{d} of $x. Y$.}\n\\showtable{t}\n")
    (sentence,), wrong = read_results(path)
    assert wrong == [] and sentence.text == "A \\emph{b {c}} \\{ 5\\% \n\\val{d} of $x. Y$."


def test_a_claim_is_not_made_twice(tmp_path):
    path = tmp_path / "claims.yaml"
    claim = {"id": "a", "words": "0123456789ab"}
    path.write_text(yaml.safe_dump({"model": "toy", "claims": [claim, dict(claim)]}))
    with pytest.raises(InputError, match="is there twice, got 'a'"):
        read_claims(path)
