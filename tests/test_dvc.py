"""The DVC graph against the code and the measurements it is of: dependencies, outputs that cannot be lost, store."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from hashlib import md5
from pathlib import Path

import pytest
import yaml

from sparse_control.code_hash import code_closure
from sparse_control.files import sha256_file
from sparse_control.records.manifest import BINARY, read_manifest
from sparse_control.records.paths import ALTERNATIVES, committed_root
from sparse_control.records.paths import STAGES as OFFICIAL
from sparse_control.records.store import NAME, store_text

PROJECT = Path(__file__).resolve().parents[1]
MEASUREMENTS = committed_root(PROJECT)
CODE = {
    "official_iss": tuple(OFFICIAL.values()),
    "experiment_b": (OFFICIAL["reference"], OFFICIAL["validate"]),
    "nulls": tuple(OFFICIAL.values()),
    "alternatives": (ALTERNATIVES,),
    "six_axis": ("sparse_control.protocol.study",),
    "tables": ("sparse_control.paper",),
    "curves": ("sparse_control.figures.curves",),
    "corpus": ("sparse_control.corpus",),
}
LIGHT = ("corpus", "tables", "curves")  # never frozen


def _stages(file):
    """Stages of a dvc.yaml by name, one for every model of a `foreach`."""
    for name, stage in yaml.safe_load(file.read_text())["stages"].items():
        for key, item in stage.get("foreach", {"": ""}).items():
            text = yaml.safe_dump(stage.get("do", stage)).replace("${key}", key).replace("${item}", item)
            yield f"{name}@{key}".rstrip("@"), yaml.safe_load(text)


STAGES = {name: stage for file in ("dvc.yaml", "corpus/dvc.yaml") for name, stage in _stages(PROJECT / file)}
STORE = {entry["path"]: entry for entry in yaml.safe_load((MEASUREMENTS / NAME).read_text())["outs"]}


def _outs(stage):
    listed = [*stage.get("outs", []), *stage.get("metrics", [])]
    return {path: options for out in listed for path, options in out.items()}


def _study(name):
    return name.partition("@")[0]


def _covers(path, name):
    return name == path or name.startswith(f"{path}/")


# --- what is measured -----------------------------------------------------------------------------------------------


def test_every_measured_file_is_the_output_of_one_stage_or_in_the_store_file():
    outs = [path for stage in STAGES.values() for path in _outs(stage)]
    outs += [f"measurements/{path}" for path in STORE]
    manifest = read_manifest(MEASUREMENTS)
    for name in manifest.measurements:
        assert sum(_covers(out, f"measurements/{name}") for out in outs) == 1, f"no stage or several have {name}"
    for out in outs:
        assert out.endswith(BINARY) or out == "corpus/windows.jsonl" or (PROJECT / out).exists(), out


def test_the_store_holds_the_estimators_that_were_measured():
    assert yaml.safe_load(store_text(MEASUREMENTS))["outs"] == list(STORE.values()), "type: make record"
    manifest = read_manifest(MEASUREMENTS)
    for path, entry in STORE.items():
        if entry.get("cache", True):
            blob = PROJECT / ".dvc/store/files/md5" / entry["md5"][:2] / entry["md5"][2:]
            assert sha256_file(blob) == manifest.binaries[path], path
        else:
            assert md5((MEASUREMENTS / path).read_bytes()).hexdigest() == entry["md5"], path


@pytest.mark.parametrize("name", STAGES)
def test_no_output_can_be_lost(name):
    stage = STAGES[name]
    assert stage.get("frozen", False) == (_study(name) not in LIGHT)
    assert all(options == {"cache": False, "persist": True} for options in _outs(stage).values())


def test_tables_and_curves_follow_from_every_study():
    made = {path: name for name, stage in STAGES.items() for path in _outs(stage)}
    edges = {
        (made[out], name)
        for name, stage in STAGES.items()
        for path in stage["deps"]
        for out in made
        if _covers(out, path) or _covers(path, out)
    }
    measuring = {name for name in STAGES if _study(name) not in LIGHT}
    assert {(name, "tables") for name in measuring} <= edges
    assert {name for name, later in edges if later == "curves"} >= {"official_iss@smollm2-135m-instruct"}
    assert ("official_iss@smollm2-135m-instruct", "alternatives@smollm2-135m-instruct") in edges


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables", "curves"])
def test_what_a_light_stage_reads_is_a_dependency(name, tmp_path):
    """Run without its writes, while every file it opens is noted."""
    script = (
        "import shlex, sys, runpy; opened = []; sys.addaudithook(lambda event, given: event == 'open' and "
        "opened.append(str(given[0])));\nimport sparse_control.files as files\n"
        "files.os.replace = lambda source, target: files.os.unlink(source)\n"
        "sys.argv = shlex.split(sys.argv[1])[2:]\n"
        "try: runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('\\n'.join(opened))"
    )
    stage = STAGES[name]
    command = [sys.executable, "-c", script, stage["cmd"]]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    inside = {
        Path(os.path.normpath(PROJECT / line)).relative_to(PROJECT).as_posix()
        for line in done.stdout.splitlines()
        if os.path.normpath(PROJECT / line).startswith((f"{MEASUREMENTS}/", f"{PROJECT / 'paper'}/"))
    }
    covered = [*stage["deps"], *_outs(stage), "measurements/.lock"]
    if "measurements/MANIFEST.json" in covered:  # has the hash of every measured file
        covered += [f"measurements/{path}" for path in read_manifest(MEASUREMENTS).measurements]
    read = sorted(path for path in inside if (PROJECT / path).is_file())
    assert read and [path for path in read if not any(_covers(known, path) for known in covered)] == []


# --- what it is measured by -----------------------------------------------------------------------------------------


def _code(dependencies):
    """The Python files among dependencies, those of listed folders too."""
    paths = [PROJECT / dependency for dependency in dependencies]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return {file for file in files if file.suffix == ".py" and "__pycache__" not in file.parts}


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_cover_the_import_closure(name):
    closure = set(code_closure(*CODE[_study(name)]))
    missing = sorted(path.relative_to(PROJECT).as_posix() for path in closure - _code(STAGES[name]["deps"]))
    assert missing == []
    code = [path for path in STAGES[name]["deps"] if path.startswith("sparse_control/") and _code([path])]
    assert [path for path in code if not _code([path]) & closure] == [], "nothing of these is imported"


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_exist(name):
    assert [path for path in STAGES[name]["deps"] if not (PROJECT / path).exists()] == []


def test_parameters_are_keys_of_params_yaml():
    content = yaml.safe_load((PROJECT / "params.yaml").read_text())
    for stage in STAGES.values():
        for key in stage.get("params", []):
            value = content
            for part in key.split("."):
                assert part in value, key
                value = value[part]


def test_every_curve_is_drawn():
    drawn = {}
    for plot in yaml.safe_load((PROJECT / "dvc.yaml").read_text())["plots"]:
        for options in plot.values():
            drawn |= {file: [options["x"], *columns] for file, columns in options["y"].items()}
    files = {path.relative_to(PROJECT).as_posix(): path for path in (PROJECT / "paper/curves").rglob("*.csv")}
    assert drawn == {name: path.read_text().partition("\n")[0].split(",") for name, path in files.items()}


# --- what git and the configuration say -----------------------------------------------------------------------------


def test_the_configuration_is_offline_and_inside_the_project():
    config = configparser.ConfigParser()
    config.read(PROJECT / ".dvc" / "config")
    assert config["core"]["analytics"] == "false" and config["core"]["autostage"] == "false"
    assert config["core"]["remote"] == "store"
    assert config["'remote \"store\"'"]["url"] == "store"
    assert not [line for line in (PROJECT / ".dvcignore").read_text().splitlines() if line.startswith("!")]
    page = (PROJECT / ".dvc" / config["plots"]["html_template"]).read_text()
    assert "{plot_divs}" in page and "{scripts}" not in page and "src=" not in page, "nothing comes from a network"


@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="needs the git checkout")
def test_git_ignores_what_the_store_holds_and_nothing_else():
    paths = [path for stage in STAGES.values() for path in _outs(stage)] + [f"measurements/{path}" for path in STORE]
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(command, cwd=PROJECT, input="\n".join(paths), capture_output=True, text=True)
    ignored = set(done.stdout.splitlines())
    assert ignored == {path for path in paths if path.endswith(BINARY) or path == "corpus/windows.jsonl"}


# --- DVC itself -----------------------------------------------------------------------------------------------------


def dvc(folder, *arguments):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # stages call `python`
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def workspace(tmp_path):
    """A folder with the project's DVC configuration, no store and no git."""
    (tmp_path / ".dvc").mkdir()
    shutil.copy(PROJECT / ".dvc" / "config", tmp_path / ".dvc")
    (tmp_path / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n")
    return tmp_path


KEPT = {"cache": False, "persist": True}


@pytest.mark.slow
def test_a_stage_that_fails_leaves_its_outputs(workspace):
    stage = {"cmd": "exit 1", "outs": [{"measured": KEPT}]}
    (workspace / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"measure": stage}}))
    (workspace / "measured").mkdir()
    (workspace / "measured" / "kept.jsonl").write_text("{}\n")
    done = dvc(workspace, "repro")
    assert done.returncode != 0 and "failed to" in done.stderr
    assert (workspace / "measured" / "kept.jsonl").read_text() == "{}\n"


