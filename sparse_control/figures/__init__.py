"""Figures, drawn from saved records alone."""

from sparse_control.figures.comparisons import DIVERGENCE, PUBLISHED_BESIDE_OURS, SELECTORS
from sparse_control.figures.figure import Figure, image, save
from sparse_control.figures.iss import CORPUS, FACTS, LAM_REL, LAYERS
from sparse_control.figures.rank import RANK
from sparse_control.figures.six_axis import COST, DOSE, FEEDBACK, SUPPORT

__all__ = ["FIGURES", "Figure", "image", "save"]

FIGURES = {
    figure.name: figure
    for figure in (
        *(LAYERS, RANK, CORPUS, LAM_REL, FACTS),
        *(DOSE, COST, SELECTORS, SUPPORT, FEEDBACK, DIVERGENCE, PUBLISHED_BESIDE_OURS),
    )
}
