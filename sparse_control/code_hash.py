"""Which source files a module's results depend on, and one hash of them, by reading imports without running any.

The walk is static: every `import` statement of a file, inside functions as well, and every
`import_module("literal")`. Importing `a.b.c` also runs `a/__init__.py` and `a/b/__init__.py`, so these belong
to the closure. Third-party packages stay outside; their versions stand in a measurement's provenance.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sparse_control.files import sha256_json, write_json

PACKAGES = ("sparse_control", "tasks", "flows")


def _root() -> Path:
    return Path(__file__).resolve().parent.parent


def _file_of(module: str) -> Path | None:
    """The file of a project module; None when there is no such module."""
    if module.split(".")[0] not in PACKAGES:
        return None
    base = _root().joinpath(*module.split("."))
    for candidate in (base / "__init__.py", base.with_name(base.name + ".py")):
        if candidate.is_file():
            return candidate
    return None


def _is_package(module: str) -> bool:
    return module.split(".")[0] in PACKAGES and _root().joinpath(*module.split(".")).is_dir()


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """The absolute name a `from ... import` refers to, seen from `module`."""
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    package = parts if _is_package(module) else parts[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _mentioned(tree: ast.AST, module: str) -> Iterator[str]:
    """Every dotted name the file may import; names that are attributes rather than modules resolve to no file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name == "import_module" and isinstance(node.args[0].value, str):
                yield node.args[0].value


@cache
def _imports(module: str) -> frozenset[str]:
    path = _file_of(module)
    if path is None:
        return frozenset()
    return frozenset(_mentioned(ast.parse(path.read_bytes(), filename=str(path)), module))


@cache
def code_closure(*modules: str) -> tuple[Path, ...]:
    """The project files reachable from `modules` by imports, sorted by their path.

    Args:
        modules: dotted names, e.g. "sparse_control.stages.b_validate".

    Raises:
        ValueError: no module given, or one that is not a module of the project.
    """
    if not modules:
        raise ValueError("modules: give at least one module name")
    for module in modules:
        if _file_of(module) is None and not _is_package(module):
            raise ValueError(f"modules: no project module {module!r}")
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in seen or module.split(".")[0] not in PACKAGES:
            continue
        seen.add(module)
        waiting.extend(_imports(module))
        if "." in module:
            waiting.append(module.rpartition(".")[0])
    return tuple(sorted({path for path in map(_file_of, seen) if path is not None}))


@cache
def closure_hashes(*modules: str) -> dict[str, str]:
    """Relative path -> SHA-256 of every file in `code_closure(*modules)`, newlines as on Unix.

    Raises:
        ValueError: as `code_closure`.
    """
    return {
        path.relative_to(_root()).as_posix(): hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
        for path in code_closure(*modules)
    }


def code_sha256(*modules: str) -> str:
    """One SHA-256 over the paths and the contents of `code_closure(*modules)`.

    Raises:
        ValueError: as `code_closure`.
    """
    return sha256_json(closure_hashes(*modules))


def save_closure(root: Path, *modules: str) -> Path:
    """Write `<root>/code/<code_sha256>.json`, from which a later reader can tell which files changed since.

    Raises:
        ValueError: as `code_closure`.
        InputError: the file cannot be written.
    """
    path = Path(root, "code", f"{code_sha256(*modules)}.json")
    write_json(path, {"modules": sorted(modules), "files": closure_hashes(*modules)})
    return path
