"""The command line: exit codes, one-line errors, what stays unloaded, and files it must not touch."""

import errno
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from sparse_control import cli, notes
from sparse_control.commands import doctor, entry, extras, measure
from sparse_control.errors import InputError
from sparse_control.protocol.panels import PanelSources
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import load_settings
from tests.support.measured_root import build_root
from tests.support.tiny import save_tiny

PROJECT = Path(__file__).parent.parent
EXAMPLE = PROJECT / "examples" / "score_example.json"
INTERVENTION = PROJECT / "examples" / "intervention_example.json"
PAIRS = PROJECT / "examples" / "pairs_example.jsonl"
HEAVY = ("torch", "prefect", "dvc", "transformers", "sklearn", "git")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build_root(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def run(capsys):
    """Run in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def shell(*arguments, cwd=PROJECT, env=None):
    return subprocess.run(
        [sys.executable, "-m", "sparse_control", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=env
    )


def refused(result, *words):
    """Exit 2, nothing on stdout, one line on stderr that holds the words."""
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [
        ["reproduce"], ["verify"], ["show"], ["show", "iss"], ["show", "protocol"], ["show", "reuse"],
        ["show", "provenance", "paper/tables/reuse.csv"], ["show", "sites", "--help"], ["show", "--help"],
        ["score", str(EXAMPLE)], ["--help"], ["doctor"],
        ["run", "--help"], ["run", "six-axis", "--help"], ["run", "generate", "--help"],
    ],
)  # fmt: skip
def test_nothing_heavy_is_loaded(built, tmp_path, arguments):
    reading = arguments[0] in ("reproduce", "verify", "show") and "--help" not in arguments
    options = ["--root", str(built)] if reading else []
    options += ["--out", str(tmp_path)] if arguments == ["reproduce"] else []
    program = (
        "import sys; from sparse_control.cli import main; code = main(sys.argv[1:]);"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, *options], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"


def test_verify_exit_codes(run, built, tmp_path):
    code, out, err = run("verify", "--root", built)
    assert code == 0 and err == ""
    assert out.splitlines()[-1].startswith("verify: ") and out.endswith(" checks, 0 failed\n")
    *checks, counts, _ = out.splitlines()
    told = [line[:4].strip() for line in checks]
    assert set(told) <= {"skip", "warn"}
    assert counts.startswith(f"{told.count('warn')} warnings, {told.count('skip')} skipped; -v ")
    verbose = run("verify", "--root", built, "-v")[1].splitlines()
    assert verbose[-1] == out.splitlines()[-1] and any(line.startswith("ok ") for line in verbose)

    broken = shutil.copytree(built, tmp_path / "broken")
    (broken / "paper/tables/reuse.csv").write_text("x\n")
    code, out, _ = run("verify", "--root", broken)
    assert code == 1 and out.splitlines()[-1].endswith(" checks, 2 failed")
    assert sum(line.startswith("FAIL") and "reuse.csv" in line for line in out.splitlines()) == 2

    code, out, _ = run("verify", "--root", broken, "--json")
    report = json.loads(out)
    assert code == 1 and report["failed"] == 2
    assert report["checks"] == sum(entry["status"] in ("ok", "FAIL") for entry in report["results"])

    refused(run("verify", "--root", tmp_path / "missing"), "missing")


def test_reproduce(run, built, tmp_path):
    root = shutil.copytree(built, tmp_path / "root")
    shutil.rmtree(root / "paper")
    code, out, err = run("reproduce", "--root", root)
    assert code == 0 and err == "" and str(root / "paper" / "tables") in out
    assert run("verify", "--root", root)[0] == 0
    for path in filter(Path.is_file, (built / "paper").rglob("*")):
        if path.name != "MANIFEST.json":  # this one has pictures as well
            assert (root / path.relative_to(built)).read_bytes() == path.read_bytes()


def test_reproduce_warns_of_changed_measurements(run, built, tmp_path):
    root = shutil.copytree(built, tmp_path / "root")
    path = ModelPaths(root, "toy-model").six_axis("ioi", "coverage_driver", "P")
    path.write_text(path.read_text().replace('"gain": 0.2', '"gain": 0.3'))
    code, out, err = run("reproduce", "--root", root)
    assert code == 0 and err.startswith("warning: 1 measurements differ") and path.name in err
    assert run("verify", "--root", root)[0] == 1


def test_reproduce_names_the_broken_line(run, built, tmp_path):
    root = shutil.copytree(built, tmp_path / "root")
    path = ModelPaths(root, "toy-model").six_axis("ioi", "coverage_driver", "P")
    path.write_text(path.read_text() + "{\n")
    refused(run("reproduce", "--root", root), f"{path}:4: ")


def test_show(run, built):
    assert "summary: " in run("show", "--root", built)[1]
    assert "rank_curve: " in run("show", "iss", "--root", built)[1]
    protocol = run("show", "protocol", "--root", built)[1]
    assert "reuse: " in protocol and "rank_curve" not in protocol
    assert run("show", "--root", built, "reuse") == run("show", "reuse", "--root", built)
    assert "not supported by this model" in run("show", "dose_response", "--root", built)[1]
    refused(run("show", "nothing", "--root", built), "'nothing'", "reachability")
    refused(run("show", "--root", built / "paper"), "no measurements")


def test_show_protocol_says_what_it_is(run, built, tmp_path):
    model = tmp_path / "own"
    model.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4}
    (model / "config.json").write_text(json.dumps(config))
    code, out, _ = run("show", "protocol", "--preset", "paper", "--model", model, "--plan")
    assert code == 0 and "reuse: " not in out
    for line in ("05 preservation", "driver_omp ", "Pairs per seed: 24 to fit"):
        assert any(found.startswith(line) for found in out.splitlines())
    assert "L00.head.0@-1 .. L04.head.3@-1  20     16 " in out and "L00.mlp@-1 .. L04.mlp@-1        5      64 " in out
    whole = run("show", "protocol", "--root", built)[1]
    assert whole.index("05 preservation") < whole.index("reuse: ")
    refused(run("show", "protocol", "--root", tmp_path), "no measurements")
    refused(run("show", "protocol", "--preset", "huge"), "no preset 'huge'")


def test_show_provenance(run, built, tmp_path):
    code, out, err = run("show", "provenance", "paper/tables/reuse.csv", "--root", built)
    assert code == 0 and err == "" and "toy-model/six_axis/ioi.coverage_driver.P.jsonl" in out
    assert run("show", "--root", built, "provenance", built / "paper/tables/reuse.csv")[0] == 0
    refused(run("show", "provenance", "absent.csv", "--root", built), "absent.csv: no such file")
    (tmp_path / "other.csv").write_text("x")
    refused(run("show", "provenance", tmp_path / "other.csv", "--root", built), "is not below")


def test_show_sites(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "odd", "text_config": {
            "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
            "head_dim": 32,
        },
    }))  # fmt: skip
    code, out, _ = run("show", "sites", tmp_path)
    assert code == 0 and out.splitlines()[0].endswith("odd, 2 layers of width 96, 6 heads")
    assert "L00.head.0@-1 .. L01.head.5@-1  12     32 " in out and "L00.resid@-1 .. L01.resid@-1    2      96 " in out
    for content in ({"hidden_size": 96}, {"n_head": True}, []):
        (tmp_path / "config.json").write_text(json.dumps(content))
        refused(run("show", "sites", tmp_path), "config.json")
    refused(run("show", "sites", "smollm3"), "'smollm3'", "known names")
    refused(run("show", "sites", "absent.gguf"), "no such file")
    (tmp_path / "broken.gguf").write_text("GGUF")
    refused(run("show", "sites", tmp_path / "broken.gguf"), "broken.gguf: not a whole GGUF file")


def test_score_example(run):
    code, out, err = run("score", EXAMPLE)
    assert code == 0 and err == "" and "not measured" not in out
    code, out, _ = run("score", EXAMPLE, "--json")
    axes = json.loads(out)["axes"]
    assert list(axes) == ["reachability", "signed_reversal", "dose_response", "feedback", "preservation", "reuse"]
    assert axes["reachability"]["passes_0.40"] == 2 and axes["feedback"]["hits"] == 2


def test_score_without_readouts_says_not_measured(run, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"schema": "score/1", "seeds": [{"seed": 0, "kl": [0.0]}]}))
    code, out, _ = run("score", path)
    assert code == 0 and out.count("not measured") == 5
    axes = json.loads(run("score", path, "--json")[1])["axes"]
    assert axes["reuse"] == {"n_seeds": 0} and axes["preservation"]["seed_mean_passes"] == 1


def test_score_says_what_an_axis_needs(run, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"schema": "score/1", "seeds": [{"seed": 0, "kl": [0.0]}]}))
    lines = dict(line.split(None, 1) for line in run("score", path)[1].splitlines()[2:])
    assert lines["signed_reversal"].split("  ")[-1] == "needs source, target and reversed"
    assert "needs" not in lines["preservation"]


def test_score_takes_json_lines(run, tmp_path):
    """A line per seed gives what one JSON value gives; an error names its line."""
    content = json.loads(EXAMPLE.read_text())
    rows = [{name: value for name, value in content.items() if name != "seeds"}, *content["seeds"]]
    path = tmp_path / "readouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("score", path, "--json") == run("score", EXAMPLE, "--json")
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    refused(run("score", path), f"{path}:2: not valid JSON (the line is blank; remove it)")
    rows[2]["kl"] = ["0.1"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(run("score", path), f"{path}:3: kl.0: ", "got '0.1'")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    refused(run("score", path), f"{path}:1: expected schema, name and tolerance")
    path.write_text("")
    refused(run("score", path), f"{path}:1: expected schema, name and tolerance")


def test_score_as_latex_and_as_a_page(run):
    tex = run("score", EXAMPLE, "--tex")[1]
    assert tex.startswith("\\begin{longtable}") and "reachability & \\ensuremath" in tex
    page = run("score", EXAMPLE, "--html")[1]
    assert page.startswith("<!doctype html>") and "<td" in page and "score.csv" not in page


def test_score_gives_its_schema_and_an_example(run, tmp_path):
    schema = json.loads(run("score", "--schema")[1])
    assert set(schema["properties"]) == {"schema", "name", "tolerance", "seeds"}
    path = tmp_path / "mine.json"
    path.write_text(run("score", "--example")[1])
    assert run("score", path) == run("score", EXAMPLE)
    refused(run("score"), "FILE: is missing; `score --example`")


SEED = {"seed": 0, "source": [0.0, 0.0], "target": [1.0, 2.0], "patched": [1.0, 1.0]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"patched": [1.0]}, ["seeds.0", "patched", "(2)"]),
        ({"patched": ["1", "2"]}, ["seeds.0.patched.0", "'1'"]),
        ({"source": None}, ["patched needs source"]),
        ({"doses": [0.0, 1.0]}, ["doses must come with"]),
        ({"doses": [0.0, 1.0], "progress": [0.0]}, ["progress must have"]),
        ({"doses": [0.0], "patched_by_dose": [[0.0]]}, ["patched_by_dose[0]"]),
        ({"feedback": [{"target": 1.0, "initial_margin": 0.0, "terminal_margin": 1.0}]}, ["tolerance must be given"]),
        ({"kl": [-0.5]}, ["kl_values[0]", "-0.5"]),
        ({"kl": [1e308, 1e308]}, ["kl: "]),
        ({"reuse": {"source": [1.0], "target": [1.0, 2.0]}}, ["seeds.0.reuse", "target"]),
        ({"source": [-1e308, -1e308], "target": [1e308, 1e308]}, ["target and source are too far apart"]),
        ({"extra": 1}, ["seeds.0.extra: is no field here, got 1"]),
        ({"seed": 10**4000}, ["seeds.0.seed: "]),
        ({"seed": "LONG"}, ["not valid JSON (Exceeds the limit"]),
    ],
)
def test_score_refuses_by_name(run, tmp_path, change, words):
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"schema": "score/1", "seeds": [SEED | change]}).replace('"LONG"', "9" * 5000))
    refused(run("score", path), str(path), *words)


def test_errors_whose_mean_is_beyond_float64_are_refused(run, tmp_path):
    ends = [{"target": 1e308, "initial_margin": 0.0, "terminal_margin": 0.0}] * 2
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"schema": "score/1", "tolerance": 0.1, "seeds": [{"seed": 0, "feedback": ends}]}))
    refused(run("score", path), f"{path}: feedback: its readouts have a sum beyond float64")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"schema": "score/1", "seeds": []}', '{"schema": "score/1", "seeds": NaN}',
        '{"schema": "score/1", "seeds": [{"seed": 0, "seed": 1, "kl": [0.0]}]}',
    ],
)  # fmt: skip
def test_score_refuses_what_is_no_score_file(run, tmp_path, text):
    path = tmp_path / "some.json"
    path.write_text(text)
    refused(run("score", path), str(path))
    assert "git" not in run("score", path)[2]
    for path in (tmp_path / "absent.json", tmp_path):
        result = run("score", path)
        refused(result, f"error: {path}: cannot be read")
        assert "JSON" not in result[2]


@pytest.mark.parametrize("name", ["smollm2-135m", "no/such/folder", "absent.gguf"])
def test_an_unknown_model_is_refused_before_the_run(run, tmp_path, name):
    for flow in ("official-iss", "six-axis"):
        refused(run("run", flow, "--model", name, "--root", tmp_path), name)
    assert list(tmp_path.iterdir()) == []


def test_a_root_without_measurements_names_where_some_are(run, monkeypatch, built, tmp_path):
    monkeypatch.setattr("sparse_control.records.manifest.project_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in ("verify", "show", "reproduce"):
        refused(run(command, "--root", tmp_path), "git checkout -- measurements", "--root runs/smoke")
    shutil.copytree(built, tmp_path / "runs" / "own")
    for command in ("verify", "show", "reproduce"):
        refused(run(command, "--root", tmp_path), "there are some in runs/own: add --root runs/own")


@pytest.mark.parametrize("arguments", [["nothing"], ["score"], ["verify", "--nope"], ["run"], ["run", "nope"]])
def test_wrong_calls_are_two(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2 and "Traceback" not in err


def test_version_and_help(run):
    assert run("--version")[:2] == (0, "sparse-control, version 0.1.0\n")
    assert run("--help")[0] == 0


def without(module, program, *arguments):
    """Run a program where a package cannot be imported."""
    absent = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Absent(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {module!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", absent + program, *arguments], capture_output=True, text=True, cwd=PROJECT
    )


@pytest.mark.parametrize(
    "module, command, extra",
    [
        ("prefect", ["run", "official-iss"], "[flow]"),
        ("prefect", ["run", "six-axis"], "[flow]"),
        ("prefect", ["run", "experiment-a"], "[flow]"),
        ("torch", ["corpus", "build"], "[measure]"),
        ("torch", ["run", "six-axis", "--dry-run"], "[measure]"),
        ("torch", ["run", "generate", "--prompt", "x", "--intervention", str(INTERVENTION)], "[measure]"),
    ],
)
def test_a_missing_extra_is_one_line(module, command, extra):
    done = without(module, "from sparse_control.cli import main; sys.exit(main(sys.argv[1:]))", *command)
    refused(
        (done.returncode, done.stdout, done.stderr), f"{module} is not installed; run: python -m pip install", extra
    )


def test_models_are_known_without_torch():
    done = without("torch", "from sparse_control.cli import main; sys.exit(main(['models', 'list']))")
    assert done.returncode == 0 and "smollm2-135m-instruct" in done.stdout
    program = (
        "try:\n    from sparse_control.models import load_model\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    assert without("torch", program).stdout.startswith("torch is not installed; run: python -m pip install")


@pytest.fixture
def given_flow(monkeypatch):
    """Put a function in place of every flow, of what checks its parameters, which it is given, and of what runs it."""

    def put(flow):
        class Module:
            run_as_flow = staticmethod(lambda name, function, parameters: function(**parameters))
            checked_run = staticmethod(lambda name, **parameters: parameters)

            def __getattr__(self, name):
                return flow

        monkeypatch.setattr(measure, "import_module", lambda name: Module())

    return put


@pytest.mark.parametrize(
    "raised, code, message",
    [
        (InputError("params.yaml: model: wrong"), 2, "error: params.yaml: model: wrong\n"),
        (RuntimeError("out of\nmemory"), 1, "error: RuntimeError: out of memory\n"),
        (KeyboardInterrupt(), 130, "\nerror: interrupted\n"),
    ],
)
def test_a_failing_run(run, given_flow, raised, code, message):
    def flow(**arguments):
        raise raised

    given_flow(flow)
    assert run("run", "official-iss") == (code, "", message)


@pytest.mark.parametrize("command", ["official-iss", "six-axis"])
def test_wrong_parameters_start_no_server(run, monkeypatch, tmp_path, command):
    in_process = pytest.importorskip("flows.in_process")
    for name in ("run_in_process", "run_as_flow"):
        monkeypatch.setattr(in_process, name, lambda *_: pytest.fail("started"))
    (tmp_path / "file").write_text("")
    where = ["--model", "owner/model"]
    refused(run("run", command, *where, "--root", tmp_path / "root", "--dask", "nowhere"), "dask nowhere: is not the")
    refused(run("run", command, *where, "--root", tmp_path / "file" / "below"), "cannot be made")
    for wrong in ("0", "-1", "two", "1.5", "100000"):
        refused(run("run", command, *where, "--workers", wrong), f"workers {wrong}: must be a whole number from 1 to")
    if command == "official-iss":
        refused(run("run", command, *where, "--accept-code", " "), "accept_code: is empty; say why")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


EXPERIMENTS = ("experiment-a", "experiment-b", "experiment-c", "experiment-d")
FLOWS = ("official-iss", *EXPERIMENTS, "nulls", "alternatives", "six-axis")


@pytest.mark.parametrize("command", FLOWS)
def test_a_run_hands_its_options_on(run, given_flow, tmp_path, command):
    seen = {}

    def flow(run, **more):
        seen.update(run | more)
        steps = [{"step": "A", "skipped": True, "files": {"x": "y"}}, {"step": "B", "skipped": False, "files": {}}]
        return {"flow": command, "model": "m", "preset": "paper", "root": "r", "steps": steps}

    given_flow(flow)
    options = ["--preset", "paper", "--model", "m", "--root", tmp_path]
    code, out, _ = run("run", command, *options)
    expected = {"preset": "paper", "model": "m", "root": str(tmp_path), "workers": "1", "dask": None, "wait": False}
    facts = {"facts", "prompts", "replace"}
    more = {"narrowed", "sources", "replace", "given"} if command == "six-axis" else {"accept_code", *facts}
    assert code == 0 and {name: value for name, value in seen.items() if name not in more} == expected
    assert out.splitlines() == ["A: unchanged, 1 files", "B: measured, 0 files", f"{command}: m at preset paper in r"]

    assert run("run", command, *options, "--dask", "host:1", "--workers", "auto", "--wait")[0] == 0
    assert (seen["dask"], seen["workers"], seen["wait"]) == ("host:1", "auto", True)
    if command != "six-axis":
        assert (seen["facts"], seen["prompts"], seen["replace"]) == (None, None, False)
        assert run("run", command, *options, "--facts", EXAMPLE, "--prompts", EXAMPLE)[0] == 0
        assert (seen["facts"], seen["prompts"]) == (str(EXAMPLE), str(EXAMPLE))
        assert (run("run", command, *options, "--replace")[0] == 0) is (command == "official-iss")
    accepted = run("run", command, *options, "--accept-code", "a comment was mended")
    if command in ("official-iss", "experiment-d"):
        assert accepted[0] == 0 and seen["accept_code"] == "a comment was mended"
    else:
        assert accepted[0] == 2 and "No such option" in accepted[2]


def test_six_axis_hands_on_what_is_asked_for(run, given_flow, tmp_path):
    seen = {}

    def flow(run, **more):
        seen.update(run | more)
        return {"flow": "six-axis", "model": "m", "preset": "smoke", "root": "r", "steps": []}

    given_flow(flow)
    (tmp_path / "xstest.csv").write_text("")
    options = ["--task", "ioi", "--task", "refusal", "--selector", "top_k", "--condition", "F", "--seed", 0]
    options += ["--seed", 5]
    files = ["--mmlu", tmp_path, "--xstest", tmp_path / "xstest.csv", "--wait", "--replace"]
    assert run("run", "six-axis", "--root", tmp_path, *options, *files)[0] == 0
    asked = seen.pop("narrowed")(load_settings(PROJECT / "params.yaml")).protocol
    assert (asked.tasks, asked.selectors, asked.conditions) == (["ioi", "refusal"], ["top_k"], ["F"])
    assert asked.seeds_of("ioi") == [0, 5]
    assert seen == {
        "preset": "smoke", "model": None, "root": str(tmp_path), "workers": "1", "dask": None, "wait": True,
        "sources": PanelSources(tmp_path, tmp_path / "xstest.csv"), "replace": True, "given": (),
    }  # fmt: skip

    own = ["--intervention", INTERVENTION, "--strength", "fit"]
    assert run("run", "six-axis", "--root", tmp_path, "--task", "ioi", *own)[0] == 0
    (given,) = seen["given"]
    assert (given.path, given.layer, given.row, given.strength) == (INTERVENTION, None, None, None)
    asked = seen.pop("narrowed")(load_settings(PROJECT / "params.yaml")).protocol
    assert asked.selectors == list(given.names) and asked.conditions == ["F", "O"]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--task", "mmlu"], ["task must be one of ioi, ioi_same_panel, sentiment", "'mmlu'"]),
        (["--selector", "driver"], ["selector must be one of driver_omp", "'driver'"]),
        (["--layer", "3"], ["--layer: says how --intervention FILE is read"]),
        (["--strength", "fit"], ["--strength: says how --intervention FILE is read"]),
        (["--intervention", str(INTERVENTION), "--strength", "much"], ["'much' is no number; give one, or fit"]),
        (["--intervention", str(INTERVENTION), "--strength", "nan"], ["strength must be a number other than 0"]),
        (["--intervention", "absent.npz"], ["absent.npz: no such file"]),
        (["--intervention", str(INTERVENTION), "--condition", "P"], ["vectors of its own", "use F or O"]),
        (["--condition", "p"], ["condition must be one of P, F, O, got 'p'"]),
        (["--seed", "-1"], ["seed must be a whole number from 0 on, got -1"]),
        (["--seed", "1.5"], ["'1.5' is not a valid integer"]),
        (["--seed", "3", "--seed", "3"], ["seed 3 is given twice"]),
        (["--mmlu", "absent"], ["--mmlu", "'absent' does not exist"]),
        (["--xstest", "absent.csv"], ["--xstest", "'absent.csv' does not exist"]),
        (["--mmlu", ""], ["is empty; name a folder"]),
        (["--mmlu", str(EXAMPLE)], ["is a file"]),
        (["--xstest", str(PROJECT)], ["is a directory"]),
        (["--name", "mine"], ["--name: says how --pairs FILE is read"]),
        (["--last-token-only"], ["--last-token-only: says how --pairs FILE is read"]),
        (["--pairs", "absent.jsonl"], ["--pairs", "'absent.jsonl' does not exist"]),
        (["--pairs", str(EXAMPLE)], ["score_example.json: negative: the field is missing"]),
        (["--pairs", str(PAIRS), "--name", "ioi"], ["ioi is a name of the project's own"]),
        (["--off-target", str(EXAMPLE)], ["off-target prompts are read from .txt"]),
        (["--preset", "huge"], ["no preset 'huge'"]),
        (["--model", "smollm9"], ["'smollm9'"]),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_six_axis_refuses_before_anything_is_loaded(run, monkeypatch, tmp_path, options, words, dry):
    if in_process := importlib.util.find_spec("prefect") and importlib.import_module("flows.in_process"):
        monkeypatch.setattr(in_process, "run_as_flow", None)
    monkeypatch.setattr("sparse_control.commands.dry_run.plan_lines", None)
    code, out, err = run("run", "six-axis", "--root", tmp_path, *options, *dry)
    assert code == 2 and out == "" and all(word in err for word in words)
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    @click.command()
    def broken():
        raise KeyError("a fault of ours")

    monkeypatch.setattr(cli, "cli", broken)
    with pytest.raises(KeyError):
        cli.main([])


def test_models_list_and_unknown_model(run):
    code, out, _ = run("models", "list")
    assert code == 0 and "smollm2-135m-instruct" in out
    refused(run("models", "fetch", "smollm2"), "smollm2")


def test_doctor_tells_the_mend(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "_version", lambda package: None if package in ("torch", "numpy") else "1.0")
    code, out, _ = run("doctor")
    assert code == 1
    assert "missing  torch: python -m pip install -c constraints.txt -e '.[measure]' (needed for run)" in out
    assert "missing  numpy: python -m pip install -c constraints.txt -e . (needed for reproduce, verify" in out
    fetch = "python -m sparse_control models fetch"
    assert f"missing  model smollm2-135m-instruct: {fetch} smollm2-135m-instruct (needed for run)" in out
    assert f"optional model qwen2.5-coder-0.5b-instruct: {fetch} qwen2.5-coder-0.5b-instruct\n" in out
    assert "optional corpus: a run builds it" in out
    assert "reproduce, verify, show, score: not ready, needs numpy\n" in out
    assert out.endswith("run: not ready, needs numpy, torch, model smollm2-135m-instruct\n")


def test_doctor_without_what_is_optional_is_content(run, monkeypatch):
    """The exit code is about what is needed alone."""
    monkeypatch.setattr(doctor, "_version", lambda package: None if package in ("matplotlib", "dvc") else "1.0")
    monkeypatch.setattr(doctor, "_models", lambda: iter(()))
    code, out, _ = run("doctor")
    assert code == 0 and "optional matplotlib: " in out and "missing" not in out
    assert out.endswith("reproduce, verify, show, score: ready\nrun: ready\n")
    found = json.loads(run("doctor", "--json")[1])
    assert found["ready"] == {"reproduce, verify, show, score": True, "run": True}
    assert {"state": "optional", "subject": "dvc", "needed_for": ""}.items() <= next(
        one for one in found["findings"] if one["subject"] == "dvc"
    ).items()


def test_the_extras_are_those_of_the_project():
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    for extra, packages in {"": extras.BASE, **extras.EXTRAS}.items():
        wanted = declared["optional-dependencies"][extra] if extra else declared["dependencies"]
        assert [re.split(r"[<>=]", name)[0] for name in wanted] == list(packages)


def test_a_closed_pipe_is_quiet(built):
    done = subprocess.run(
        f"{sys.executable} -m sparse_control show protocol --root {built} | head -c 10; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, cwd=PROJECT,
    )  # fmt: skip
    assert done.stderr == "" and done.returncode in (0, entry.BROKEN_PIPE)


def test_output_that_cannot_encode_is_no_crash(built):
    done = shell("show", "--root", built, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.slow
def test_an_unpacked_archive_with_a_read_only_home(built, tmp_path):
    """No git, no write access to the home or to the checkout's own folder, another current folder."""
    checkout, home = tmp_path / "unpacked", tmp_path / "home"
    home.mkdir()
    shutil.copytree(
        PROJECT / "sparse_control", checkout / "sparse_control", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("params.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / name, checkout / name)
    shutil.copytree(PROJECT / "paper" / "templates", checkout / "paper" / "templates")
    shutil.copy(PROJECT / "paper" / "published.yaml", checkout / "paper")
    (checkout / "paper" / "main.tex").write_text("")
    (checkout / "paper" / "claims.yaml").write_text("{model: toy-model, claims: []}")
    shutil.copytree(built, checkout / "measurements", ignore=shutil.ignore_patterns("paper"))
    shutil.copytree(built / "paper", checkout / "paper", dirs_exist_ok=True)
    home.chmod(0o500)
    env = {"PATH": "/nonexistent", "HOME": str(home), "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for arguments in (["reproduce"], ["verify"], ["show"]):
            done = shell(*arguments, cwd=tmp_path, env=env)
            assert (done.returncode, done.stderr) == (0, ""), arguments
    finally:
        home.chmod(0o700)


@pytest.mark.parametrize(
    "arguments", [["reproduce", "--out", ""], ["verify", "--root", ""], ["run", "six-axis", "--root", ""]]
)
def test_an_empty_folder_is_not_the_current_one(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sparse_control", *arguments], capture_output=True, text=True, cwd=PROJECT
    )
    assert done.returncode == 2 and "is empty; name a folder" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "sites"], ["run", "official-iss", "--model"], ["run", "six-axis", "--root"],
        ["corpus", "build", "--model"], ["show", "provenance"], ["lens", "show"], ["score"], ["reproduce", "--root"],
        ["verify", "--root"], ["show", "--root"],
        ["run", "generate", "--prompt", "a", "--intervention", str(INTERVENTION), "--model"],
    ],
)  # fmt: skip
def test_a_name_longer_than_a_file_can_have_is_one_line(run, tmp_path, arguments):
    refused(run(*arguments, tmp_path / ("n" * 300)), "n" * 300)


def test_a_folder_that_may_not_be_entered_is_one_line(run, monkeypatch, tmp_path):
    def is_dir(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", is_dir)
    refused(run("verify", "--root", tmp_path), f"{tmp_path}: Permission denied")


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "sites"], ["show", "protocol", "--model"], ["run", "six-axis", "--model"],
        ["corpus", "build", "--model"], ["run", "generate", "--model"],
    ],
)  # fmt: skip
def test_an_empty_model_is_not_the_one_in_this_folder(run, arguments, name):
    code, out, err = run(*arguments, name)
    assert (code, out) == (2, "") and "is empty; name a model" in err


