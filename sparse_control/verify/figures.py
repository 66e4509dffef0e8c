"""Figures: the numbers behind each recomputed, each picture drawn of those numbers, and drawn again."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd

from sparse_control.figures.files import PICTURES, can_draw, draw, figure_frames, figure_tex, is_drawn_of
from sparse_control.files import read_text
from sparse_control.records.paths import FIGURES, paper_folder
from sparse_control.records.read import Records
from sparse_control.verify.cells import cell_check, text_check, unmade_checks
from sparse_control.verify.check import Check, attempt


def figure_checks(root: Path, project: Path, records: Records, missing: Collection[str]) -> Iterator[Check]:
    """The numbers cell by cell, what a picture says it was drawn of, and whether it can be drawn.

    Args:
        root: the folder measured into.
        project: the project folder, of templates.
        records: that were read of `root`.
        missing: listed files that are not there, relative to `root`; without them no figure is whole.
    """
    if missing:
        yield Check("figures", "skip", f"not recomputed; missing: {', '.join(sorted(missing))}")
        return
    frames, check = attempt("figures", lambda: figure_frames(records))
    texts, unrendered = attempt("rendered figures", lambda: figure_tex(frames or (), project))
    if frames is None or texts is None:
        yield unrendered if frames is not None else check
        return
    paper = paper_folder(root, project)
    for name, text in texts.items():
        yield text_check(paper, paper / FIGURES / name, text)
    for name, frame in frames.items():
        path = paper / FIGURES / f"{name}.csv"
        yield cell_check(paper, path, frame)
        if path.is_file():
            yield from _pictures(paper, path, frame)
    made = [f"{name}{suffix}" for name in frames for suffix in (".csv", ".tex", *PICTURES)]
    yield from unmade_checks(paper, FIGURES, made)


def _pictures(paper: Path, path: Path, frame: pd.DataFrame) -> Iterator[Check]:
    """Those of the numbers at `path`; `reproduce` without matplotlib draws none."""
    csv = read_text(path)
    pictures = [path.with_suffix(suffix) for suffix in PICTURES]
    if not any(picture.is_file() for picture in pictures):
        return
    for picture in pictures:
        drawn = is_drawn_of(picture, csv)
        detail = "" if drawn else f"it was not drawn of {path.name} by this code; run reproduce"
        yield Check(f"picture {picture.relative_to(paper.parent).as_posix()}", "ok" if drawn else "FAIL", detail)
    title = f"drawing of {path.stem}"
    if can_draw():
        yield attempt(title, lambda: draw(path.stem, frame, csv, (".svg",)))[1]
    else:
        yield Check(title, "skip", "matplotlib is not installed")
