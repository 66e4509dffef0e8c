"""The records of a root as they are read for the checks: file by file, so that every broken one is named."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.records.jacobian_iss import TYPES, IssRecords, read_iss_file
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import ModelRecords, model_name
from sparse_control.records.six_axis import Measurement
from sparse_control.records.six_axis_files import measurement_files, read_measurements
from sparse_control.verify.check import Check, attempt


@dataclass(frozen=True, kw_only=True)
class Study:
    """ISS of a model, or of one of its nulls.

    Attributes:
        paths: where it is.
        iss: what was read of it.
        whole: whether every listed record of it is there; else its numbers are not held against each other.
    """

    paths: ModelPaths
    iss: IssRecords
    whole: bool

    @property
    def name(self) -> str:
        """Its folder relative to the root: `MODEL/jacobian_iss` or `MODEL/nulls/NAME/jacobian_iss`."""
        return self.title(self.paths.base)

    def title(self, path: Path) -> str:
        """A path of the study relative to the root."""
        return path.relative_to(self.paths.root).as_posix()


@dataclass(frozen=True, kw_only=True)
class Model:
    """Everything that was measured on a model.

    Attributes:
        records: what tables are made of.
        paths: where it is.
        studies: of ISS; the official one first, then the nulls.
    """

    records: ModelRecords
    paths: ModelPaths
    studies: tuple[Study, ...]


def read_model(paths: ModelPaths, missing: Collection[str]) -> tuple[Model | None, list[Check]]:
    """A model, None where a file of it cannot be read, and a check for each file.

    Args:
        paths: of the model itself.
        missing: listed files that are not there, relative to the root.
    """
    six_axis, checks = _six_axis(paths)
    studies = []
    for one in (paths, *paths.nulls):
        study, read = _study(one, missing)
        studies.append(study)
        checks += read
    if any(check.status == "FAIL" for check in checks):
        return None, checks
    official, *nulls = studies
    records = ModelRecords(
        name=model_name(paths.model, six_axis, official.iss),
        six_axis=six_axis,
        iss=official.iss,
        nulls={null.paths.null: null.iss for null in nulls},
    )
    return Model(records=records, paths=paths, studies=tuple(studies)), checks


def _six_axis(paths: ModelPaths) -> tuple[tuple[Measurement, ...], list[Check]]:
    records, checks = [], []
    for path in measurement_files(paths):
        name = f"records {path.relative_to(paths.root).as_posix()}"
        rows, check = attempt(name, lambda path=path: read_measurements(paths.root, path))
        checks.append(check)
        records += rows or []
    return tuple(records), checks


def _study(paths: ModelPaths, missing: Collection[str]) -> tuple[Study, list[Check]]:
    fields: dict[str, Any] = {}
    checks, whole = [], True
    for field in TYPES:
        path = paths.iss_file(field)
        name = path.relative_to(paths.root).as_posix()
        if path.exists():
            found, check = attempt(f"records {name}", lambda field=field: read_iss_file(paths, field))
            checks.append(check)
            fields |= {} if found is None else {field: found}
        whole = whole and name not in missing
    return Study(paths=paths, iss=IssRecords(**fields), whole=whole), checks
