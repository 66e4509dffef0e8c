"""Which measured files each table and figure is made of, as its declaration says."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from sparse_control.figures import FIGURES
from sparse_control.records.paths import NULLS
from sparse_control.tables.registry import TABLES
from sparse_control.tables.table import files_read


def sources_of(name: str, files: Iterable[str]) -> list[str]:
    """Those of `files`, by path relative to the root, that a table is made of.

    Args:
        name: path of the table's files below `paper/tables`, without their suffix; one that is no table, such as that
            of a page, stands for all that are beside it.
        files: measured ones.
    """
    folder, _, table = name.rpartition("/")
    null = folder.removeprefix(f"{NULLS}/") if folder.startswith(f"{NULLS}/") else "none"
    tables = [TABLES[table]] if table in TABLES else TABLES.values()
    return _matching(files, {pattern for one in tables for pattern in one.files(null)})


def sources_of_figure(name: str, files: Iterable[str]) -> list[str]:
    """Those of `files` that a figure is made of; none where there is no such figure."""
    return _matching(files, set(files_read(FIGURES[name].reads)) if name in FIGURES else ())


def _matching(files: Iterable[str], patterns: Collection[str]) -> list[str]:
    return [file for file in files if any(fnmatchcase(file.partition("/")[2], pattern) for pattern in patterns)]
