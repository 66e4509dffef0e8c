"""constraints.txt: one exact version of everything that is asked for, within what pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PIN = re.compile(r"([\w.-]+)==([\w.+!-]+)")


def test_every_requirement_is_pinned_once_and_within_its_range():
    from packaging.requirements import Requirement

    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    pins = [match.groups() for match in map(PIN.fullmatch, (line for line in lines if line[:1] != "#")) if match]
    assert len(pins) == sum(bool(line) and line[0] != "#" for line in lines), "exact versions alone"
    versions = {name.lower().replace("_", "-"): version for name, version in pins}
    assert len(versions) == len(pins)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    for requirement in map(Requirement, asked):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(versions[requirement.name.lower()].split("+")[0]), requirement
