"""A run that is killed goes on where it was: the same bytes in the end, and at most the piece in hand done twice."""

import random
from collections import Counter
from pathlib import Path

import pytest

from sparse_control.files import TEMPORARY
from tests.reliability.conftest import content_of

KILLED = -9
RESULTS, MANIFEST = "Prefect's results", "manifest"
# kills in each place, in the order of the work, so that a run that is killed in one has those before it behind it
KILLS = {
    "official_iss": {"A": 6, "B": 5, "C": 3, "D": 5, RESULTS: 2, MANIFEST: 2},
    "six_axis": {"six-axis": 16, RESULTS: 3, MANIFEST: 2},
}
MOST_EVENTS = 9  # of a place between two kills there

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=list(KILLS))
def undisturbed(request, launcher, tmp_path_factory):
    """The root of a run that nothing happened to: flow, root, where its events were, what it did."""
    root = tmp_path_factory.mktemp("undisturbed") / request.param
    assert launcher.run(request.param, root) == 0, root.with_suffix(".log").read_text()
    return request.param, root, lines(root, "events"), lines(root, "work")


def lines(root: Path, suffix: str) -> list[str]:
    path = root.with_suffix(f".{suffix}")
    return path.read_text().splitlines() if path.exists() else []


def test_killed_at_seeded_moments(undisturbed, launcher, tmp_path, faults):
    flow, whole, places, done = undisturbed
    draw, killed, rounds = random.Random(0), Counter(), 0
    root = tmp_path / flow
    for place, wanted in KILLS[flow].items():
        here = 0
        while here < wanted:
            nth = draw.randint(1, min(MOST_EVENTS, places.count(place)))
            code = launcher.run(flow, root, kill=[place, nth])
            assert code in (0, KILLED), root.with_suffix(".log").read_text()
            killed[place] += code == KILLED
            here += code == KILLED
            faults.inject(f"SIGKILL of {flow} at a seeded moment", int(code == KILLED))
            if code == 0:  # it came through before; once more from the beginning
                _compare(root, whole, done, killed.total())
                rounds, root = rounds + 1, tmp_path / f"{flow}{rounds + 1}"
                assert rounds < 20
    assert launcher.run(flow, root) == 0, root.with_suffix(".log").read_text()
    _compare(root, whole, done, killed.total())
    assert killed.total() >= 20 and set(killed) == set(KILLS[flow])
    faults.survive(f"SIGKILL of {flow} at a seeded moment", killed.total())


def _compare(root: Path, whole: Path, done: list[str], killed: int) -> None:
    """The same files, and no more pieces of work done twice than there were kills."""
    assert content_of(root) == content_of(whole)
    work = Counter(lines(root, "work"))
    assert set(work) <= set(done)
    assert work.total() - len(work) <= killed, "more than the piece in hand was done again"


def test_killed_at_any_time(undisturbed, launcher, tmp_path, faults):
    flow, whole, _, _ = undisturbed
    root, killed = tmp_path / flow, 0
    for after in sorted(random.Random(0).uniform(0.3, 2.5) for _ in range(3)):
        if launcher.run(flow, root, after=after) == 0:
            break
        killed += 1
        faults.inject(f"SIGKILL of {flow} at a random time")
    assert launcher.run(flow, root) == 0, root.with_suffix(".log").read_text()
    assert content_of(root) == content_of(whole)
    assert not list(root.rglob(f".*{TEMPORARY}"))
    faults.survive(f"SIGKILL of {flow} at a random time", killed)
