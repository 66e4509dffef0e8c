"""From a click command to an exit code: 0 fine, 1 a check or a task failed, 2 the input or the call is wrong."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click

from sparse_control.commands.extras import extra_of, install_command
from sparse_control.errors import InputError

BROKEN_PIPE = 141  # as a shell reports a process that wrote to a closed pipe
INTERRUPTED = 130
MACHINE = (  # what the machine refuses, whatever the program does: a person can mend it
    errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOSPC,
    errno.EPERM, errno.EROFS,
)  # fmt: skip


def fail(message: str, code: int = 2) -> int:
    """Print one error line on stderr and return the exit code."""
    from sparse_control.records.base import printable

    with suppress(OSError):  # nowhere to say it: the exit code is left
        click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
    return code


def exit_code(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors a person can mend are one line on stderr."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = command.main(arguments, prog_name="sparse-control", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Abort:  # what click makes of a keyboard interrupt
        return fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except InputError as error:
        return fail(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module in ("flows", "tasks"):
            return fail(f"{module}/ is not beside the package; run this from the project folder")
        extra = extra_of(module)
        if extra is None:
            raise
        return fail(f"{module} is not installed; run: {install_command(extra)}")
    except SystemExit as leaving:  # click ends with 1 where the reader of a pipe has gone
        return BROKEN_PIPE if isinstance(sys.stdout, click.utils.PacifyFlushWrapper) else leaving.code
    except BrokenPipeError:
        _leave(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in MACHINE:
            raise
        if error.filename is None:  # a stream
            _leave(sys.stdout)
        return fail(f"{error.filename or 'output'}: {error.strerror}")


def _open_closed_streams() -> None:
    """Give a closed standard stream nowhere to go, before a file that is opened gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))


def _leave(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter flushes it once more at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
