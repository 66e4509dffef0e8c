"""Every table as LaTeX, CSV and HTML."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from sparse_control.errors import InputError
from sparse_control.records.read import Records
from sparse_control.tables.metrics import metrics_files
from sparse_control.tables.parts import all_tables, parts
from sparse_control.tables.shown import headline, shown
from sparse_control.tables.table import cell_text
from sparse_control.tables.terminal import Shown
from sparse_control.tables.typeset import typeset_html, typeset_tex
from sparse_control.tables.values import Value, read_values, shown_values


def environment(folder: Path, *, html: bool) -> Environment:
    """Jinja for the templates of a folder; what LaTeX or HTML would take for markup is escaped in what they print."""
    common = {"loader": FileSystemLoader(folder), "undefined": StrictUndefined, "keep_trailing_newline": True,
              "trim_blocks": True, "lstrip_blocks": True}  # fmt: skip
    if html:
        environment = Environment(autoescape=True, **common)
        environment.filters["typeset"] = typeset_html
        return environment
    return Environment(
        block_start_string="((*", block_end_string="*))", variable_start_string="(((", variable_end_string=")))",
        comment_start_string="((=", comment_end_string="=))", finalize=typeset_tex, autoescape=False, **common,
    )  # fmt: skip


def csv_text(frame: pd.DataFrame) -> str:
    """A table with its unrounded values: repr of floats, empty cells for None, "\\n" at line ends."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows([cell_text(value) for value in row] for row in frame.itertuples(index=False, name=None))
    return out.getvalue()


def render(records: Records, project: Path, frames: Mapping[str, pd.DataFrame] | None = None) -> dict[str, str]:
    """Every file of `paper/tables/` by its name: `{table}.tex`, `{table}.csv`, `index.html`, `values.tex`
    and `metrics/{model}.json`.

    Those of a null are in a folder of their own, with a page of their own.

    Args:
        records: what the tables are made of.
        project: the project folder, whose `paper/templates/` is used.
        frames: the tables, where the caller has them already.

    Raises:
        InputError: a template is missing or broken.
    """
    frames = all_tables(records) if frames is None else frames
    made = {part: [table for table in part.tables if part.path(table.name) in frames] for part in parts(records)}
    others = [{"title": part.title, "page": part.path("index.html")} for part in made if part.folder and made[part]]
    folder = Path(project, "paper", "templates")
    files = {}
    try:
        tex = environment(folder, html=False).get_template("table.tex.j2")
        html = environment(folder, html=True).get_template("index.html.j2")
        for part, tables in made.items():
            ready = [shown(table, frames[part.path(table.name)], part) for table in tables]
            files |= {part.path(f"{table.name}.tex"): tex.render(table=table) for table in ready}
            if ready:
                page = html.render(
                    tables=ready, headline=headline(part), others=[] if part.folder else others, recomputed=True
                )
                files[part.path("index.html")] = page
    except TemplateError as error:
        raise InputError(f"{folder}: {type(error).__name__}: {error}; restore the templates from git") from error
    files["values.tex"] = values_tex(read_values(project), frames)
    files |= metrics_files(records, frames)
    return files | {f"{name}.csv": csv_text(frame) for name, frame in frames.items()}


def render_one(table: Shown, project: Path, *, html: bool) -> str:
    """One table as LaTeX, or as an HTML page of its own.

    Raises:
        InputError: a template is missing or broken.
    """
    folder = Path(project, "paper", "templates")
    try:
        if html:
            page = environment(folder, html=True).get_template("index.html.j2")
            return page.render(tables=[table], headline=table.title, others=[], recomputed=False)
        return environment(folder, html=False).get_template("table.tex.j2").render(table=table)
    except TemplateError as error:
        raise InputError(f"{folder}: {type(error).__name__}: {error}; restore the templates from git") from error


def values_tex(values: Sequence[Value], frames: Mapping[str, pd.DataFrame]) -> str:
    """Definitions of what `\\val{name}` prints."""
    lines = ["% The numbers of the prose, each a cell of a table; rendered from paper/values.yaml."]
    for name, text in shown_values(values, frames).items():
        lines.append(rf"\expandafter\def\csname value@{name}\endcsname{{{typeset_tex(text)}}}")
    return "\n".join(lines) + "\n"
