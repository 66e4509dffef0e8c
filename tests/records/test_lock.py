"""One writer at a time in a root, and what a killed one was writing is cleared away."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparse_control.cli import main
from sparse_control.commands import record
from sparse_control.errors import InputError
from sparse_control.files import write_bytes
from sparse_control.records.lock import NAME, lock_around, root_lock
from tests.support.lock import held
from tests.support.privileges import bound_by_permissions

PROJECT = Path(__file__).parent.parent.parent
REFUSED = "another command is writing into it; let it end, add --wait, or choose another --root"


def test_a_second_writer_is_refused_and_a_dead_one_does_not_block(tmp_path):
    with held(tmp_path):
        with pytest.raises(InputError, match=REFUSED), root_lock(tmp_path):
            pass
    with root_lock(tmp_path):
        assert (tmp_path / NAME).exists()


def test_a_second_writer_waits_where_it_is_told_to(tmp_path, capfd):
    with held(tmp_path) as holder:
        threading.Timer(0.5, holder.stdin.close).start()
        with root_lock(tmp_path, wait=True):
            assert holder.wait(timeout=30) == 0
    assert f"waiting for another command in {tmp_path} to end" in capfd.readouterr().err


def test_the_one_that_holds_it_may_take_it_again(tmp_path):
    with root_lock(tmp_path):
        with root_lock(tmp_path):
            pass
        (refusal,) = in_another_thread(tmp_path)
    assert REFUSED in str(refusal) and in_another_thread(tmp_path) == []


def in_another_thread(root):
    raised = []

    def take():
        try:
            with root_lock(root):
                pass
        except InputError as error:
            raised.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return raised


def test_a_lock_clears_what_a_killed_writer_left_and_nothing_else(tmp_path):
    killed = "import os, signal, sys; from pathlib import Path; from sparse_control.files import write_bytes\n"
    killed += "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\nwrite_bytes(Path(sys.argv[1]), b'')"
    for name in ("MANIFEST.json", "model/jacobian_iss/a.json", "model/six_axis/b.jsonl", "anything/else/c.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-c", killed, tmp_path / name], cwd=PROJECT)
    foreign = tmp_path / "model" / ".film.mkv.part"
    write_bytes(foreign, b"of another program")
    with root_lock(tmp_path):
        assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != NAME] == [foreign]


def snapshot(root):
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and path.name != NAME}


@pytest.mark.parametrize("command", ["reproduce --root {root}", "record curves", "record store"])
def test_every_writer_is_refused_while_another_writes(root, command, capsys, monkeypatch):
    measurements = root.rename(root.with_name("measurements"))
    monkeypatch.setattr(record, "project_folder", lambda: measurements.parent)
    call, before = command.format(root=measurements).split(), snapshot(measurements)
    with held(measurements):
        assert main(call) == 2
    assert REFUSED in capsys.readouterr().err and snapshot(measurements) == before
    assert main(call) == 0


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("stage reference --corpus {tmp}", marks=pytest.mark.slow),
        pytest.param("lens write --prompts 1 --layers 3 --out {tmp}/model/lens.pt", marks=pytest.mark.slow),
    ],
)
def test_what_measures_by_itself_is_refused_before_it_measures(tmp_path, command, capsys, default_model):
    (tmp_path / "MANIFEST.json").write_text("{}")
    (tmp_path / "model" / "jacobian_iss").mkdir(parents=True)
    where = ["--root", str(tmp_path)] if command.startswith("stage") else []
    with held(tmp_path):
        assert main([*command.format(tmp=tmp_path).split(), *where]) == 2
    assert REFUSED in capsys.readouterr().err
    assert list((tmp_path / "model").iterdir()) == [tmp_path / "model" / "jacobian_iss"]


def test_a_file_outside_of_roots_has_no_lock(tmp_path):
    (tmp_path / "MANIFEST.json").write_text("of another program")
    with lock_around(tmp_path / "folder" / "lens.pt"):
        assert not (tmp_path / NAME).exists() and not (tmp_path / "folder").exists()


def test_tables_elsewhere_need_no_lock(root, tmp_path, capsys):
    with held(root):
        assert main(["reproduce", "--root", str(root), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "index.html").exists()


def test_a_root_that_cannot_be_written_to_gives_its_tables_elsewhere(root, tmp_path):
    (root / NAME).unlink()
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    command = [*bound_by_permissions(), sys.executable, "-m", "sparse_control", "reproduce", "--root", root]
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = subprocess.run([*command, "--out", tmp_path / "out"], cwd=PROJECT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == f"error: root {root}: cannot be written (Permission denied); choose another --root\n"
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert not (root / NAME).exists()


def test_the_lock_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with root_lock(tmp_path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o640
