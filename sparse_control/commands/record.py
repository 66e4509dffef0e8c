"""`record`: what `make record` and dvc.yaml write for DVC, from the committed measurements."""

import click

from sparse_control.project import project_folder


@click.group(hidden=True)
def record() -> None:
    """Files that DVC reads, written from the committed measurements.

    \b
    python -m sparse_control record store
    """


@record.command("curves")
def record_curves() -> None:
    """What `dvc plots` draws.

    \b
    python -m sparse_control record curves
    """
    from sparse_control.figures.curves import write_curves
    from sparse_control.records.lock import root_lock
    from sparse_control.records.paths import committed_root

    root = committed_root(project_folder())
    with root_lock(root):
        for path in write_curves(root):
            click.echo(path)


@record.command("store")
def record_store() -> None:
    """measurements/store.dvc, as it must be for what was measured.

    \b
    python -m sparse_control record store
    """
    from sparse_control.files import write_text
    from sparse_control.records.lock import root_lock
    from sparse_control.records.paths import committed_root
    from sparse_control.records.store import NAME, store_text

    root = committed_root(project_folder())
    with root_lock(root):
        write_text(root / NAME, store_text(root))
    click.echo(root / NAME)
