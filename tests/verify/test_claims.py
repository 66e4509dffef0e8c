"""Claims of the paper hold on the tables of the committed measurements, and are in its text."""

import copy
import re
import shutil
from pathlib import Path

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.records.read import read_records
from sparse_control.tables import all_tables
from sparse_control.verify import verify
from sparse_control.verify.claims import Claim, check_claim, read_claims
from tests.support.measured_root import reproduce

PROJECT = Path(__file__).parent.parent.parent

CLAIM = {
    "id": "one", "sentence": "It reaches.", "table": "reachability",
    "where": {"task": "ioi", "selector": "coverage_driver", "condition": "P"},
    "column": "rel_tar_mean", "operator": "<=", "value": 0.4,
}  # fmt: skip


@pytest.fixture
def project(built_root, tmp_path, monkeypatch):
    """A project folder with its committed measurements, and one claim."""
    monkeypatch.setattr("sparse_control.paper.project_folder", lambda: tmp_path)
    ignore = shutil.ignore_patterns("paper")
    shutil.copytree(built_root, tmp_path / "measurements", ignore=ignore)
    shutil.copytree(PROJECT / "paper" / "templates", tmp_path / "paper" / "templates")
    shutil.copy(PROJECT / "paper" / "published.yaml", tmp_path / "paper")
    (tmp_path / "paper" / "main.tex").write_text("Here: It\n reaches.")
    (tmp_path / "paper" / "claims.yaml").write_text(yaml.safe_dump([CLAIM]))
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
        ({"sentence": "It flies."}, "main.tex does not have the sentence"),
        ({"where": {"task": "refusal"}}, "no value in rel_tar_mean"),
    ],
)
def test_a_claim_that_fails(project, change, message):
    (project / "paper" / "claims.yaml").write_text(yaml.safe_dump([CLAIM | change]))
    only(project, message)


@pytest.mark.parametrize(
    "content, message",
    [
        ("[{id: a", "not valid YAML"),
        ("a: 1", "expected a list"),
        ("[{id: a}]", "claim 1: sentence"),
        (None, "cannot be read"),
    ],
)
def test_broken_claims_file(project, content, message):
    path = project / "paper" / "claims.yaml"
    path.unlink() if content is None else path.write_text(content)
    only(project, message)


def test_a_claim_may_compare_two_cells(built_root):
    frames = all_tables(read_records(built_root, PROJECT))
    other = {"where": CLAIM["where"] | {"condition": "F"}, "column": "rel_tar_mean"}
    check_claim(Claim(**CLAIM | {"operator": "<", "value": other}), frames)
    with pytest.raises(InputError, match="does not hold"):
        check_claim(Claim(**CLAIM | {"operator": ">", "value": other}), frames)


def test_claims_of_the_paper_are_well_formed(tmp_path):
    claims = read_claims(PROJECT / "paper" / "claims.yaml")
    files = [PROJECT / "paper" / "main.tex", *(PROJECT / "paper" / "sections").glob("*.tex")]
    prose = " ".join(" ".join(path.read_text() for path in files).split())
    assert claims and all(claim.sentence in prose for claim in claims)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([CLAIM, copy.deepcopy(CLAIM)]))
    with pytest.raises(InputError, match="twice"):
        read_claims(path)
