"""Everything of the paper that is made from saved measurements: tables, and figures with the numbers behind them."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from sparse_control.figures.files import PICTURES, can_draw, draw, figure_frames, figure_tex, is_drawn_of
from sparse_control.files import remove_unfinished, sha256_file, write_bytes
from sparse_control.project import project_folder
from sparse_control.records import manifest
from sparse_control.records.listing import check_below
from sparse_control.records.lock import root_lock
from sparse_control.records.paths import FIGURES, TABLES, paper_folder
from sparse_control.records.read import Records, read_records
from sparse_control.tables.render import csv_text, render


def reproduce(root: Path, out: Path | None = None, *, wait: bool = False, pictures: bool = True) -> list[Path]:
    """Recompute every table and figure of `root` from its saved measurements and render it.

    A picture that was drawn of the same numbers by the same code is left alone; without matplotlib none is drawn, and
    the numbers behind the figures are there all the same.

    Args:
        root: the folder measured into.
        out: where the tables go, and `figures/` below it; by default `tables/` and `figures/` of the root's paper
            folder, whose manifest is then renewed.
        wait: for another command that writes into `root` to end, instead of refusing; files elsewhere wait for none.
        pictures: whether figures are drawn.

    Returns:
        the files.

    Raises:
        InputError: no measurements, a broken record or template, files that cannot be written, links that lead out of
            the folders, or another command that is writing into `root`.
    """
    root, project = Path(root), project_folder()
    manifest.check_root(root)
    paper = paper_folder(root, project)
    tables = paper / TABLES if out is None else Path(out)
    if tables.resolve() != (paper / TABLES).resolve():
        return _write(read_records(root, project), project, tables, tables / FIGURES, pictures)
    with root_lock(root, wait=wait):
        remove_unfinished(paper)  # the paper of the committed root is not below it
        records = read_records(root, project)
        for folder in (tables, figures := paper / FIGURES):
            check_below(paper.parent, folder)
        paths = _write(records, project, tables, figures, pictures)
        names = {path.relative_to(paper).as_posix() for path in paths}
        _remove_stale(paper, names)
        manifest.write_rendered_manifest(paper, names)
    return paths


def _write(records: Records, project: Path, tables: Path, figures: Path, pictures: bool) -> list[Path]:
    frames = figure_frames(records)
    data = {f"{name}.csv": csv_text(frame) for name, frame in frames.items()}
    texts = data | figure_tex(frames, project)
    paths = write_files(render(records, project), tables) + write_files(texts, figures)
    for name, frame in frames.items() if pictures else ():
        paths += _drawn(name, frame, data[f"{name}.csv"], figures)
    return paths


def _drawn(name: str, frame: pd.DataFrame, csv: str, folder: Path) -> list[Path]:
    """The pictures of a figure, drawn where they are missing or of other numbers; none of those without matplotlib."""
    paths = [folder / f"{name}{suffix}" for suffix in PICTURES]
    if all(is_drawn_of(path, csv) for path in paths):
        return paths
    return write_files(draw(name, frame, csv), folder) if can_draw() else []


def write_files(files: Mapping[str, str | bytes], folder: Path) -> list[Path]:
    """Write rendered files into `folder`; a file that already has the same bytes is left alone.

    Raises:
        InputError: a link leads out of `folder`, or a file cannot be written.
    """
    paths = [Path(folder, name) for name in files]
    for path in paths:
        check_below(folder, path)
    for path, content in zip(paths, files.values(), strict=True):
        content = content.encode() if isinstance(content, str) else content
        if not path.is_file() or path.read_bytes() != content:
            write_bytes(path, content)
    return paths


def undrawn(paths: list[Path]) -> list[str]:
    """Figures of which `reproduce` wrote the numbers and no picture."""
    figures = [path for path in paths if path.parent.name == FIGURES]
    return sorted({path.stem for path in figures} - {path.stem for path in figures if path.suffix in PICTURES})


def _remove_stale(paper: Path, made: set[str]) -> None:
    """Remove files of earlier records: those the manifest lists, unchanged since, that nothing makes any more."""
    listed = (manifest.read_rendered_manifest(paper) or manifest.RenderedManifest()).files
    for name, sha256 in listed.items():
        path = paper / name
        check_below(paper, path)
        if name not in made and path.is_file() and sha256_file(path) == sha256:
            path.unlink()
