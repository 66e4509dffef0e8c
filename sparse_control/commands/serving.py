"""`serve`, `stop` and `deployed`, as the Makefile calls them: a Prefect server and worker on loopback."""

import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click

from sparse_control.errors import NotAvailable
from sparse_control.project import prefect_home, project_folder

DEPLOYED = ("official-iss", "six-axis", "reproduce")


@click.command(hidden=True)
@click.option("--port", type=click.IntRange(1, 65535), default=4200, show_default=True)
def serve(port: int) -> None:
    """Start server and worker, register the deployments and print what to type.

    \b
    python -m sparse_control serve --port 4200
    """
    from sparse_control.serving import SECRET

    serving = import_module("flows.serve")
    home = prefect_home()
    url = serving.start(port).url
    prefect = shlex.quote(str(Path(sys.executable).parent / "prefect"))
    lines = [
        f"server and worker run; log: {home / serving.WORKER_LOG}; end them with: make stop",
        f"pages: {url.removesuffix('/api')}; they ask for the content of {home / SECRET}",
        f"export PREFECT_API_URL={url}",
        f'export PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(home / SECRET))})"',
        *(f"{prefect} deployment run '{name}/{name}' --watch" for name in DEPLOYED),
        f"{prefect} deployment run 'reproduce/reproduce' -p root=runs/smoke --watch",
    ]
    click.echo("\n".join(lines))


@click.command(hidden=True)
def stop() -> None:
    """End server and worker.

    \b
    python -m sparse_control stop
    """
    try:
        from sparse_control.serving import stop as end
    except ModuleNotFoundError:  # without what starts them nothing was started
        return
    end(prefect_home())


@click.command(hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("flow")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def deployed(flow: str, arguments: tuple[str, ...]) -> None:
    """Run a deployed FLOW on the worker, watched to its end; ARGUMENTS are those of `prefect deployment run`.

    \b
    python -m sparse_control deployed official-iss -p preset=smoke
    """
    from sparse_control.serving import auth_string, client_environment, known

    home = prefect_home()
    serving = known(home)
    if serving is None or not import_module("flows.server").answers(serving.url, timeout=5):
        raise NotAvailable("no Prefect server of this project runs; type: make serve")
    prefect = [sys.executable, "-m", "prefect", "deployment", "run", f"{flow}/{flow}", *arguments, "--watch"]
    environment = os.environ | client_environment(serving.url, auth_string(home))
    raise click.exceptions.Exit(subprocess.run(prefect, cwd=project_folder(), env=environment).returncode)
