"""From saved measurements to tables: typed records, data frames, LaTeX and HTML, and the checks over all of them."""
