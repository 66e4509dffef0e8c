"""How the five sources of uncertainty are shown."""

from sparse_control.tables.layout.columns import (
    EMPTY,
    Column,
    Layout,
    Row,
    decimal,
    fixed,
    interval,
    label,
    significant,
)


def _seeds(row: Row) -> str:
    count = "" if row["seeds"] is None else f" ({row['seeds']})"
    return significant(row["seed_iss_sd"], 2) + count


def _two_digits(name: str, heading: str) -> Column:
    return Column(heading, lambda row: significant(row[name], 2))


def _corpus(row: Row) -> str:
    if row["corpus_iss_difference"] is None:
        return EMPTY
    return significant(row["corpus_iss_difference"], 2) + ("" if row["corpus_n"] is None else f" ({row['corpus_n']})")


def _range(row: Row) -> str:
    if row["relation_min"] is None:
        return EMPTY
    return f"{fixed(row['relation_min'], 2)} to {fixed(row['relation_max'], 2)}"


LAYOUTS: dict[str, Layout] = {
    "uncertainty": Layout(
        title="Five sources of uncertainty, never mixed",
        caption=(
            "Corpus: |ISS(n) − ISS(2n)| (n) and the difference between two disjoint halves of the corpus. Rank: "
            "|ISS(2k) − ISS(k)| and E_ISS against the exact finite-corpus reference. Sketch seeds: sample sd of ISS "
            "(number of seeds). These are of calibration ISS; over the validated layers they are means over layers, "
            "which bound that of the mean. Benchmark sampling: 95 % intervals of ISS, percentile and BCa, from the "
            "bootstrap that resamples relations. Heterogeneity: sd and range of ISS over relations."
        ),
        section="Jacobian-Transported ISS, 18",
        group="iss",
        columns=(
            label("layer", "Layer"),
            label("status", "Status"),
            Column("Corpus\nn, 2n", _corpus),
            _two_digits("halves_iss_difference", "Corpus\nhalves"),
            _two_digits("rank_2k_iss_difference", "Rank\nk, 2k"),
            _two_digits("rank_exact_iss_difference", "Rank\nexact"),
            Column("Seeds\nsd", _seeds),
            interval("percentile", "Sampling\npercentile"),
            interval("bca", "Sampling\nBCa"),
            decimal("relation_sd", "Relations\nsd"),
            Column("Relations\nrange", _range),
        ),
    ),
}
