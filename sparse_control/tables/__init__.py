"""Records in, data frames out: every table of the paper with unrounded values, and how each is shown.

A table is one declaration (`table.Table`) in the module of its family; `registry.TABLES` has them in order, and
`parts.all_tables` computes them. `columns` is the only place that rounds, `shown` makes a table strings, and `render`
writes the strings as LaTeX, CSV and HTML. The package itself imports none of them, so that `score` starts at once.
"""
