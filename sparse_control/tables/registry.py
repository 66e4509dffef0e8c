"""Every table, in the order of the paper."""

from sparse_control.tables import (
    alternatives,
    controls,
    cost,
    estimator,
    findings,
    nulls,
    official,
    protocol,
    published,
    setup,
    summary,
    transfer,
    uncertainty,
)
from sparse_control.tables.table import Table

MODULES = (
    *(setup, official, uncertainty, estimator, alternatives, nulls, transfer, findings),
    *(protocol, summary, controls, cost, published),
)
TABLES: dict[str, Table] = {table.name: table for module in MODULES for table in module.TABLES}