@pytest.mark.slow
def test_a_frozen_stage_is_measured_again_when_it_is_told_so(workspace):
    """As `make remeasure STAGE=heavy@model` does it: DVC only verifies a frozen stage, forced or not."""
    shutil.copy(PROJECT / "Makefile", workspace)
    heavy = {"cmd": "echo ran >> log", "frozen": True, "deps": ["code"], "outs": [{"${key}": KEPT}]}
    stages = {"heavy": {"foreach": {"model": "smoke", "other": "paper"}, "do": heavy}}
    (workspace / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    for name in ("code", "model", "other"):
        (workspace / name).write_text(name)
    before = (workspace / "dvc.yaml").read_text()
    assert dvc(workspace, "repro", "--force", "heavy@model").returncode == 0 and not (workspace / "log").exists()
    make = ["make", "-s", "remeasure", "STAGE=heavy@model", f"DVC={sys.executable} -m dvc"]
    done = subprocess.run(make, cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (workspace / "log").read_text() == "ran\n" and (workspace / "dvc.yaml").read_text() == before
    done = subprocess.run([*make[:3], "STAGE=", make[-1]], cwd=workspace, capture_output=True, text=True)
    assert done.returncode != 0 and "make remeasure STAGE=official_iss@" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="needs the git checkout")
def test_a_fresh_clone_pulls_and_reproduces_without_a_change(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(PROJECT), str(clone)], check=True)
    for command in ("pull", "repro"):
        done = dvc(clone, command)
        assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"Running stage '([^']+)'", done.stdout)
    assert set(ran) <= {"tables", "curves"}
    status = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""
    assert all((clone / "measurements" / path).is_file() for path in STORE)