@pytest.mark.parametrize("command", [["run", "six-axis"], ["run", "generate", "--prompt", "a"]])
def test_texts_without_an_end_are_not_read(run, tmp_path, command):
    (tmp_path / "stem").mkdir()
    os.mkfifo(tmp_path / "stem" / "physics.csv")
    refused(run(*command, "--mmlu", tmp_path), "physics.csv", "is not a regular file")
    refused(run(*command, "--xstest", tmp_path / "stem" / "physics.csv"), "physics.csv", "is not a regular file")
    code, out, err = run(*command, "--mmlu", tmp_path / ("n" * 300))
    assert (code, out) == (2, "") and "Traceback" not in err


@pytest.mark.parametrize("option", ["--prompt", "--chat", "--system"])
def test_text_that_is_no_unicode_is_refused(run, option):
    code, out, err = run("run", "generate", option, "\udcff", "--intervention", INTERVENTION)
    assert (code, out) == (2, "") and "is not valid UTF-8 text" in err
    code, out, err = run("run", "experiment-d", "--accept-code", "why \udcff")
    assert (code, out) == (2, "") and "is not valid UTF-8 text" in err


def commands_of(command, names=()):
    """Every command below one, with the words that call it."""
    yield names, command
    for name in command.list_commands(None) if isinstance(command, click.Group) else ():
        yield from commands_of(command.get_command(None, name), (*names, name))


