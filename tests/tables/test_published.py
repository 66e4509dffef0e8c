"""Every row of the source document's axis tables, retyped here line by line, is in paper/published.yaml."""

from pathlib import Path

import pytest

from sparse_control.records.published import read_published

PROJECT = Path(__file__).parent.parent.parent

# task: cells in the order of the columns below; None is an em-dash or an empty cell
SOURCE = {
    "reachability": (
        [("P", "rel_tar_mean"), ("P", "passes_0.40"), ("F", "rel_tar_mean"), ("F", "passes_0.40")],
        """
        ioi 0.294 10/10 - -
        mcqa_humanities 0.188 8/8 1.012 0/8
        mcqa_stem 0.169 8/8 1.031 0/8
        sentiment 0.171 8/8 0.746 0/8
        refusal 0.799 0/8 0.801 0/8
        """,
    ),
    "signed_reversal": (
        [("P", "ratio_mean"), ("P", "passes"), ("F", "ratio_mean"), ("F", "passes")],
        """
        ioi 2.57 10/10 - -
        mcqa_humanities 3.78 8/8 0.143 0/8
        mcqa_stem 4.80 8/8 0.152 0/8
        sentiment 8.51 8/8 0.997 0/8
        refusal 0.112 0/8 0.125 0/8
        """,
    ),
    "dose_response": (
        [("P", "ordered"), ("P", "reversed"), ("F", "ordered"), ("F", "reversed")],
        """
        mcqa_humanities 5/8 0/8 5/8 3/8
        mcqa_stem 6/8 0/8 4/8 4/8
        refusal 8/8 0/8 8/8 0/8
        """,
    ),
    "feedback": (
        [("P", "hits"), ("P", "mae"), ("F", "hits"), ("F", "mae")],
        """
        ioi 24/24 0.135 - -
        mcqa_humanities 46/48 0.238 8/48 1.924
        mcqa_stem 47/48 0.132 7/48 2.449
        refusal 21/40 - 21/40 -
        sentiment - - - -
        """,
    ),
    "preservation": (
        [("P", "median"), ("P", "mean"), ("P", "seed_mean_passes"), ("P", "every_prompt_passes")],
        """
        mcqa_humanities 0.050 0.110 0/8 0/8
        mcqa_stem 0.060 0.128 0/8 0/8
        sentiment 0.0096 0.011 0/8 0/8
        refusal 0.0021 0.0087 0/8 0/8
        refusal/driver_omp 0.00017 0.0011 4/8 2/8
        """,
    ),
    "reuse": (
        [("P", "refit_mean"), ("P", "frozen_mean")],
        """
        mcqa_humanities 0.995 0.033
        mcqa_stem 0.944 0.038
        ioi 0.449 0.298
        sentiment 1.03 -
        """,
    ),
}


@pytest.mark.parametrize("table", SOURCE)
def test_every_figure_of_the_table(table):
    columns, text = SOURCE[table]
    expected = set()
    for line in text.strip().splitlines():
        task, *cells = line.split()
        task, _, selector = task.partition("/")
        selector = selector or ("driver_omp" if (table, task) == ("feedback", "ioi") else "coverage_driver")
        expected |= {
            (task, selector, condition, statistic, cell)
            for (condition, statistic), cell in zip(columns, cells, strict=True)
            if cell != "-"
        }
    content = read_published(PROJECT)
    found = {
        (row["task"], row.get("selector", content["selector"]), row["condition"], row["statistic"], row["printed"])
        for row in content["tables"][table]
        if "printed" in row
    }
    assert found == expected


def test_summary_repeats_the_axis_tables():
    content = read_published(PROJECT)
    figures = {(row["task"], row["statistic"], row["printed"]) for name in SOURCE for row in content["tables"][name]
               if "printed" in row}  # fmt: skip
    for row in content["tables"]["summary"]:
        if "printed" in row:
            assert (row["task"], row["statistic"], row["printed"]) in figures
