"""Prefect's home is this user's alone, and a broken one is a line that names it."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sparse_control import project
from sparse_control.errors import InputError
from sparse_control.project import own_folder, prefect_home
from tasks.environment import LOOPBACK, settle
from tests.flows.test_server import clean_environment
from tests.support.privileges import bound_by_permissions

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_a_project_that_is_read_only_has_its_home_in_the_users_own(unset, monkeypatch, tmp_path):
    checkout, user = tmp_path / "checkout", tmp_path / "user"
    checkout.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setattr(project, "project_folder", lambda: checkout)
    assert prefect_home() == checkout / ".prefect"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert prefect_home() == user / ".cache" / "sparse-control" / "prefect"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert prefect_home() == tmp_path / "cache" / "sparse-control" / "prefect"


def test_a_new_home_is_closed_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        assert own_folder("PREFECT_HOME", tmp_path / "home").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_home_that_others_can_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(InputError, match="others may write into it; make it yours alone"):
        own_folder("PREFECT_HOME", tmp_path)
    tmp_path.chmod(0o755)
    own_folder("PREFECT_HOME", tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only an administrator can give a folder away")
def test_a_home_of_another_user_is_refused(tmp_path):
    planted = tmp_path / "planted"
    planted.mkdir(mode=0o700)
    os.chown(planted, 65534, 65534)
    (tmp_path / "link").symlink_to(planted)
    for path in (planted, tmp_path / "link"):
        with pytest.raises(InputError, match=f"PREFECT_HOME {path}: belongs to another user"):
            own_folder("PREFECT_HOME", path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, ""),
        ({"NO_PROXY": "a.example"}, "a.example,"),
        ({"no_proxy": "a.example, 127.0.0.1"}, "a.example,127.0.0.1,"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_loopback_is_reached_without_a_proxy(monkeypatch, tmp_path, before, after):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")  # what settle sets is undone after the test
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    settle()
    direct = [host for host in LOOPBACK if host not in after]
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
    assert os.environ["no_proxy"] == after + ("" if after == "*" else ",".join(direct))


def run(home: Path, root: Path, *prefix: str) -> subprocess.CompletedProcess:
    command = [*prefix, sys.executable, "-m", "sparse_control", "run", "six-axis", "--root", str(root)]
    environment = clean_environment(PREFECT_HOME=str(home))
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=240)


def refused(done: subprocess.CompletedProcess, home: Path, words: str) -> None:
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: PREFECT_HOME {home}") or line.startswith(f"error: {home}")
    assert words in line and "PREFECT_HOME" in line or "remove it" in line


@pytest.mark.slow
def test_a_home_that_is_a_file_unwritable_or_unreadable_is_one_line(tmp_path):
    home, root = tmp_path / "home", tmp_path / "root"
    home.write_text("")
    refused(run(home, root), home, "cannot be made (File exists)")
    home.unlink()
    home.mkdir(mode=0o500)
    refused(run(home, root, *bound_by_permissions()), home, "cannot be written to")
    refused(run(home / "below", root, *bound_by_permissions()), home / "below", "cannot be made (Permission denied)")
    home.chmod(0o700)
    (home / "profiles.toml").write_text("a = [")
    refused(run(home, root), home / "profiles.toml", "cannot be read by Prefect")


@pytest.fixture(scope="module")
def good_home(tmp_path_factory):
    """A home that a server has started in."""
    home = tmp_path_factory.mktemp("good")
    started = "from flows.server import temporary_server\nwith temporary_server(): pass"
    environment = clean_environment(PREFECT_HOME=str(home))
    subprocess.run([sys.executable, "-c", started], cwd=PROJECT, env=environment, check=True)
    with sqlite3.connect(home / "prefect.db") as database:
        database.execute("pragma wal_checkpoint(truncate)")
    return home


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["other bytes", "half", "a later version", "a folder"])
def test_a_broken_database_is_one_line(good_home, tmp_path, damage):
    home, content = tmp_path / "home", (good_home / "prefect.db").read_bytes()
    home.mkdir(mode=0o700)
    path = home / "prefect.db"
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes({"other bytes": b"x" * 5000, "half": content[: len(content) // 2]}.get(damage, content))
    if damage == "a later version":
        with sqlite3.connect(path) as database:
            database.execute("update alembic_version set version_num = 'ffffffffffff'")
        database.close()
    refused(run(home, tmp_path / "root"), home, "Prefect's server did not start there (")