def test_every_help_has_an_example_that_is_a_call_of_it(monkeypatch):
    """The words are parsed as the shell would hand them on; files that an example names need not be there."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, parameter, context: Path(value))
    for names, command in commands_of(cli.cli):
        text = (command.help or "").replace("\\\n", " ")
        examples = re.findall(r"^\s*python -m sparse_control (.+)$", text, re.MULTILINE)
        assert examples, f"{' '.join(names)}: --help has no example"
        for example in examples:
            words, context = shlex.split(example.split(" > ")[0]), click.Context(cli.cli)
            assert words[: len(names)] == list(names), example
            called = cli.cli
            while isinstance(called, click.Group) and words and not words[0].startswith("-"):
                called = called.get_command(context, words.pop(0))
            if called is not cli.cli:
                called.make_context(example, words)


def test_quiet_silences_notes_and_leaves_results(run, monkeypatch, capsys, tmp_path):
    for name in (notes.QUIET, "TQDM_DISABLE"):  # and undo what the option sets
        monkeypatch.setenv(name, "")
    notes.note("loud")
    assert capsys.readouterr().err == "loud\n"
    code, out, _ = run("models", "list", "--quiet")
    assert code == 0 and "smollm2-135m-instruct" in out and os.environ["TQDM_DISABLE"] == "1"
    notes.note("silent")
    assert capsys.readouterr().err == ""
    code, _, err = run("score", tmp_path / "absent.json", "--quiet")
    assert code == 2 and "absent.json" in err
    leaves = [command for _, command in commands_of(cli.cli) if not isinstance(command, click.Group)]
    assert all(any(option.name == "quiet" for option in command.params) for command in leaves)


@pytest.mark.parametrize(
    "words, typed, expected",
    [
        (["run", "six-axis", "--task"], "mcqa_s", ["mcqa_stem"]),
        (["run", "six-axis", "--selector"], "driver", ["driver_omp", "driver_omp_remeasured"]),
        (["run", "six-axis", "--preset"], "pa", ["paper"]),
        (["run", "official-iss", "--model"], "smol", ["smollm2-135m-instruct"]),
        (["show"], "official", ["official_iss"]),
        (["run"], "gen", ["generate"]),
    ],
)
def test_the_shell_completes_names_without_loading_a_model(words, typed, expected):
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli.cli, {}, "sparse-control", "_X").get_completions(words, typed)
    assert [item.value for item in found] == expected


def test_a_dry_run_reads_no_weights(run, monkeypatch, tmp_path):
    """Its counts are those of the plan of the loaded model, timed apart from it."""
    folder = save_tiny(tmp_path / "tiny")
    rows = [{"source": f"w{20 + n} w3 w4", "target": f"w{50 + n} w3 w4", "source_answer": " w5", "target_answer": " w6"}
            for n in range(24)]  # fmt: skip
    pairs = tmp_path / "mine.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["--model", folder, "--pairs", pairs, "--selector", "top_k", "--root", tmp_path / "root", "--dry-run"]
    with monkeypatch.context() as patch:
        patch.setattr("sparse_control.models.load_model", None)
        code, out, err = run("run", "six-axis", *asked)
    assert code == 0, err
    counted = [line.split() for line in out.splitlines() if line.startswith(("mine", "total"))]
    code, out, _ = run("run", "six-axis", *asked, "--timed")
    timed = [line.split() for line in out.splitlines() if line.startswith(("mine", "total"))]
    assert code == 0 and [line[: len(words)] for line, words in zip(timed, counted, strict=True)] == counted
    assert all(len(line) > len(words) for line, words in zip(timed, counted, strict=True))
    assert not (tmp_path / "root").exists()
    assert run("run", "six-axis", "--timed")[0] == 2
