"""What Prefect's UI shows of a run: how far it is, and its tables."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext

from sparse_control.project import project_folder


def _told(tell: Callable[..., Any], **content: Any) -> Any:
    """Tell the API; a measurement does not fail because the UI cannot be told of it."""
    try:
        return tell(**content)
    except Exception as error:  # the client raises many kinds
        click.echo(f"note: Prefect was not told ({type(error).__name__}: {error})", err=True)
        return None


def _key(*parts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts))


class ProgressBar:
    """Finished units of a flow, as a progress artifact where Prefect runs the flow."""

    def __init__(self, flow: str, *, total: int, done: int) -> None:
        self.flow, self.total, self.done = flow, total, done
        self._artifact: UUID | None = None

    def __enter__(self) -> "ProgressBar":
        if FlowRunContext.get() is not None:
            self._artifact = _told(
                create_progress_artifact,
                progress=self._percent,
                key=_key(self.flow, "units"),
                description=f"{self.total} units of work",
            )
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def advance(self) -> None:
        self.done += 1
        if self._artifact is not None:
            _told(update_progress_artifact, artifact_id=self._artifact, progress=self._percent)

    @property
    def _percent(self) -> float:
        return 100.0 * self.done / self.total


def tables_artifact(flow: str, root: Path, group: str) -> None:
    """Show the tables of a root as an artifact of the flow run.

    Args:
        flow: its name.
        root: folder with measurements.
        group: `iss` or `protocol`.
    """
    if FlowRunContext.get() is None:
        return
    try:
        markdown = markdown_tables(root, group)
    except Exception as error:  # of records that this run has not made, or of their tables; what is measured stays
        click.echo(f"note: no tables for Prefect ({type(error).__name__}: {error})", err=True)
        return
    _told(create_markdown_artifact, markdown=markdown, key=_key(flow, "tables"), description=str(root))


def markdown_tables(root: Path, group: str) -> str:
    """The tables of a group as Markdown.

    Raises:
        InputError: a malformed record.
    """
    from sparse_control.records.read import read_records
    from sparse_control.tables.registry import TABLES
    from sparse_control.tables.shown import text_of

    names = [table.name for table in TABLES.values() if table.group == group]
    texts = text_of(names, read_records(root, project_folder()))
    # a fence longer than any run of backticks inside
    return "\n\n".join(f"````\n{text.replace('````', '```')}\n````" for text in texts) or "no tables"
