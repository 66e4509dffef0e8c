"""What a freeze manifest says, against what it must list, the files it hashes, and the factors it reports."""

from collections.abc import Iterator
from pathlib import Path

from sparse_control.files import read_yaml, sha256_file
from sparse_control.records import manifest
from sparse_control.records.factors import freeze_configs, frozen_files, reported_factors
from sparse_control.records.paths import ISS_FILES, METADATA
from sparse_control.verify.check import Check, Status, attempt, named
from sparse_control.verify.hashes import PULL, RESTORE
from sparse_control.verify.reading import Study

AGAIN = "run experiment-c and experiment-d again"


def freeze_checks(study: Study) -> Iterator[Check]:
    """Hashes, completeness, configs, penalties and factors of a freeze; nothing where there is none yet."""
    paths, freeze = study.paths, study.iss.freeze
    if freeze is None:
        return
    title = study.title(paths.manifest)
    if freeze.content_sha256 is None:  # another one than that of the content is refused when it is read
        yield Check(f"content of {title}", "warn", "frozen by code that gave a freeze no hash of its own content")
    yield named(f"files of {title}", lambda: _complete(study))
    yield from _hashes(study)
    for name, expected in freeze_configs(freeze).items():
        path = paths.config(name)
        if path.is_file():
            yield named(f"config {study.title(path)}", lambda path=path, expected=expected: _config(path, expected))
    if study.iss.whitening is not None:
        yield named(f"penalties of {title}", lambda: _penalties(study))
    yield from _factors(study)
    yield from _unfrozen(study)


def frozen_names(study: Study) -> set[str]:
    """What the freeze of a study hashes, relative to the root."""
    files = study.iss.freeze.files if study.iss.freeze else ()
    return {study.title(study.paths.base / name) for name in files}


def _complete(study: Study) -> tuple[Status, str]:
    """Factors may not be in this folder and must be listed all the same."""
    paths, freeze = study.paths, study.iss.freeze
    needed = frozen_files(paths, freeze.layers, reference=freeze.settings.estimator.reference)
    missing = [name for path in needed if (name := path.relative_to(paths.base).as_posix()) not in freeze.files]
    return ("FAIL", f"files: lacks {', '.join(missing)}; {AGAIN}") if missing else ("ok", "")


def _hashes(study: Study) -> Iterator[Check]:
    """Tensors may be absent until they are pulled."""
    paths, absent = study.paths, []
    for name, expected in sorted(study.iss.freeze.files.items()):
        path = paths.base / name
        if path.suffix in manifest.BINARY and not path.is_file():
            absent.append(name)
        else:
            yield named(f"frozen {study.title(path)}", lambda path=path, expected=expected: _hashed(path, expected))
    if absent:
        detail = f"{len(absent)} tensors frozen in it are {PULL}"
        yield Check(f"tensors of {study.title(paths.manifest)}", "skip", detail, tuple(absent))


def _hashed(path: Path, expected: str) -> tuple[Status, str]:
    if not path.is_file():
        return "FAIL", f"is missing; {RESTORE}"
    found = sha256_file(path)
    return ("ok", "") if found == expected else ("FAIL", f"changed (SHA-256 {found}, frozen {expected})")


def _config(path: Path, expected: dict) -> tuple[Status, str]:
    found = read_yaml(path)
    for key in sorted({*found, *expected}):
        if found.get(key) != expected.get(key):
            detail = f"{key}: {found.get(key)!r:.80}, but {ISS_FILES['freeze']} has {expected.get(key)!r:.80}; {AGAIN}"
            return "FAIL", detail
    return "ok", ""


def _penalties(study: Study) -> tuple[Status, str]:
    """Stage C copies them."""
    found, frozen = study.iss.whitening.lam_rel, study.iss.freeze.lam_rel
    for number in sorted({*found, *frozen}, key=int):
        for part in ("iss", "raw"):
            stored, copied = (getattr(lam.get(number), part, None) for lam in (found, frozen))
            if copied != stored:
                detail = f"lam_rel.{number}.{part}: {copied}, but {ISS_FILES['whitening']} has {stored}; {AGAIN}"
                return "FAIL", detail
    return "ok", ""


def _factors(study: Study) -> Iterator[Check]:
    """What the metadata of reported factors says, where it is; a listed one that is missing is named with the files."""
    freeze, summary = study.iss.freeze, study.iss.summary
    reported = reported_factors(
        study.paths,
        freeze.layers,
        freeze.settings,
        freeze.corpus_sha256,
        attempts=study.iss.actions,
        measured_on=summary.provenance.model if summary else None,
    )
    for factors in reported:
        path = factors.folder / METADATA
        if path.is_file():
            yield attempt(f"factors {study.title(factors.folder)}", factors.check)[1]


def _unfrozen(study: Study) -> Iterator[Check]:
    """After a freeze every tensor among the official factors is hashed in it."""
    frozen, folder = frozen_names(study), f"{study.title(study.paths.all_factors)}/"
    for name in manifest.binary_files(study.paths.root):
        if name.startswith(folder) and name not in frozen:
            yield Check(f"frozen {name}", "FAIL", f"is not listed in {ISS_FILES['freeze']}; remove it")
