"""The shape of the code: who may import whom, no circles, sizes that a reader can hold, and what ruff says."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sparse_control.code_hash import PACKAGES

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = {path.relative_to(PROJECT): path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")}

# What a folder may import: these, and what they may import. `base` is every other module in sparse_control/ itself.
ARROW = {
    "base": (),
    "metrics": ("base",),
    "models": ("base",),
    "records": ("metrics",),
    "settings": ("records",),
    "receipt": ("records",),
    "serving": ("records",),
    "iss": ("settings",),
    "corpus": ("iss",),
    "jacobian": ("models",),
    "protocol": ("jacobian", "settings", "receipt"),
    "stages": ("corpus", "jacobian", "receipt"),
    "tables": ("iss",),
    "figures": ("tables",),
    "paper": ("figures",),
    "provenance": ("figures",),
    "verify": ("provenance", "paper"),
    "tasks": ("stages", "protocol", "paper", "serving"),
    "flows": ("tasks",),
    "commands": ("flows", "verify"),
    "cli": ("commands",),
}
LONGEST_FILE, LONGEST_FUNCTION = 350, 60  # lines
LONGER = {  # what is longer, and how long: this list only shrinks
    "sparse_control/corpus.py": 396,
    "sparse_control/iss/benchmark.py": 354,
    "sparse_control/stages/lens_iss.py::lens_iss": 63,
    "sparse_control/tables/estimator.py": 392,
}


def _folder(path: Path) -> str:
    """The key of ARROW for a file, relative to the project."""
    package, *below = path.with_suffix("").parts
    name = below[0] if package == "sparse_control" else package
    return name if name in ARROW else {"__main__": "cli"}.get(name, "base")


def _file(module: str) -> Path | None:
    base = Path(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path in SOURCES), None)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(SOURCES[path].read_bytes())


def _imports(path: Path) -> set[Path]:
    """Files that a file imports, inside of functions too; of `from package import name` the module of that name."""
    found = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found |= {_file(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found |= {_file(f"{node.module}.{alias.name}") or _file(node.module) for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "import_module":
            found |= {_file(given.value) for given in node.args if isinstance(given, ast.Constant)}
    return found - {None, path}


def _below(folder: str) -> set[str]:
    return {folder}.union(*map(_below, ARROW[folder]))


def test_no_import_points_upward():
    upward = [
        f"{path} imports {imported}"
        for path in SOURCES
        for imported in _imports(path)
        if _folder(imported) not in _below(_folder(path))
    ]
    assert sorted(upward) == []


def test_no_circle_of_files():
    """Of files as they are written; that the `__init__` of a package runs first makes no circle of its own."""
    assert len(list(TopologicalSorter({path: _imports(path) for path in SOURCES}).static_order())) == len(SOURCES)


def test_files_and_functions_can_be_held_in_the_head():
    sizes = {path.as_posix(): (source.read_bytes().count(b"\n"), LONGEST_FILE) for path, source in SOURCES.items()}
    for path in SOURCES:
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                sizes[f"{path.as_posix()}::{node.name}"] = (node.end_lineno - node.lineno + 1, LONGEST_FUNCTION)
    longer = {name: lines for name, (lines, most) in sizes.items() if lines > most}
    assert {name: lines for name, lines in longer.items() if lines > LONGER.get(name, 0)} == {}, "split what grew"
    assert LONGER.keys() <= longer.keys(), "what fits leaves the list"


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="needs ruff")
@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_has_nothing_to_say(command):
    run = [sys.executable, "-m", "ruff", *command, "--no-cache", "--quiet", "."]
    done = subprocess.run(run, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
