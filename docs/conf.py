"""Sphinx: the pages of this folder in Markdown (MyST), the reference from docstrings, formulas as MathML.

Nothing is fetched, at build or by a reader: fonts are the system's, search runs on the page, and browsers draw MathML.
"""

import re
import sys
from pathlib import Path

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sparse_control import __version__

project = "sparse_control"
author = "the authors of sparse_control"
copyright = "the authors of sparse_control, Apache-2.0"
version = release = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*"), ("py:exc", ".*")]  # types of other libraries in signatures

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "code"  # single backticks in docstrings
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Returns", "Returns, Raises", "Raises, Returns", "Args, Raises"]  # sentences, no types

html_theme = "furo"
html_title = f"sparse_control {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Docstrings as plain text, and formulas as MathML, which docutils makes and browsers draw without a script."""
    app.connect("autodoc-process-docstring", _plain_text, priority=400)  # before napoleon reads them
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_displayed_formula, None))


def _inline_formula(writer, node) -> None:
    writer.body.append(_upright_bars(tex2mathml(node.astext())))
    raise SkipNode


def _displayed_formula(writer, node) -> None:
    formula = _upright_bars(tex2mathml(node.astext(), as_block=True))
    writer.body.append(f'<div class="formula">{formula}</div>')
    raise SkipNode


def _upright_bars(mathml: str) -> str:
    """Bars of norms as high as a letter; browsers stretch them over a whole row otherwise."""
    return re.sub(r"(<mo\b[^>]*)>(?=[|‖]</mo>)", r'\1 stretchy="false">', mathml)


def _plain_text(app, what, name, obj, options, lines) -> None:
    """Bars and stars outside of backticks are norms and products, and no markup."""
    text = re.sub(r"(`[^`]*`)|([|*])", lambda found: found[1] or "\\" + found[2], "\n".join(lines))
    lines[:] = text.split("\n")
