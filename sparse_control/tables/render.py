"""Tables to LaTeX, CSV, HTML and terminal text. Every string a template prints goes through one escaping function."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from markupsafe import Markup, escape

from sparse_control.errors import InputError
from sparse_control.files import remove_unfinished, sha256_file, write_text
from sparse_control.project import project_folder
from sparse_control.records import manifest
from sparse_control.records.base import printable
from sparse_control.records.listing import check_below
from sparse_control.records.lock import root_lock
from sparse_control.records.paths import TABLES, paper_folder
from sparse_control.tables import Records, all_tables, read_records
from sparse_control.tables.common import cell_text
from sparse_control.tables.layout import PARTS, Shown, headline, shown
from sparse_control.tables.values import Value, read_values, shown_values

_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    "[": "{[}", "]": "{]}", "*": "{*}",       # after a row break, and in a caption, these delimit arguments
    "—": "---", "–": "--", "−": r"\ensuremath{-}", "±": r"\ensuremath{\pm}", "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}", "×": r"\ensuremath{\times}", "ρ": r"\ensuremath{\rho}", "λ": r"\ensuremath{\lambda}",
    "Δ": r"\ensuremath{\Delta}", "Σ": r"\ensuremath{\Sigma}",
    "α": r"\ensuremath{\alpha}", "β": r"\ensuremath{\beta}", "γ": r"\ensuremath{\gamma}",
    "ε": r"\ensuremath{\varepsilon}", "ℓ": r"\ensuremath{\ell}", "→": r"\ensuremath{\to}",
}  # fmt: skip


def escape_tex(value: object) -> str:
    """Any value as LaTeX that prints it: special characters escaped, what the fonts lack as its code point."""
    text = re.sub(r"([-,'])(?=\1)", "\\1\0", str(value))  # doubled they are ligatures; the mark keeps them apart
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character == "\0":
        return "{}"
    if character in _TEX:
        return _TEX[character]
    if " " <= character <= "~" or ("À" <= character <= "ÿ" and character not in "×÷"):
        return character
    if unicodedata.category(character) in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    return f"{{[}}U+{ord(character):04X}{{]}}"


# symbols of captions and headings, and powers of ten, as they stand in the text of a table
_SYMBOL = re.compile(r"\b(E|C)_(F|vec|ISS)\b|\b(Rel)_(tar)\b|(?<=\d)e([−+]\d+)\b")


def typeset_tex(value: object) -> str:
    """`escape_tex`, with the symbols of the tables as mathematics."""

    def symbol(match: re.Match[str]) -> str:
        if match[5]:
            return rf"\ensuremath{{\cdot10^{{{match[5].replace('−', '-').lstrip('+')}}}}}"
        letter, index = (match[1], match[2]) if match[1] else (r"\mathrm{Rel}", match[4])
        index = index if index == "F" else rf"\mathrm{{{index}}}"
        return rf"\ensuremath{{{letter}_{{{index}}}}}"

    return _around_symbols(str(value), escape_tex, symbol)


def typeset_html(value: object) -> Markup:
    """Escaped text, with the symbols of the tables as mathematics."""

    def symbol(match: re.Match[str]) -> str:
        if match[5]:
            return f"·10<sup>{match[5].lstrip('+')}</sup>"
        letter, index = (match[1], match[2]) if match[1] else (match[3], match[4])
        return f"<i>{letter}</i><sub>{index}</sub>"

    return Markup(_around_symbols(str(value), lambda text: str(escape(text)), symbol))


def _around_symbols(text: str, plain: Callable[[str], str], symbol: Callable[[re.Match[str]], str]) -> str:
    parts, end = [], 0
    for match in _SYMBOL.finditer(text):
        parts += [plain(text[end : match.start()]), symbol(match)]
        end = match.end()
    return "".join([*parts, plain(text[end:])])


def _environment(folder: Path, *, html: bool) -> Environment:
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
    """Every file of `paper/tables/` by its name: `{table}.tex`, `{table}.csv`, `index.html` and `values.tex`.

    Those of a sub-root stand in a folder of their own, with a page of their own.

    Args:
        records: what the tables are made of.
        project: the project folder, whose `paper/templates/` is used.
        frames: the tables, where the caller has them already.

    Raises:
        InputError: a template is missing or broken.
    """
    frames = all_tables(records) if frames is None else frames
    pages: dict[str, list[Shown]] = {}  # by folder; the root's own is first
    for name, frame in frames.items():
        pages.setdefault(name.rpartition("/")[0], []).append(shown(name, frame, records))
    folder = Path(project, "paper", "templates")
    files = {}
    try:
        tex = _environment(folder, html=False).get_template("table.tex.j2")
        html = _environment(folder, html=True).get_template("index.html.j2")
        for place, tables in pages.items():
            files |= {f"{table.name}.tex": tex.render(table=table) for table in tables}
            others = [{"title": PARTS[part][0], "page": f"{part}/index.html"} for part in pages if part and not place]
            title = headline(records) + (f" ({PARTS[place][0]})" if place else "")
            page = html.render(tables=tables, headline=title, others=others)
            files["/".join(filter(None, (place, "index.html")))] = page
    except TemplateError as error:
        raise InputError(f"{folder}: {type(error).__name__}: {error}; restore the templates from git") from error
    files["values.tex"] = values_tex(read_values(project), frames)
    return files | {f"{name}.csv": csv_text(frame) for name, frame in frames.items()}


def values_tex(values: Sequence[Value], frames: Mapping[str, pd.DataFrame]) -> str:
    """Definitions of what `\\val{name}` prints."""
    lines = ["% The numbers of the prose, each a cell of a table; rendered from paper/values.yaml."]
    for name, text in shown_values(values, frames).items():
        lines.append(rf"\expandafter\def\csname value@{name}\endcsname{{{typeset_tex(text)}}}")
    return "\n".join(lines) + "\n"


def write_tables(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write rendered files into `folder`; a file that already has the same bytes is left alone.

    Raises:
        InputError: a link leads out of `folder`, or a file cannot be written.
    """
    paths = [Path(folder, name) for name in files]
    for path in paths:
        check_below(folder, path)
    for path, text in zip(paths, files.values(), strict=True):
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text(path, text)
    return paths


