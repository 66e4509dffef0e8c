"""The DVC graph against the code it stands for: dependencies, outputs that cannot be lost, what git must ignore."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparse_control.code_hash import code_closure
from sparse_control.figures.curves import curve_text, write_curves
from sparse_control.settings import load_settings
from sparse_control.stages.pipeline import CODE, code_deps, corpus_text, pipeline_text
from tests.support.measured_root import MODEL, build_root

PROJECT = Path(__file__).resolve().parents[1]
FILES = (PROJECT / "dvc.yaml", PROJECT / "corpus" / "dvc.yaml")
STAGES = {name: stage for file in FILES for name, stage in yaml.safe_load(file.read_text())["stages"].items()}
MODULES = CODE | {"null_shuffled_tokens": CODE["study"], "null_redrawn_weights": CODE["study"]}
LIGHT = ("corpus", "tables", "curves")
IN_STORE = (".pt", ".safetensors")


def _outs(stage):
    listed = [*stage.get("outs", []), *stage.get("metrics", [])]
    return {path: options for out in listed for path, options in out.items()}


def _code(dependencies):
    """The Python files among dependencies, those of listed folders too."""
    paths = [PROJECT / dependency for dependency in dependencies]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return {file for file in files if file.suffix == ".py" and "__pycache__" not in file.parts}


def test_dvc_yaml_is_what_the_preset_and_the_measurements_make_it():
    text = FILES[0].read_text()
    preset = re.search(r"pipeline --preset (\w+)", text)[1]
    command = f"python -m sparse_control.stages pipeline --preset {preset} > dvc.yaml"
    assert text == pipeline_text(load_settings(PROJECT / "params.yaml", preset), PROJECT), f"write it anew: {command}"
    command = "python -m sparse_control.stages pipeline-corpus > corpus/dvc.yaml"
    assert FILES[1].read_text() == corpus_text(), f"write it anew: {command}"


def test_the_graph_of_the_whole_paper(tmp_path):
    """From the corpus to official ISS; beside it alternatives, nulls, the medium model and six axes; then the tables."""
    root = build_root(tmp_path, subroots=True)
    settings = load_settings(PROJECT / "params.yaml").model_copy(update={"model": MODEL})
    stages = yaml.safe_load(pipeline_text(settings, root))["stages"]
    made = {path: name for name, stage in stages.items() for path in _outs(stage)}
    edges = {(made[path], name) for name, stage in stages.items() for path in stage["deps"] if path in made}
    chain = ["reference", "validate", "freeze", "official_iss", "tables"]
    assert set(zip(chain, chain[1:], strict=False)) <= edges
    assert {(name, "tables") for name in stages if name not in ("tables", "curves")} <= edges
    assert ("reference", "alternatives") in edges
    assert {"null_shuffled_tokens", "null_redrawn_weights", "experiment_b", "six_axis"} <= set(stages)
    for name in chain[:4]:
        assert {"corpus/windows.jsonl", "corpus/corpus.json"} <= set(stages[name]["deps"])


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_are_the_import_closure(name):
    assert _code(STAGES[name]["deps"]) == set(code_closure(*MODULES[name]))


def test_a_folder_stands_for_all_its_python_files_or_is_not_listed():
    listed = code_deps("sparse_control.settings")
    assert listed == sorted(listed) and "sparse_control/settings.py" in listed and "sparse_control" not in listed
    assert _code(listed) == set(code_closure("sparse_control.settings"))


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_on_code_and_data_exist(name):
    made = {path for stage in STAGES.values() for path in _outs(stage)}
    assert [d for d in STAGES[name]["deps"] if d not in made and not (PROJECT / d).exists()] == []


@pytest.mark.parametrize("name", STAGES)
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
    page = (PROJECT / ".dvc" / config["plots"]["html_template"]).read_text()
    assert "{plot_divs}" in page and "{scripts}" not in page and "src=" not in page, "nothing comes from a network"


@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="needs the git checkout")
def test_git_ignores_what_the_store_holds_and_nothing_else():
    paths = [path for stage in STAGES.values() for path in _outs(stage)]
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(command, cwd=PROJECT, input="\n".join(paths), capture_output=True, text=True)
    ignored = set(done.stdout.splitlines())
    assert ignored == {path for path in paths if path.endswith(IN_STORE) or path == "corpus/windows.jsonl"}


def test_curves():
    curves = {"a": {32: 0.5, 64: 0.25}, "b": {64: 1.0}}
    assert curve_text("k", curves) == "k,a,b\n32,0.5,\n64,0.25,1.0\n"


# --- DVC itself -----------------------------------------------------------------------------------------------------


def dvc(folder, *arguments):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # stages call `python`
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)


@pytest.fixture
def workspace(tmp_path):
    """A folder with the project's DVC configuration and no git."""
    shutil.copytree(PROJECT / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    (tmp_path / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    return tmp_path


@pytest.mark.slow
def test_a_stage_that_fails_leaves_its_outputs(workspace):
    stage = {"cmd": "exit 1", "outs": [{"measurements": _outs(STAGES["six_axis"])["measurements"]}]}
    (workspace / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"measure": stage}}))
    (workspace / "measurements").mkdir()
    (workspace / "measurements" / "kept.jsonl").write_text("{}\n")
    done = dvc(workspace, "repro")
    assert done.returncode != 0 and "failed to" in done.stderr
    assert (workspace / "measurements" / "kept.jsonl").read_text() == "{}\n"


