"""Runs whole flows on a tiny model, each in a forked process that may be told to kill itself at an event in a stage.

`python -m tests.reliability.launcher FOLDER`, then one JSON command a line on standard input:
`{"flow": "official_iss", "root": "...", "kill": ["B", 17]}`. The answer is one JSON line: how the process ended.

Events are the moments at which a kill could tear something: before and after a file is put into place, in the middle
of a write, before a file is removed, and between two pieces of work. Everything slow is imported before the fork.
"""

import errno
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefect.filesystems

import flows.experiments
import flows.official_iss
import flows.parameters
import flows.six_axis
from flows.in_process import run_in_process
from sparse_control.code_hash import closure_hashes
from sparse_control.errors import InputError
from sparse_control.protocol import study
from sparse_control.records.paths import STAGES
from sparse_control.stages import a_reference, b_validate, c_freeze, d_official
from tasks.six_axis import STUDY

FLOWS = {"official_iss": flows.official_iss.official_iss, "six_axis": flows.six_axis.six_axis}
PLACES = {
    "sparse_control.stages.a_reference": "A",
    "sparse_control.stages.b_validate": "B",
    "sparse_control.stages.c_freeze": "C",
    "sparse_control.stages.d_official": "D",
    "sparse_control.protocol.study": "six-axis",
    "sparse_control.records.manifest": "manifest",
    "prefect.results": "Prefect's results",
}


class Events:
    """Counts the moments of one process in every place, and ends the process at the n-th in one of them."""

    def __init__(self, kill: tuple[str, int] | None, log: Path) -> None:
        self.kill, self.log = kill, log
        self.counts: Counter[str] = Counter()

    def happens(self) -> None:
        place = _place()
        self.counts[place] += 1
        deadly = self.kill == (place, self.counts[place])
        if self.kill is None or deadly:
            with open(self.log, "a") as log:
                log.write(place + "\n")
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def is_next(self, place: str) -> bool:
        """Whether the process ends at the next moment in this place."""
        return self.kill == (place, self.counts[place] + 1)


def _place() -> str:
    """The innermost stage on the stack."""
    frame = sys._getframe()
    while frame is not None:
        if place := PLACES.get(frame.f_globals.get("__name__", "")):
            return place
        frame = frame.f_back
    return "flow"


def around(events: Events, function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        events.happens()
        result = function(*args, **kwargs)
        events.happens()
        return result

    return both


def before(events: Events, function: Callable[..., Any]) -> Callable[..., Any]:
    def first(*args: Any, **kwargs: Any) -> Any:
        events.happens()
        return function(*args, **kwargs)

    return first


def watch(events: Events, work: Path) -> None:
    """Put the events into the functions that write, and note every piece of work that is done."""

    def note(piece: str) -> None:
        with open(work, "a") as log:
            log.write(piece + "\n")

    os.replace = around(events, os.replace)
    os.fsync = before(events, os.fsync)
    os.unlink = before(events, os.unlink)
    Path.unlink = before(events, Path.unlink)

    write = prefect.filesystems.LocalFileSystem.write_path

    def torn_write(self: Any, path: str, content: bytes, **options: Any) -> Any:
        if events.is_next(_place()):  # a result of which only half reaches the disk
            write(self, path=path, content=content[: len(content) // 2], **options)
        events.happens()
        return write(self, path=path, content=content, **options)

    prefect.filesystems.LocalFileSystem.write_path = torn_write

    jacobian_sum = a_reference.jacobian_sum

    def noted_sum(*args: Any, progress: Callable[..., None], **kwargs: Any) -> Any:
        def on_prompt(following: int, total: Any) -> None:
            note(f"prompt {following - 1}")
            events.happens()
            progress(following, total)
            events.happens()

        return jacobian_sum(*args, progress=on_prompt, **kwargs)

    a_reference.jacobian_sum = noted_sum
    for module, name, piece in (
        (a_reference, "compare_layer", lambda *args: f"comparison {args[1]}"),
        (b_validate, "_validate_layer", lambda *args: f"layer {args[2]}"),
        (d_official, "load_freeze", lambda *args: "official"),
        (c_freeze, "write_json", lambda *args: "freeze"),
    ):
        setattr(module, name, _noting(note, piece, getattr(module, name)))
    measured = study._Study.measured

    def noted_record(self: Any, seed: int) -> dict[str, Any]:
        note(f"record {self.task} {self.selector} {self.condition} {seed}")
        return measured(self, seed)

    study._Study.measured = noted_record


def fill_the_disk(writes: int) -> None:
    """After so many files no byte more fits; what was written to the disk stays readable."""
    left = [writes]
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        fsync(descriptor)

    os.fsync = failing


def forbid_writing(root: Path) -> None:
    """As a read-only file system below `root`; permissions would not stop an administrator."""
    opened = os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(os.fsdecode(path)).is_relative_to(root):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *args, **kwargs)

    os.open = refusing


def _noting(note: Callable[[str], None], piece: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        note(piece(*args))
        return function(*args, **kwargs)

    return noted


def run(folder: Path, command: dict[str, Any]) -> int:
    """One flow, in this process; its exit code as the command line has it."""
    flows.parameters.project_folder = lambda: folder
    os.environ["SPARSE_CONTROL_CACHE"] = str(folder / "cache")
    root = Path(command["root"])
    if "full_after" in command:
        fill_the_disk(command["full_after"])
    if command.get("read_only"):
        forbid_writing(root)
    kill = command.get("kill")
    watch(Events(tuple(kill) if kill else None, root.with_suffix(".events")), root.with_suffix(".work"))
    parameters = {"preset": "tiny", "root": str(root), **command.get("parameters", {})}
    try:
        run_in_process(FLOWS[command["flow"]], parameters)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def forked(folder: Path, command: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a child; `after` seconds later it is killed, where the command says so."""
    with open(Path(command["root"]).with_suffix(".log"), "wb") as log:
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            code = 1
            try:
                code = run(folder, command)
            finally:
                sys.stderr.flush()
                os._exit(code)
    if "after" in command:
        time.sleep(command["after"])
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return {"code": os.waitstatus_to_exitcode(status)}


def main() -> None:
    folder = Path(sys.argv[1])
    corpus = ("sparse_control.corpus", "sparse_control.wikitext")
    for modules in (tuple(STAGES.values()), *((stage,) for stage in STAGES.values()), (STUDY,), corpus):
        closure_hashes(*modules)  # read once, so that an edit during the tests is no other version
    for line in sys.stdin:
        print(json.dumps(forked(folder, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
