"""A figure is one declaration: the numbers behind it, as rows, and how they are drawn (matplotlib, extra `plots`).

Colours are the eight of Okabe and Ito, which the colour-blind tell apart; lines and markers tell the same in grey.
"""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from sparse_control.errors import InputError
from sparse_control.files import write_bytes
from sparse_control.records.read import ModelRecords, Records
from sparse_control.tables.columns import Row
from sparse_control.tables.table import data_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLUMN, PAGE = 3.4, 6.8  # inches: the width of one column of a paper, and of a page
PANEL_HEIGHT, LEGEND_ROW = 2.2, 0.16  # inches
SUFFIXES = (".pdf", ".svg", ".png")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the paper.

    Attributes:
        name: of its files, and of `show --plot`.
        title: as printed.
        caption: what the axes and marks are.
        section: of the source document.
        reads: the records it is made of, as those of a table.
        fields: columns of its .csv; the model comes first.
        rows: the numbers behind it, of one model.
        across: those of all models together, `model` among their fields; given instead of `rows`.
        draw: (rows of every model) -> a matplotlib figure.
    """

    name: str
    title: str
    caption: str
    section: str
    reads: tuple[str, ...]
    fields: tuple[str, ...]
    draw: Callable[[pd.DataFrame], "Canvas"]
    rows: Callable[[ModelRecords], Iterable[Row]] | None = None
    across: Callable[[Records], Iterable[Row]] | None = None

    def frame(self, records: Records) -> pd.DataFrame:
        """The numbers behind the figure, unrounded, over all models."""
        if self.across is not None:
            return data_frame(self.fields, self.across(records))
        rows = (row | {"model": model.name} for model in records.models for row in self.rows(model))
        return data_frame(("model", *self.fields), rows)

    def canvas(self, frame: pd.DataFrame) -> "Canvas":
        """The figure drawn from its numbers, as a matplotlib figure.

        Raises:
            InputError: there are no numbers to draw.
            ModuleNotFoundError: matplotlib is not installed.
        """
        if not len(frame):
            raise InputError(f"figure {self.name}: the records hold nothing to draw; it reads {', '.join(self.reads)}")
        from matplotlib import rc_context

        with rc_context(STYLE):
            return self.draw(frame)


def panels(titles: list[str], *, sharey: bool = False) -> tuple["Canvas", list["Axes"]]:
    """An empty figure with a panel per title: one column wide for one panel, else a page, two or three in a row."""
    from matplotlib.figure import Figure as Canvas

    per_row = 3 if len(titles) == 3 or len(titles) > 4 else min(2, len(titles))
    n_rows = -(-len(titles) // per_row)
    canvas = Canvas(figsize=(COLUMN if per_row == 1 else PAGE, PANEL_HEIGHT * n_rows), layout="constrained")
    axes = canvas.subplots(n_rows, per_row, squeeze=False, sharey=sharey).flatten().tolist()
    for title, one in zip(titles, axes, strict=False):
        one.set_title(title)
    for empty in axes[len(titles) :]:
        empty.set_visible(False)
    return canvas, axes[: len(titles)]


def legend_below(canvas: "Canvas", axes: list["Axes"], columns: int, title: str | None = None) -> None:
    """One legend for all panels, below them."""
    handles = {text: mark for axis in axes for mark, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    if handles:
        texts, marks = handles.keys(), handles.values()
        rows = -(-len(handles) // columns) + (title is not None)
        canvas.set_figheight(canvas.get_figheight() + LEGEND_ROW * rows)
        canvas.legend(marks, texts, loc="outside lower center", ncols=columns, frameon=False, title=title)


STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.0,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "path",
    "svg.hashsalt": "sparse_control",  # the same figure gives the same bytes
}


def style(index: int) -> dict[str, Any]:
    """Colour, line and marker of the index-th curve."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def image(canvas: "Canvas", suffix: str, origin: str = "") -> bytes:
    """The bytes of a drawn figure; the same figure gives the same bytes.

    Args:
        suffix: of the format.
        origin: what a .pdf or .svg says of where it comes from.

    Raises:
        InputError: a format that is not written.
    """
    from matplotlib import rc_context

    if suffix not in SUFFIXES:
        raise InputError(f"{suffix or 'no ending'}: figures are written as {', '.join(SUFFIXES)}")
    dateless = {
        ".pdf": {"CreationDate": None, "ModDate": None, "Keywords": origin},
        ".svg": {"Date": None, "Identifier": origin},
        ".png": {"Software": None},
    }
    buffer = io.BytesIO()
    with rc_context(STYLE):
        canvas.savefig(buffer, format=suffix[1:], dpi=200, metadata=dateless[suffix])
    return buffer.getvalue()


def save(canvas: "Canvas", path: Path) -> Path:
    """Write a drawn figure as .pdf, .svg or .png.

    Raises:
        InputError: another ending, or a file that cannot be written.
    """
    write_bytes(Path(path), image(canvas, Path(path).suffix))
    return Path(path)
