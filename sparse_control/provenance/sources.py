"""Which records each table is made of."""

from pathlib import Path

from sparse_control.records import manifest
from sparse_control.records.jacobian_iss import FILES
from sparse_control.tables import ACROSS
from sparse_control.tables.layout import LAYOUTS

LADDER = ("actions", "freeze")
RECORDS: dict[str, tuple[str, ...]] = {  # table -> fields of IssRecords
    "setup": ("freeze", "comparison", "facts", "summary"),
    "official_iss": ("summary", "raw", "fact_layers"),
    "robustness": ("summary", "fact_layers", "freeze"),
    "lam_rel_sweep": ("summary",),
    "per_relation": ("facts",),
    "answer_accuracy": ("summary",),
    "uncertainty": (*LADDER, "corpus_convergence", "comparison", "seed_stability", "fact_layers", "facts"),
    "estimator_validation": LADDER,
    "ladder": LADDER,
    "rank_curve": (*LADDER, "comparison"),
    "corpus_convergence": ("corpus_convergence", *LADDER),
    "corpus_halves": ("comparison", *LADDER),
    "seed_stability": ("seed_stability", *LADDER),
    "alternatives": ("alternatives", "comparison", *LADDER),
    "alternatives_curve": ("alternatives", *LADDER),
    "nulls": ("summary", "freeze"),
    "rank_transfer": ("comparison", *LADDER),
    "findings": ("summary", "fact_layers", "alternatives", "comparison", "corpus_convergence", *LADDER),
}


def records_of(root: Path, name: str) -> list[str]:
    """The measured files, relative to `root`, that a table `{sub-root}/{table}` is made of; those that are there.

    A name that is no table, such as that of a page, stands for all of them.
    """
    place, _, table = name.rpartition("/")
    fields = RECORDS.get(table, () if table in LAYOUTS else tuple(FILES))
    places = [place] if place else ["", *(manifest.sub_roots(root) if table in ACROSS or table not in LAYOUTS else ())]
    found = ["/".join(filter(None, (where, "jacobian_iss", FILES[field][0]))) for where in places for field in fields]
    six_axis = not place and (table not in LAYOUTS or LAYOUTS[table].group in ("setup", "protocol", "published"))
    measured = [measured for measured in manifest.measured_files(root) if measured.startswith("measurements/")]
    return (measured if six_axis else []) + [one for one in found if Path(root, one).is_file()]
