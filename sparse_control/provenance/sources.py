"""Which measured files each table is made of, as its declaration says."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from sparse_control.records.paths import NULLS
from sparse_control.tables.registry import TABLES


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
    patterns = {pattern for one in tables for pattern in one.files(null)}
    return [file for file in files if any(fnmatchcase(file.partition("/")[2], pattern) for pattern in patterns)]