@pytest.mark.slow
def test_a_frozen_stage_is_measured_again_when_it_is_told_so(workspace):
    """As `make remeasure STAGE=heavy` does it: DVC only verifies a frozen stage, forced or not."""
    shutil.copy(PROJECT / "Makefile", workspace)
    kept = {"cache": False, "persist": True}
    heavy = {"cmd": "echo ran >> log", "frozen": True, "deps": ["code"], "outs": [{"out": kept}]}
    (workspace / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"heavy": heavy}}))
    for name in ("code", "out"):
        (workspace / name).write_text(name)
    before = (workspace / "dvc.yaml").read_text()
    assert dvc(workspace, "repro", "--force", "heavy").returncode == 0 and not (workspace / "log").exists()
    make = ["make", "-s", "remeasure", "STAGE=heavy", f"DVC={sys.executable} -m dvc"]
    done = subprocess.run(make, cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (workspace / "log").read_text() == "ran\n" and (workspace / "dvc.yaml").read_text() == before
    done = subprocess.run([*make[:3], "STAGE=", make[-1]], cwd=workspace, capture_output=True, text=True)
    assert done.returncode != 0 and "make remeasure STAGE=official_iss" in done.stderr


@pytest.mark.slow
def test_graph_metrics_and_plots_without_git_or_a_network(workspace):
    root = build_root(workspace, subroots=True)
    write_curves(root)
    shutil.copy(PROJECT / "params.yaml", root)
    settings = load_settings(PROJECT / "params.yaml").model_copy(update={"model": MODEL})
    (root / "dvc.yaml").write_text(pipeline_text(settings, root))
    graph = dvc(root, "dag", "--dot")
    assert graph.returncode == 0 and '"official_iss" -> "tables"' in graph.stdout, graph.stderr
    metrics = dvc(root, "metrics", "show")
    assert metrics.returncode == 0 and "ISS.mean" in metrics.stdout, metrics.stderr
    plots = dvc(root, "plots", "show", "--out", "plots")
    page = (root / "plots" / "index.html").read_text()
    assert plots.returncode == 0 and page.count("vegaEmbed('#") == 3 and "cdn" not in page, plots.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="needs the git checkout")
@pytest.mark.parametrize("kind", ["clone", "worktree", "archive"])
def test_a_fresh_copy_pulls_and_reruns_the_light_stages_alone(tmp_path, kind):
    """`dvc pull && dvc repro` leaves git clean in a clone and in a worktree; an archive needs one line before."""
    git = ["git", "-c", "advice.detachedHead=false"]
    clone, copy = tmp_path / "clone", tmp_path / kind
    subprocess.run([*git, "clone", "-q", str(PROJECT), str(clone)], check=True)
    if kind == "worktree":
        subprocess.run([*git, "worktree", "add", "-q", str(copy), "HEAD"], cwd=clone, check=True)
    elif kind == "archive":
        copy.mkdir()
        packed = subprocess.run([*git, "archive", "HEAD"], cwd=clone, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", str(copy)], input=packed.stdout, check=True)
        assert "not a git repository" in dvc(copy, "pull").stderr
        assert dvc(copy, "config", "--local", "core.no_scm", "true").returncode == 0
    pulled = dvc(copy, "pull")
    assert pulled.returncode == 0, pulled.stderr
    done = dvc(copy, "repro")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"Running stage '([^']+)'", done.stdout)
    assert set(ran) <= {"tables", "curves"}
    if kind != "archive":
        status = subprocess.run([*git, "status", "--porcelain"], cwd=copy, capture_output=True, text=True, check=True)
        assert status.stdout == ""
