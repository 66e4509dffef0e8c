"""From a click command to an exit code: 0 fine, 1 a check or a task failed, 2 the input or the call is wrong."""

import errno
import os
import sys
from collections.abc import Sequence

import click

from sparse_control.commands.extras import extra_of, install_command
from sparse_control.errors import InputError

BROKEN_PIPE = 141  # as a shell reports a process that wrote to a closed pipe
INTERRUPTED = 130
UNREACHABLE = (errno.ENAMETOOLONG, errno.EACCES)  # what asking whether a path is there raises, not answers


def fail(message: str, code: int = 2) -> int:
    """Print one error line on stderr and return the exit code."""
    from sparse_control.records.base import printable

    click.echo(f"error: {printable(' '.join(message.split()))}", err=True)
    return code


def exit_code(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors a person can mend are one line on stderr."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in UNREACHABLE or error.filename is None:
            raise
        return fail(f"{error.filename}: {error.strerror}")
