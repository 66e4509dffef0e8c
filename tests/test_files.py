"""Atomic writes and strict readers."""

import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from sparse_control.errors import InputError
from sparse_control.files import (
    LARGEST_TEXT,
    read_json,
    read_json_lines,
    read_yaml,
    remove_unfinished,
    sha256_file,
    sha256_json,
    write_bytes,
    write_json,
    write_json_lines,
)


def test_round_trips(tmp_path):
    value = {"a": [1, 2.5, None, "é\u2028"], "b": {"c": True}}
    write_json(tmp_path / "one.json", value)
    write_json_lines(tmp_path / "many.jsonl", [value, value])
    assert read_json(tmp_path / "one.json") == value
    assert read_json_lines(tmp_path / "many.jsonl") == [value, value], "separators inside strings end no line"
    assert sorted(os.listdir(tmp_path)) == ["many.jsonl", "one.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == 1 and os.listdir(tmp_path) == ["a.json"]


def test_an_interrupted_replace_leaves_the_old_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", 1)

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(InputError, match="a.json: cannot be written .No space left on device"):
        write_json(tmp_path / "a.json", 2)
    assert read_json(tmp_path / "a.json") == 1 and os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_is_a_file(tmp_path):
    write_bytes(tmp_path / "a", b"")
    with pytest.raises(InputError, match="cannot be written"):
        write_bytes(tmp_path / "a" / "b", b"")


@pytest.mark.parametrize("line", ['{"a": 1, "a": 2}', "{", "NaN", "Infinity", "", '{"a": 1} x', "[" * 100_000])
def test_a_broken_line_is_named(tmp_path, line):
    file = tmp_path / "m.jsonl"
    file.write_text(f"1\n{line}\n2\n")
    with pytest.raises(InputError, match=r"m\.jsonl:2: not valid JSON"):
        read_json_lines(file)


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="absent: cannot be read"):
        read_json(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be read"):
        sha256_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8 text .byte 0"):
        read_json(tmp_path / "binary")


def test_only_regular_files_are_read():
    with pytest.raises(InputError, match="/dev/zero: is not a regular file"):
        read_json("/dev/zero")


def test_text_that_is_not_unicode(tmp_path):
    with pytest.raises(InputError, match="not valid Unicode"):
        write_json(tmp_path / "a.json", "\ud800")
    assert os.listdir(tmp_path) == []


def test_hashes(tmp_path):
    write_bytes(tmp_path / "abc", b"abc")
    assert sha256_file(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_json({"a": 1, "b": 2}) == sha256_json({"b": 2, "a": 1}) != sha256_json({"a": 1, "b": 3})


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "sparse.json"
    with open(path, "wb") as handle:
        handle.truncate(LARGEST_TEXT + 1)
    for reader in (read_json, read_json_lines, read_yaml):
        with pytest.raises(InputError, match=f"sparse.json: has {LARGEST_TEXT + 1} bytes, more than any such file has"):
            reader(path)


KILLED = """
import os, signal, sys
from pathlib import Path
from sparse_control.files import write_bytes
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
write_bytes(Path(sys.argv[1]), b"half")
"""
WRITING = """
import os, sys, time
from pathlib import Path
from sparse_control.files import write_bytes

def halfway(descriptor):
    print("writing", flush=True)
    sys.stdin.read()

os.fsync = halfway
write_bytes(Path(sys.argv[1]), b"whole")
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    deep, elsewhere = tmp_path / "root" / "deep", tmp_path / "elsewhere"
    for folder in (deep, elsewhere):
        folder.mkdir(parents=True)
        assert subprocess.run([sys.executable, "-c", KILLED, folder / "a.json"]).returncode == -signal.SIGKILL
    (left,) = deep.iterdir()
    (outside,) = elsewhere.iterdir()
    (deep / "link").symlink_to(elsewhere)
    linked = left.with_name(re.sub("-[0-9a-f]{16}", f"-{'0' * 16}", left.name))
    linked.symlink_to(outside)
    other_machine = left.with_name(re.sub("control-.{8}", "control-00000000", left.name))
    foreign = [deep / name for name in (".a.json.x1.part", ".movie.mkv.part", "a.json", "b.part")]
    for path in (*foreign, other_machine):
        path.write_text("")
    kept = {deep / "link", linked, other_machine, *foreign}

    assert remove_unfinished(tmp_path / "root") == [left]
    assert set(deep.iterdir()) == kept and outside.exists()
    assert remove_unfinished(tmp_path / "none") == []


def test_what_another_process_is_writing_stays(tmp_path):
    path = tmp_path / "a.json"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITING, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "writing\n"
    assert remove_unfinished(tmp_path) == []
    writer.communicate()
    assert writer.returncode == 0 and path.read_bytes() == b"whole" and os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664), (0o077, 0o600)])
def test_new_files_follow_the_umask_and_replaced_ones_keep_their_mode(tmp_path, umask, mode):
    shared = tmp_path / "shared.json"
    shared.write_text("1")
    shared.chmod(0o660)
    before = os.umask(umask)
    try:
        for path in (shared, tmp_path / "new.json"):
            write_json(path, 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o660
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == mode


def test_a_link_is_replaced_and_what_it_names_keeps_its_content(tmp_path):
    (tmp_path / "secret").write_text("1")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "link.json").symlink_to(tmp_path / "secret")
    write_json(tmp_path / "link.json", 2)
    assert (tmp_path / "secret").read_text() == "1" and not (tmp_path / "link.json").is_symlink()


def test_a_name_of_full_length_can_be_written(tmp_path):
    path = tmp_path / ("a" * 250 + ".json")
    write_json(path, 1)
    assert read_json(path) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x", "alias .x is not read .* line 2"),
        ("a: 1\nb: {c: 1, c: 2}", "a key stands twice.* line 2"),
        ("<<: {a: 1}\na: 2", "a key stands twice, or is merged"),
        ("[1, 2]: 3", "unhashable key"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: 2020-99-99", "month must be in 1..12"),
        ("[" * 5000, "nest"),
        ("[" * 200 + "]" * 200, "nested more than 100 deep"),
        ("- " * 5000 + "a", "nest"),
        ("a: [", "while parsing a flow node"),
    ],
)
def test_broken_or_crafty_yaml_is_one_line(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"params.yaml: not valid YAML: .*{message}") as error:
        read_yaml(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_yaml_is_read_as_it_stands(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: [1, 2.5, null, true]}  # why\n")
    assert read_yaml(path) == {"a": {"b": [1, 2.5, None, True]}}
