"""Records in, data frames out: every table of the paper with unrounded values, and how each is shown.

A table is one declaration (`table.Table`) in the module of its family; `TABLES` has them in order. `columns` is the
only place that rounds, `shown` makes a table strings, and `render` writes the strings as LaTeX, CSV and HTML.
"""

from sparse_control.tables.parts import all_tables
from sparse_control.tables.registry import TABLES

__all__ = ["TABLES", "all_tables"]
