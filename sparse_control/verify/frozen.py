"""What a freeze manifest says, against what it must list and against the files it was made of."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparse_control.files import read_json
from sparse_control.records.jacobian_iss import FILES, IssRecords
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.jacobian_iss.results import IssSummary
from sparse_control.verify.check import Check, Status, named

FREEZE, SUMMARY = (FILES[field][0] for field in ("freeze", "summary"))
WHITENING = "validation/whitening.json"
FACTORS = ("Q.pt", "B.pt")
REFREEZE = "run experiment-c and experiment-d again"


def freeze_checks(root: Path, place: str, iss: IssRecords) -> Iterator[Check]:
    """Every reported factor is hashed, is of the settings and the weights that were measured; penalties are stage B's.

    Args:
        root: of the freeze.
        place: of a sub-root, with its slash.
        iss: records of the root; without a freeze there is nothing to check.
    """
    if (freeze := iss.freeze) is None:
        return
    expected = _expected(freeze, iss.summary)
    base = root / "jacobian_iss"
    yield named(f"frozen {place}jacobian_iss/{FREEZE}", lambda: _listed(base, freeze))
    for folder in factor_folders(freeze):
        path = base / folder / "metadata.json"
        if path.is_file():
            title = f"settings of {place}jacobian_iss/{folder}"
            yield named(title, lambda path=path: _made_with(path, expected))
    if (base / WHITENING).is_file():
        yield named(f"agreement {place}jacobian_iss/{FREEZE}", lambda: _penalties(base / WHITENING, freeze))


def factor_folders(freeze: FreezeManifest) -> list[str]:
    """Below `jacobian_iss/`: a folder for every validated layer and reported sketch seed."""
    return [
        f"low_rank_factors/{freeze.model}/{number}" + (f"/seed_{seed}" if index else "")
        for number, layer in sorted(freeze.layers.items())
        if layer.status == "validated"
        for index, seed in enumerate(layer.seeds)
    ]


def _listed(base: Path, freeze: FreezeManifest) -> tuple[Status, str]:
    """Factors may not be in this folder and must be listed all the same; small files are always there."""
    folders = factor_folders(freeze)
    small = [f"configs/{path.name}" for path in sorted((base / "configs").glob("*.yaml"))]
    small += [name for folder in folders if (base / (name := f"{folder}/metadata.json")).is_file()]
    needed = [*small, *(f"{folder}/{name}" for folder in folders for name in FACTORS)]
    missing = [name for name in needed if name not in freeze.files]
    return ("FAIL", f"files: lacks {', '.join(missing)}; {REFREEZE}") if missing else ("ok", "")


def _expected(freeze: FreezeManifest, summary: IssSummary | None) -> dict[str, tuple[Any, str]]:
    """Field of a factor's metadata -> its value, and the file that says so."""
    settings = freeze.settings.model_dump()
    frozen = {
        "probe": settings["estimator"]["probe"],
        "dtype": settings.get("dtype"),
        "calibration_sequence_length": settings.get("corpus", {}).get("sequence_length"),
    }
    model = {} if summary is None else summary.provenance.model
    measured = {name: model.get(name) for name in ("weights_sha256", "tokenizer_sha256") if summary is not None}
    return {field: (value, FREEZE) for field, value in frozen.items()} | {
        field: (value, SUMMARY) for field, value in measured.items()
    }


def _made_with(path: Path, expected: Mapping[str, tuple[Any, str]]) -> tuple[Status, str]:
    found = read_json(path)
    for field, (value, place) in expected.items():
        if found.get(field) != value:
            return "FAIL", f"{field}: {found.get(field)!r:.80}, but {place} has {value!r:.80}; {REFREEZE}"
    return "ok", ""


def _penalties(path: Path, freeze: FreezeManifest) -> tuple[Status, str]:
    found = read_json(path)["lam_rel"]
    for number in sorted({*found, *freeze.lam_rel}):
        for part in ("iss", "raw"):
            stored = found[number][part] if number in found else None
            frozen = getattr(freeze.lam_rel.get(number), part, None)
            if frozen != stored:  # C copies them
                return "FAIL", f"lam_rel.{number}.{part}: {frozen}, but {WHITENING} has {stored}; {REFREEZE}"
    return "ok", ""