def reproduce(root: Path, out: Path | None = None, *, wait: bool = False) -> list[Path]:
    """Recompute every table of `root` from its saved measurements and render it.

    Args:
        root: the folder measured into.
        out: where the files go; `tables/` of the root's paper folder by default, whose manifest is then renewed.
        wait: for another command that writes into `root` to end, instead of refusing; tables elsewhere wait for none.

    Returns:
        the files.

    Raises:
        InputError: no measurements, a broken record or template, files that cannot be written, links that lead out of
            the folders, or another command that is writing into `root`.
    """
    root, project = Path(root), project_folder()
    manifest.check_root(root)
    paper = paper_folder(root, project)
    folder = paper / TABLES if out is None else Path(out)
    if folder.resolve() != (paper / TABLES).resolve():
        return write_tables(render(read_records(root, project), project), folder)
    with root_lock(root, wait=wait):
        remove_unfinished(paper)  # the paper of the committed root is not below it
        files = render(read_records(root, project), project)
        check_below(paper.parent, folder)
        paths = write_tables(files, folder)
        names = {path.relative_to(paper).as_posix() for path in paths}
        _remove_stale(paper, names)
        manifest.write_rendered_manifest(paper, names)
    return paths


def _remove_stale(paper: Path, made: set[str]) -> None:
    """Remove tables of earlier records: those the manifest lists, unchanged since, that no table is any more."""
    listed = (manifest.read_rendered_manifest(paper) or manifest.RenderedManifest()).files
    for name, sha256 in listed.items():
        path = paper / name
        check_below(paper, path)
        if name not in made and path.is_file() and sha256_file(path) == sha256:
            path.unlink()


def plain_text(table: Shown) -> str:
    """A table for the terminal: caption, aligned columns."""
    headings = tuple(heading.replace("\n", " ") for heading in table.headings)
    grid = [headings, *(tuple(map(printable, row)) for row in table.rows)]
    widths = [max(len(row[index]) for row in grid) for index in range(len(headings))]
    lines = [
        "  ".join(
            cell.rjust(width) if align == "r" else cell.ljust(width)
            for cell, width, align in zip(row, widths, table.aligns, strict=True)
        ).rstrip()
        for row in grid
    ]
    lines.insert(1, "-" * len("  ".join("-" * width for width in widths)))
    if not table.rows:
        lines.append("(no records)")
    return "\n".join([f"{table.name}: {table.title}. {printable(table.caption)}", "", *lines]) + "\n"
