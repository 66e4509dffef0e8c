"""Every file against the manifest that lists it."""

from collections.abc import Iterator
from pathlib import Path

from sparse_control.files import sha256_file
from sparse_control.records import manifest
from sparse_control.verify.check import Check, Status, attempt, named

RESTORE = "restore it from git or measure it again"
RENDER = "run `python -m sparse_control reproduce`"
PULL = "not in this folder; `dvc pull` brings what the store holds, a new run the rest"


def manifest_checks(root: Path) -> Iterator[Check]:
    """Every listed measurement, every one that should be listed, and the tensors that are there."""
    listed, check = attempt(manifest.NAME, lambda: manifest.read_manifest(root))
    if listed is None:
        missing = f"{root / manifest.NAME} is missing; restore it from git, or measure again"
        yield check if check.status == "FAIL" else Check(check.name, "FAIL", missing)
        return
    yield from _listed_checks(root, "", listed.measurements, manifest.measured_files(root), RESTORE)
    absent = [name for name in listed.binaries if not (root / name).is_file()]
    present = {name: sha256 for name, sha256 in listed.binaries.items() if name not in absent}
    yield from _listed_checks(root, "", present, list(present), RESTORE)
    if absent:  # large files may be absent until they are pulled
        detail = f"{len(absent)} of {len(listed.binaries)} listed in {manifest.NAME} are {PULL}"
        yield Check("binaries", "skip", detail, tuple(absent))


def rendered_checks(paper: Path) -> Iterator[Check]:
    """Every rendered file that is listed, and every one that should be."""
    place = f"{paper.name}/"
    listed, check = attempt(place + manifest.NAME, lambda: manifest.read_rendered_manifest(paper))
    if listed is None:
        yield check if check.status == "FAIL" else Check(check.name, "FAIL", f"{paper} has no manifest; {RENDER}")
        return
    yield from _listed_checks(paper, place, listed.files, manifest.rendered_files(paper), RENDER)


def _listed_checks(
    folder: Path, place: str, listed: dict[str, str], present: list[str], remedy: str
) -> Iterator[Check]:
    for name in sorted({*listed, *present}):
        yield named(
            f"manifest {place}{name}", lambda name=name: _verdict(folder / name, place + name, listed.get(name), remedy)
        )


def _verdict(path: Path, name: str, expected: str | None, remedy: str) -> tuple[Status, str]:
    if expected is None:
        return "FAIL", f"{name} is not listed in {manifest.NAME}; remove it, or {remedy}"
    if not path.is_file():
        return "FAIL", f"{name} is missing; {remedy}"
    found = sha256_file(path)
    return (
        ("ok", "") if found == expected else ("FAIL", f"{name} changed (SHA-256 {found}, listed {expected}); {remedy}")
    )


def unhashed_checks(root: Path, frozen: set[str]) -> Iterator[Check]:
    """Tensors that nothing vouches for.

    Args:
        root: the folder measured into.
        frozen: files that freezes hash, relative to `root`.
    """
    listed, _ = attempt(manifest.NAME, lambda: manifest.read_manifest(root))
    known = frozen.union(listed.binaries if listed else ())
    if unknown := [name for name in manifest.binary_files(root) if name not in known]:
        detail = f"{len(unknown)} files are not hashed in {manifest.NAME}, and not checked"
        yield Check("unlisted binaries", "skip", detail, tuple(unknown))


def missing_measurements(root: Path) -> list[str]:
    """Listed measurements that are not there; none where the manifest itself cannot be read."""
    listed, _ = attempt(manifest.NAME, lambda: manifest.read_manifest(root))
    return [name for name in (listed.measurements if listed else ()) if not (root / name).is_file()]
