"""A handful of numbers of each model, cells of its tables: what `dvc metrics show` prints."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from sparse_control.records.paths import folder_name
from sparse_control.records.read import Records
from sparse_control.tables.layers import VALIDATED
from sparse_control.tables.official import VALIDATED_LAYERS
from sparse_control.tables.table import rows_of

FOLDER = "metrics"  # below paper/tables
DECIMALS = 6  # so that the last bit of another machine's sum is in no file


def metrics_files(records: Records, frames: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """`metrics/{model}.json` of every model, below `paper/tables`; what a model was not measured for is left out.

    Official ISS and Raw-ISS over the validated layers, how many of the window's layers those are, the smallest k/d that
    passes, and Rel_tar of Driver-OMP with each pair's own contrast, by task.
    """
    tables = {name: rows_of(frames[name]) for name in ("official_iss", "estimator_validation", "reachability")}
    files = {}
    for model in records.models:
        own = {name: [row for row in rows if row["model"] == model.name] for name, rows in tables.items()}
        numbers = {name: round(value, DECIMALS) for name, value in _metrics(**own) if value is not None}
        files[f"{FOLDER}/{folder_name(model.name)}.json"] = json.dumps(numbers, indent=1, ensure_ascii=False) + "\n"
    return files


def _metrics(official_iss: list, estimator_validation: list, reachability: list) -> Iterator[tuple[str, Any]]:
    for row in official_iss:
        if row["layer"] == VALIDATED_LAYERS:
            yield from (("official ISS", row["iss"]), ("Raw-ISS", row["raw_iss"]))
    if estimator_validation:
        shares = [row["k_over_d"] for row in estimator_validation if row["status"] == VALIDATED]
        yield "layers of the window", len(estimator_validation)
        yield "validated layers", len(shares)
        yield "smallest passing k/d", min(shares, default=None)
    for row in reachability:
        if (row["selector"], row["condition"]) == ("driver_omp", "P"):
            yield f"Rel_tar of {row['task']}", row["rel_tar_mean"]
