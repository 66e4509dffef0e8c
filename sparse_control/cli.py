"""The command line. Exit codes: 0 fine, 1 a check or a task failed, 2 the input or the call is wrong.

Results go to stdout, progress and errors to stderr. Everything is imported where it is used, so that `reproduce`,
`verify`, `score` and `show` start without torch, Prefect or DVC.
"""

from collections.abc import Sequence

import click

from sparse_control import __version__
from sparse_control.commands.doctor import doctor
from sparse_control.commands.entry import exit_code
from sparse_control.commands.export import export
from sparse_control.commands.inputs import corpus, models
from sparse_control.commands.lens import lens
from sparse_control.commands.measure import run
from sparse_control.commands.options import add_quiet
from sparse_control.commands.recompute import reproduce, score, verify
from sparse_control.commands.record import record
from sparse_control.commands.serving import deployed, serve, stop
from sparse_control.commands.show import show
from sparse_control.commands.stage import stage


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    commands=[
        reproduce,
        verify,
        show,
        score,
        run,
        export,
        lens,
        models,
        corpus,
        doctor,
        serve,
        stop,
        deployed,
        stage,
        record,
    ],
)
@click.version_option(__version__, prog_name="sparse-control")
def cli() -> None:
    """Internal state stability and the six-axis control protocol, measured and recomputed.

    \b
    python -m sparse_control doctor
    python -m sparse_control show summary
    python -m sparse_control verify
    """


add_quiet(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors a person can mend are one line on stderr."""
    return exit_code(cli, arguments)
