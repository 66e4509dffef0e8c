"""Tables in docs/ that are written by code."""

from tests.reliability.cluster_table import table
from tests.reliability.conftest import PROJECT


def test_sizes_of_the_cluster_page_come_from_the_cost_model():
    page = (PROJECT / "docs" / "cluster.md").read_text()
    assert table() in page, "write it anew: python -m tests.reliability.cluster_table"
