"""Files of one root against its manifest and its freeze."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparse_control.files import read_json, sha256_file
from sparse_control.records import manifest
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.freeze import FreezeManifest
from sparse_control.records.jacobian_iss.validation import ActionValidation
from sparse_control.verify.check import Check, Status, attempt, named

MEND = "restore it from git or measure it again"
PULL = "not in this folder; `dvc pull` brings what the store holds, a new run the rest"


def manifest_checks(root: Path, place: str) -> Iterator[Check]:
    """Every listed file and every file that should be listed; `place` is that of a sub-root, with its slash."""
    listed, check = attempt(place + manifest.NAME, lambda: manifest.read_manifest(root))
    if listed is None:
        mend = f"{root / manifest.NAME} is missing; restore it from git, or measure again"
        yield check if check.status == "FAIL" else Check(check.name, "FAIL", mend)
        return
    parts = (
        (listed.measurements, manifest.measured_files(root), MEND),
        (listed.tables, manifest.table_files(root), "run `python -m sparse_control reproduce`"),
    )
    for hashes, present, mend in parts:
        for name in sorted({*hashes, *present}):
            title = f"manifest {place}{name}"
            yield named(title, lambda name=name, mend=mend, hashes=hashes: _listed(root, name, hashes.get(name), mend))
    absent = [name for name in listed.binaries if not (root / name).is_file()]
    for name, expected in listed.binaries.items():
        if name not in absent:
            title = f"manifest {place}{name}"
            yield named(title, lambda name=name, expected=expected: _listed(root, name, expected, MEND))
    if absent:  # large files may be absent until they are pulled
        detail = f"{len(absent)} of {len(listed.binaries)} listed in {manifest.NAME} are {PULL}"
        examples = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        yield Check(f"binaries {place}jacobian_iss", "skip", f"{detail}: {examples}")


def _listed(root: Path, name: str, expected: str | None, mend: str) -> tuple[Status, str]:
    if expected is None:
        return "FAIL", f"{name} is not listed in {manifest.NAME}; remove it, or {mend}"
    if not (root / name).is_file():
        return "FAIL", f"{name} is missing; {mend}"
    found = sha256_file(root / name)
    return ("ok", "") if found == expected else ("FAIL", f"{name} changed (SHA-256 {found}, listed {expected}); {mend}")


def frozen_checks(root: Path, place: str, freeze: FreezeManifest | None) -> Iterator[Check]:
    """Factors and other files the freeze manifest lists; large binaries may be absent until they are pulled."""
    for name, expected in sorted((freeze.files if freeze else {}).items()):
        yield named(f"frozen {place}{name}", lambda name=name, expected=expected: _frozen(root, name, expected))


def _frozen(root: Path, name: str, expected: str) -> tuple[Status, str]:
    path = root / "jacobian_iss" / name
    if not path.is_file():
        return "skip" if path.suffix in manifest.BINARY else "FAIL", PULL
    found = sha256_file(path)
    return ("ok", "") if found == expected else ("FAIL", f"{name} changed (SHA-256 {found}, frozen {expected})")


def factor_checks(root: Path, place: str, iss: IssRecords) -> Iterator[Check]:
    """What the metadata of frozen factors says, against the freeze and the attempt that was chosen (15)."""
    chosen = {row.layer: row for row in iss.actions if row.chosen}
    for number, frozen in sorted(iss.freeze.layers.items() if iss.freeze else ()):
        folder = root / "jacobian_iss" / "low_rank_factors" / iss.freeze.model / number
        if frozen.status == "validated" and int(number) in chosen:
            rung = chosen[int(number)]
            for index, seed in enumerate(frozen.seeds):
                path = folder / ("" if index == 0 else f"seed_{seed}") / "metadata.json"
                title = f"metadata {place}{path.relative_to(root).as_posix()}"
                expected = _expected_metadata(iss.freeze, int(number), rung, seed)
                if path.is_file():  # a listed one that is missing is named with the frozen files
                    yield named(title, lambda path=path, expected=expected: _metadata(path, expected))


def _expected_metadata(freeze: FreezeManifest, layer: int, rung: ActionValidation, seed: int) -> dict[str, Any]:
    return {
        "model": freeze.model,
        "layer": layer,
        "rank": rung.k,
        "oversampling": rung.oversampling,
        "power_iterations": rung.power_iterations,
        "calibration_corpus_size": rung.corpus_size,
        "random_seed": seed,
        "validation_cosine_median": rung.median_cosine,
        "validation_relative_error_median": rung.median_relative_error,
        "iss_rank_difference": rung.iss_rank_difference,
        "validated": True,
        "corpus_sha256": freeze.corpus_sha256,
        "null": freeze.settings.null,
    }


def _metadata(path: Path, expected: Mapping[str, Any]) -> tuple[Status, str]:
    content = read_json(path)
    for name, value in expected.items():
        found = content.get(name, "nothing")
        if found != value:
            return "FAIL", f"{name}: {found!r:.80}, but the freeze and its attempt have {value!r:.80}"
    return "ok", ""


def unhashed_checks(root: Path, place: str, freeze: FreezeManifest | None) -> Iterator[Check]:
    """Binaries that nothing vouches for: an error among frozen factors, elsewhere a remark that names them."""
    frozen = {f"jacobian_iss/{name}" for name in (freeze.files if freeze else {})}
    listed, _ = attempt(manifest.NAME, lambda: manifest.read_manifest(root))
    known = frozen | set(listed.binaries if listed else {})
    unknown = [name for name in manifest.binary_files(root) if name not in known]
    factors = [name for name in manifest.binary_files(root) if name.startswith("jacobian_iss/low_rank_factors/")]
    official = factors if freeze else []  # before a freeze factors are what they are in any other folder
    for name in official:
        if name not in frozen:
            yield Check(f"frozen {place}{name}", "FAIL", f"{name} is not listed in freeze_manifest.json; remove it")
    if others := [name for name in unknown if name not in official]:
        detail = f"{len(others)} files are not hashed in {manifest.NAME}, and not checked: {', '.join(others)}"
        yield Check(f"unlisted binaries {place}jacobian_iss", "skip", detail)
