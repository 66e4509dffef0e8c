"""The DVC graph against the code it stands for: dependencies, outputs that cannot be lost, what git must ignore."""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparse_control.code_hash import code_closure

PROJECT = Path(__file__).resolve().parents[1]
FILES = (PROJECT / "dvc.yaml", PROJECT / "corpus" / "dvc.yaml")
STAGES = {name: stage for file in FILES for name, stage in yaml.safe_load(file.read_text())["stages"].items()}
MODULES = {
    "corpus": ("sparse_control.corpus",),
    "reference": ("sparse_control.stages.a_reference",),
    "validate": ("sparse_control.stages.b_validate",),
    "freeze": ("sparse_control.stages.c_freeze",),
    "official_iss": ("sparse_control.stages.d_official",),
    "six_axis": ("flows.six_axis", "sparse_control.protocol.study"),
    "tables": ("sparse_control.artifact.render",),
}
LIGHT = ("corpus", "tables")
IN_STORE = (".pt", ".safetensors")


def _outs(stage):
    return {path: options for out in stage["outs"] for path, options in out.items()}


def test_every_stage_is_known_here():
    assert set(STAGES) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_dependencies_cover_the_import_closure(name):
    listed = [PROJECT / dependency for dependency in STAGES[name]["deps"]]
    missing = [
        path.relative_to(PROJECT).as_posix()
        for path in code_closure(*MODULES[name])
        if not any(path == place or place in path.parents for place in listed)
    ]
    assert missing == [], f"add to the deps of {name}"


@pytest.mark.parametrize("name", MODULES)
def test_dependencies_on_code_and_data_exist(name):
    made = {path for stage in STAGES.values() for path in _outs(stage)}
    assert [d for d in STAGES[name]["deps"] if d not in made and not (PROJECT / d).exists()] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_output_can_be_lost(name):
    stage = STAGES[name]
    assert stage.get("frozen", False) == (name not in LIGHT)
    for path, options in _outs(stage).items():
        assert options["persist"] is True
        assert options.get("cache", True) == path.endswith(IN_STORE)


def test_parameters_are_keys_of_params_yaml():
    content = yaml.safe_load((PROJECT / "params.yaml").read_text())
    for stage in STAGES.values():
        for key in stage.get("params", []):
            value = content
            for part in key.split("."):
                assert part in value, key
                value = value[part]


def test_the_configuration_is_offline_and_inside_the_project():
    config = configparser.ConfigParser()
    config.read(PROJECT / ".dvc" / "config")
    assert config["core"]["analytics"] == "false" and config["core"]["autostage"] == "false"
    assert config["core"]["remote"] == "store"
    assert config["'remote \"store\"'"]["url"] == "../dvcstore"
    assert not [line for line in (PROJECT / ".dvcignore").read_text().splitlines() if line.startswith("!")]


@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="needs the git checkout")
def test_git_ignores_what_the_store_holds_and_nothing_else():
    for stage in STAGES.values():
        for path in _outs(stage):
            done = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=PROJECT)
            assert (done.returncode == 0) == (path.endswith(IN_STORE) or path == "corpus/windows.jsonl"), path


@pytest.mark.slow
def test_a_stage_that_fails_leaves_its_outputs(tmp_path):
    stage = {"cmd": "exit 1", "outs": [{"measurements": _outs(STAGES["six_axis"])["measurements"]}]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"measure": stage}}))
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "kept.jsonl").write_text("{}\n")
    shutil.copytree(PROJECT / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    (tmp_path / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    done = subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "failed to" in done.stderr
    assert (tmp_path / "measurements" / "kept.jsonl").read_text() == "{}\n"
