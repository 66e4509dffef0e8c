"""Files of six-axis records: which ones a model has, and reading them strictly."""

from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.records.base import printable, read_record_lines
from sparse_control.records.listing import files_below
from sparse_control.records.paths import ModelPaths, model_folders
from sparse_control.records.six_axis import Measurement


def measurement_files(paths: ModelPaths) -> list[Path]:
    """Every six-axis file of a model, in order of its path.

    Raises:
        InputError: a folder below `six_axis/` is a symbolic link.
    """
    return files_below(paths.six_axis_folder, ".jsonl")


def read_measurements(root: Path, path: Path) -> list[Measurement]:
    """Read one six-axis file below `root`.

    Raises:
        InputError: names the file, the line, the field and the value; also where the file's name says another
            model, task, selector or condition than a record in it, or a seed is there twice.
    """
    records = read_record_lines(Measurement, path)
    seen: set[int] = set()
    for number, record in enumerate(records, start=1):
        if Path(path) != (expected := record.key.file(root)):
            name = expected.relative_to(root).as_posix()
            raise InputError(printable(f"{path}:{number}: the record belongs to {name}; move it there"))
        if record.seed in seen:
            raise InputError(f"{path}:{number}: seed: is there twice in this file, got {record.seed}; remove one")
        seen.add(record.seed)
    return sorted(records, key=lambda record: record.seed)


def read_model_measurements(paths: ModelPaths) -> tuple[Measurement, ...]:
    """Every six-axis record of a model, in order of path and seed."""
    return tuple(record for path in measurement_files(paths) for record in read_measurements(paths.root, path))


def read_all_measurements(root: Path) -> list[Measurement]:
    """Every six-axis record of a root, in order of path and seed."""
    models = (ModelPaths(root, model) for model in model_folders(root))
    return [record for paths in models for record in read_model_measurements(paths)]