@pytest.mark.slow
@pytest.mark.skipif(not (PROJECT / ".git").exists() or not shutil.which("git"), reason="packs the git checkout")
def test_graph_metrics_and_plots_without_git_or_a_network(tmp_path):
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=PROJECT, capture_output=True, check=True)
    subprocess.run(["tar", "x", "-C", str(tmp_path)], input=packed.stdout, check=True)
    assert "not a git repository" in dvc(tmp_path, "pull").stderr
    assert dvc(tmp_path, "config", "--local", "core.no_scm", "true").returncode == 0
    for command in ("pull", "repro"):
        done = dvc(tmp_path, command)
        assert done.returncode == 0, done.stdout + done.stderr
    graph = dvc(tmp_path, "dag", "--dot")
    assert graph.returncode == 0 and '"official_iss@smollm2-135m-instruct" -> "tables"' in graph.stdout, graph.stderr
    metrics = dvc(tmp_path, "metrics", "show")
    assert metrics.returncode == 0 and len(metrics.stdout.splitlines()) > 1, metrics.stderr
    plots = dvc(tmp_path, "plots", "show", "--out", "plots")
    page = (tmp_path / "plots" / "index.html").read_text()
    drawn = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["plots"]
    assert plots.returncode == 0 and page.count("vegaEmbed('#") == len(drawn) and "cdn" not in page, plots.stderr
