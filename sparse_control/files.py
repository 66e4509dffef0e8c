"""Reading and writing files: atomic writes, hashes, JSON, JSON lines and YAML with errors that name the place."""

import hashlib
import json
import os
import platform
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from sparse_control.errors import InputError

LARGEST_TEXT = 256 << 20  # bytes; parsed JSON takes ten times as much memory, a paper's records take a thousandth
YAML_DEPTH = 100  # mappings and lists within each other
TEMPORARY = ".part"  # how the name of a file ends that is being written
_UNFINISHED = re.compile(r"\.sparse-control-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{16}" + re.escape(TEMPORARY))


def check_size(path: Path, largest: int) -> None:
    """Refuse what is no regular file or has more bytes than any good one, before a byte of it is read.

    Args:
        path: of the file; one that is missing passes, as its reader says so better.
        largest: bytes.

    Raises:
        InputError: a device, pipe or folder, or a file that is too large.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if size > largest:
        raise InputError(f"{path}: has {size} bytes, more than any such file has ({largest}); restore the original")


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def sha256_json(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys, no spaces, no NaN)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _this_machine() -> str:
    return hashlib.sha256(platform.node().encode(errors="surrogateescape")).hexdigest()[:8]


def _new_file(folder: Path) -> tuple[int, Path]:
    """An open file that no other writer has; its name says which process of which machine is writing it."""
    path = folder / f".sparse-control-{_this_machine()}-{os.getpid()}-{secrets.token_hex(8)}{TEMPORARY}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666), path


def _keep_mode(path: Path, descriptor: int) -> None:
    """Give an open file the permissions of the regular file at `path`; without one, those of the umask stay."""
    try:
        old = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(old) & 0o777
    if stat.S_ISREG(old) and mode != stat.S_IMODE(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, mode)


def write_bytes(path: Path, data: bytes) -> None:
    """Write through a temporary file in the same folder, then `os.replace`: readers see all of it or nothing.

    A new file has the permissions that the umask leaves, one that is replaced keeps its own.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = _new_file(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            _keep_mode(path, handle.fileno())
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error
        raise


def _is_running(process: int) -> bool:
    if os.name != "posix":  # where signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def remove_unfinished(folder: Path) -> list[Path]:
    """Remove what processes of this machine that have ended left of files they were writing, at any depth.

    Only regular files that `write_bytes` began are removed, and no link is followed. What another machine left stays:
    whether its process has ended is not known here.

    Args:
        folder: need not exist.

    Returns:
        the removed paths, in order.
    """
    removed = []
    for below, _, names in os.walk(folder):
        for name in names:
            match = _UNFINISHED.fullmatch(name)
            if match is None or match[1] != _this_machine() or _is_running(int(match[2])):
                continue
            path = Path(below, name)
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink(missing_ok=True)
                removed.append(path)
    return sorted(removed)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text with newlines as they are."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{path}: cannot be written, its content is not valid Unicode ({error.reason})") from error
    write_bytes(path, data)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON value, indented, keys in the given order; NaN and infinity are refused (ValueError)."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON value per line; NaN and infinity are refused (ValueError)."""
    write_text(path, "".join(map(json_line, rows)))


def json_line(value: Any) -> str:
    """One JSON value as a line; NaN and infinity are refused (ValueError)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return content


def parse_json(text: str, name: str) -> Any:
    """One JSON value; NaN, infinity and repeated keys are refused.

    Raises:
        InputError: not JSON; `name` says what the text is.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not valid JSON ({_said(error)})") from error


def _said(error: Exception) -> str:
    """Why a JSON value is none; of a number with thousands of digits Python says what a program may set."""
    return str(error).partition("; use sys.")[0]


def read_text(path: Path, *, largest: int = LARGEST_TEXT) -> str:
    """Read UTF-8 text of at most `largest` bytes.

    Raises:
        InputError: the file is missing, no regular file, unreadable, too large or not UTF-8.
    """
    check_size(path, largest)
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error


def read_json(path: Path) -> Any:
    """Read one JSON value; errors name the file."""
    return parse_json(read_text(path), str(path))


def read_json_lines(path: Path) -> list[Any]:
    """Read one JSON value per line; errors name the file and the line. Blank lines are refused, too."""
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{path}:{number}: not valid JSON (the line is blank; remove it)")
    return [parse_json(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Safe YAML in which a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        content = super().construct_mapping(node, deep=deep)
        if len(content) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice, or is merged", node.start_mark)
        return content


def _check_events(text: str) -> None:
    """Refuse aliases, as few bytes of them stand for gigabytes once they are written out, and a depth beyond need.

    The loader in C recurses into what is nested without a limit of its own.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_PlainLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, f"alias *{event.anchor} is not read", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > YAML_DEPTH:
            message = f"nested more than {YAML_DEPTH} deep"
            raise yaml.constructor.ConstructorError(None, None, message, event.start_mark)


def read_yaml(path: Path) -> Any:
    """Read one YAML value; aliases and repeated keys are refused, errors name the file and the line."""
    text = read_text(path)
    try:
        _check_events(text)
        return yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError, AttributeError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())[:300]}") from error
