"""Lines of progress on stderr, and how they are silenced, in this process and in those it starts."""

import os

import click

QUIET = "SPARSE_CONTROL_QUIET"


def be_quiet() -> None:
    """No notes and no progress bars from here on; tqdm reads its setting when it is imported."""
    os.environ.update({QUIET: "1", "TQDM_DISABLE": "1"})


def note(line: str) -> None:
    """One line on stderr, unless there shall be none."""
    if not os.environ.get(QUIET):
        click.echo(line, err=True)
