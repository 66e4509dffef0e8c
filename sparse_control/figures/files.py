"""The files of figures: the numbers behind each as CSV, and its pictures, which name the numbers they were drawn of."""

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pandas as pd
from jinja2 import TemplateError

from sparse_control.errors import InputError
from sparse_control.figures import FIGURES
from sparse_control.figures.figure import Figure, image
from sparse_control.records.read import Records
from sparse_control.tables.render import environment

PICTURES = (".pdf", ".svg")  # for print, and for the page


def figure_frames(records: Records) -> dict[str, pd.DataFrame]:
    """The numbers behind every figure that has any, by its name.

    Raises:
        InputError: values in the records that cannot be drawn.
    """
    frames = {name: figure.frame(records) for name, figure in FIGURES.items()}
    return {name: frame for name, frame in frames.items() if len(frame)}


def figure_tex(names: Iterable[str], project: Path) -> dict[str, str]:
    """`{figure}.tex` -> its picture with its caption, for the paper.

    Raises:
        InputError: the template is missing or broken.
    """
    folder = Path(project, "paper", "templates")
    try:
        template = environment(folder, html=False).get_template("figure.tex.j2")
        return {f"{name}.tex": template.render(_printed(FIGURES[name])) for name in names}
    except TemplateError as error:
        raise InputError(f"{folder}: {type(error).__name__}: {error}; restore the templates from git") from error


def _printed(figure: Figure) -> dict[str, str]:
    label = figure.name.replace("_", "")
    return {"name": figure.name, "title": figure.title, "caption": figure.caption, "label": label}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@cache
def _drawing_sha256() -> str:
    """Hash of the code that draws: the files of this folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def origin_of(csv: str) -> str:
    """What a picture says of itself: one hash over the numbers behind it and the code that draws."""
    return "sha256:" + hashlib.sha256((_drawing_sha256() + csv).encode()).hexdigest()


def is_drawn_of(path: Path, csv: str) -> bool:
    """Whether a picture is there and was drawn of these numbers by this code."""
    return path.is_file() and origin_of(csv).encode() in path.read_bytes()


def draw(name: str, frame: pd.DataFrame, csv: str, suffixes: tuple[str, ...] = PICTURES) -> Mapping[str, bytes]:
    """`{figure}.pdf` and the like -> its bytes.

    Args:
        name: of the figure.
        frame: the numbers behind it.
        csv: the same, as its file has them.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    canvas = FIGURES[name].canvas(frame)
    return {f"{name}{suffix}": image(canvas, suffix, origin_of(csv)) for suffix in suffixes}
