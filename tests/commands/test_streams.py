"""Standard streams that are full, closed or of another encoding: one line, the same exit code, JSON stays JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparse_control.commands.text import json_text
from sparse_control.files import write_json

PROJECT = Path(__file__).parents[2]
SPARSE_CONTROL = f"{sys.executable} -m sparse_control"
COMMANDS = ["show protocol --root {root}", "score examples/score_example.json", "models list", "--help", "--version"]
NAME = "modèle 模型 −½ \u2028"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", "-c", line], cwd=PROJECT, env=os.environ | environment, capture_output=True, timeout=120
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_output_is_one_line(built_root, command):
    done = shell(f"{SPARSE_CONTROL} {command.format(root=built_root)} > /dev/full")
    assert (done.returncode, done.stderr.decode()) == (2, "error: output: No space left on device\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reader_of_a_pipe_may_leave(built_root, command):
    line = f"{SPARSE_CONTROL} {command.format(root=built_root)} | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    done = shell(line)
    assert done.returncode in (0, 141) and done.stderr == b""


@pytest.mark.parametrize("streams", [">&-", "<&- >&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_exit_code(streams):
    good, wrong = shell(f"{SPARSE_CONTROL} models list {streams}"), shell(f"{SPARSE_CONTROL} show nothing {streams}")
    assert (good.returncode, good.stderr, wrong.returncode) == (0, b"", 2)


@pytest.mark.parametrize("call", ["show nothing", "show --nothing"])
@pytest.mark.parametrize("streams", ["2> /dev/full", "> /dev/full 2> /dev/full"])
def test_an_error_that_cannot_be_told_keeps_its_exit_code(call, streams):
    assert shell(f"{SPARSE_CONTROL} {call} {streams}").returncode == 2


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "utf-8"},
    ],
)
def test_json_is_the_same_under_every_encoding(tmp_path, environment):
    file = json.loads((PROJECT / "examples" / "score_example.json").read_text())
    write_json(tmp_path / "score.json", file | {"name": NAME})
    done = shell(f"{SPARSE_CONTROL} score --json {tmp_path / 'score.json'}", **environment)
    assert done.returncode == 0 and json.loads(done.stdout.decode("ascii"))["name"] == NAME
    lens = {"J": {0: torch.eye(2)}, "n_prompts": 1, "source_layers": [0], "d_model": 2, "note": NAME}
    torch.save(lens, tmp_path / "lens.pt")
    done = shell(f"{SPARSE_CONTROL} lens show --json {tmp_path / 'lens.pt'}", **environment)
    assert done.returncode == 0 and json.loads(done.stdout.decode("ascii"))["note"] == NAME


def test_json_refuses_what_json_has_no_word_for():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": float("nan")})
