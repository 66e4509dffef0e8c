"""The import closure and its hash, on a small project written for the test."""

import subprocess
import sys

import pytest

from sparse_control import code_hash
from sparse_control.files import read_json


@pytest.fixture
def project(tmp_path, monkeypatch):
    files = {
        "sparse_control/__init__.py": "",
        "sparse_control/a.py": "import numpy\nfrom sparse_control.sub import b\n\ndef f():\n    from . import lazy\n",
        "sparse_control/lazy.py": "",
        "sparse_control/other.py": "",
        "sparse_control/sub/__init__.py": "from .helper import one\n",
        "sparse_control/sub/b.py": "from ..late import name\n",
        "sparse_control/sub/helper.py": "one = 1\n",
        "sparse_control/sub/unused.py": "",
        "sparse_control/late.py": "import importlib\nname = importlib.import_module('sparse_control.dynamic')\n",
        "sparse_control/dynamic.py": "import sparse_control.a\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(code_hash, "_root", lambda: tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _forget():
    for function in (code_hash._imports, code_hash.code_closure, code_hash.closure_hashes):
        function.cache_clear()


def test_closure_follows_every_kind_of_import(project):
    names = [
        path.relative_to(project / "sparse_control").as_posix() for path in code_hash.code_closure("sparse_control.a")
    ]
    assert names == [
        "__init__.py",
        "a.py",
        "dynamic.py",
        "late.py",
        "lazy.py",
        "sub/__init__.py",
        "sub/b.py",
        "sub/helper.py",
    ]


def test_hash_changes_with_a_helper_and_not_with_a_stranger(project):
    before = code_hash.code_sha256("sparse_control.a")
    (project / "sparse_control/other.py").write_text("x = 1\n")
    (project / "sparse_control/sub/unused.py").write_text("x = 1\n")
    _forget()
    assert code_hash.code_sha256("sparse_control.a") == before
    (project / "sparse_control/sub/helper.py").write_text("one = 2\n")
    _forget()
    assert code_hash.code_sha256("sparse_control.a") != before


def test_saved_closure_names_the_file_that_changed(project, tmp_path):
    path = code_hash.save_closure(tmp_path / "root", "sparse_control.a")
    assert path == tmp_path / "root/code" / f"{code_hash.code_sha256('sparse_control.a')}.json"
    saved = read_json(path)["files"]
    (project / "sparse_control/sub/helper.py").write_text("one = 2\n")
    _forget()
    now = code_hash.closure_hashes("sparse_control.a")
    assert [name for name in saved if saved[name] != now[name]] == ["sparse_control/sub/helper.py"]


@pytest.mark.parametrize("names", [(), ("sparse_control.missing",), ("numpy",)])
def test_unknown_modules_are_refused(project, names):
    with pytest.raises(ValueError, match="modules"):
        code_hash.code_closure(*names)


def test_walk_imports_nothing():
    program = (
        "import sys; from sparse_control.code_hash import code_sha256; code_sha256('sparse_control.settings');"
        "print(sorted({'torch', 'numpy', 'pydantic', 'sparse_control.settings'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
