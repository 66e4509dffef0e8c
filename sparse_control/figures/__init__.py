"""Figures, drawn from saved records alone."""

from sparse_control.figures.figure import Figure, image, save
from sparse_control.figures.rank import RANK
from sparse_control.figures.six_axis import COST, DOSE, FEEDBACK, SUPPORT

__all__ = ["FIGURES", "Figure", "image", "save"]

FIGURES = {figure.name: figure for figure in (DOSE, COST, FEEDBACK, SUPPORT, RANK)}
