"""The six-axis records of a root: one per (task, selector, condition, seed), and one file per study."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparse_control.code_hash import code_sha256, save_closure
from sparse_control.errors import InputError
from sparse_control.files import read_json, read_json_lines, sha256_json, write_json, write_json_lines
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.identity import ModelIdentity, model_identity
from sparse_control.protocol.fitting import Fitting
from sparse_control.protocol.grid import WHICH, check_names
from sparse_control.protocol.panels import PanelSources, panel_source
from sparse_control.protocol.record import record_sections
from sparse_control.receipt import Receipt
from sparse_control.records.six_axis import RecordKey, sealed
from sparse_control.settings import ProtocolSettings, Settings
from sparse_control.threads import pin_threads

SCHEMA = "six-axis/1"
CODE = "sparse_control.protocol.study"


def _model(name: str, dtype: str) -> LanguageModel:
    """The model, loaded once in a process while it stays what it is."""
    return _loaded(name, dtype, model_identity(name, dtype))


@lru_cache(maxsize=1)
def _loaded(name: str, dtype: str, _identity: ModelIdentity) -> LanguageModel:
    return load_model(name, dtype=dtype)


@lru_cache(maxsize=1)
def _templated(lm: LanguageModel, arguments_json: str) -> LanguageModel:
    """The model with the settings' arguments of its chat template, the same object at each call."""
    return lm.with_template_arguments(json.loads(arguments_json))


@lru_cache(maxsize=1)
def _fitting(lm: LanguageModel, protocol_json: str, sources: PanelSources) -> Fitting:
    """What the studies of one process share; settings as JSON, to be hashable."""
    return Fitting(lm, ProtocolSettings.model_validate_json(protocol_json), sources)


def _params_sha256(settings: Settings) -> str:
    """Hash of the settings a record depends on; which records are asked for is not among them."""
    protocol = settings.protocol.model_dump(mode="json", exclude=set(WHICH))
    return sha256_json({"model": settings.model, "dtype": settings.dtype, "threads": settings.threads, **protocol})


@dataclass(frozen=True, eq=False)
class _Study:
    """Where the records of one (task, selector, condition) are, and what a record must say to be of this run."""

    root: Path
    settings: Settings
    task: str
    selector: str
    condition: str
    sources: PanelSources
    lm: LanguageModel
    common: dict[str, Any]  # provenance that all seeds have alike

    def key(self, seed: int) -> RecordKey:
        return RecordKey(self.lm.name, self.task, self.selector, self.condition, seed)

    @property
    def file(self) -> Path:
        return self.key(0).file(self.root)

    def part(self, seed: int) -> Path:
        return self.file.parent / ".parts" / f"{self.file.stem}.{seed}.part"  # no reader takes it for a measurement

    @cached_property
    def named(self) -> dict[str, Any]:
        """What every record of the study says, whatever the seed."""
        return {
            "schema": SCHEMA,
            "model": self.lm.name,
            "task": self.task,
            "selector": self.selector,
            "condition": self.condition,
            "panels": {
                "pairs": panel_source(self.task, self.sources),
                "off_target": panel_source("off_target", self.sources),
            },
        }

    def is_whole(self, row: Any) -> bool:
        """Whether a row read from a file is a record of this model, these settings and this code, and unaltered."""
        if not isinstance(row, dict) or not isinstance(row.get("provenance"), dict):
            return False
        provenance = {key: value for key, value in row["provenance"].items() if key != "record_sha256"}
        return (
            self.named.items() <= row.items()
            and provenance == self.common | {"seed": row.get("seed")}
            and row == sealed(row | {"provenance": provenance})
        )

    def finished(self) -> dict[int, dict[str, Any]]:
        """Whole records of the assembled file, by seed."""
        try:
            rows = read_json_lines(self.file) if self.file.is_file() else []
        except InputError:
            return {}  # a broken file holds nothing to keep; it is measured again
        return {row["seed"]: row for row in rows if self.is_whole(row)}

    def part_record(self, seed: int) -> dict[str, Any] | None:
        """The whole record of a part file; None where there is none."""
        try:
            row = read_json(self.part(seed)) if self.part(seed).is_file() else None
        except InputError:
            return None
        return row if self.is_whole(row) and row["seed"] == seed else None

    def measured(self, seed: int) -> dict[str, Any]:
        fitting = _fitting(self.lm, self.settings.protocol.model_dump_json(), self.sources)
        record = self.named | {
            "seed": seed,
            **record_sections(fitting, self.key(seed)),
            "provenance": self.common | {"seed": seed},
        }
        return sealed(record)


def _study(root: Path, settings: Settings, task: str, selector: str, condition: str, sources: PanelSources) -> _Study:
    check_names(tasks=[task], selectors=[selector], conditions=[condition])
    pin_threads(settings.threads)
    lm = _templated(_model(settings.model, settings.dtype), json.dumps(settings.protocol.template_arguments))
    save_closure(root, CODE)
    common = {
        "model": lm.provenance,
        "params_sha256": _params_sha256(settings),
        "code_sha256": code_sha256(CODE),
        "threads": settings.threads,
    }
    return _Study(Path(root), settings, task, selector, condition, sources, lm, common)


def _write_part(study: _Study, seed: int, finished: dict[int, dict[str, Any]]) -> Path:
    path = study.part(seed)
    if study.part_record(seed) is None:
        write_json(path, finished.get(seed) or study.measured(seed))
    return path


def run_seed(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    seed: int,
    sources: PanelSources = PanelSources(),
) -> Receipt:
    """One record, into a part file below `.parts/` beside the assembled one.

    A whole record of the same model, settings, sources of prompts and code is kept, whether it is in the part or in
    the assembled file. What the records of a seed share (pairs, effect columns, selections) is kept in the process for
    a few seeds, so a run that takes all selectors and conditions of a (task, seed) one after the other is the cheapest.
    Records must not be measured in parallel threads, as their hooks are on one model.

    Raises:
        InputError: unknown task, selector or condition, or as `load_model`, `build_pairs` and `gated_pairs`.
    """
    study = _study(root, settings, task, selector, condition, sources)
    return Receipt.of(study.root, [_write_part(study, seed, study.finished())])


def run(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    sources: PanelSources = PanelSources(),
) -> Receipt:
    """One study: measure what is missing, then write the file of `ModelPaths.six_axis`.

    Every record is written to its part file as soon as it is measured (`run_seed`), and the parts are removed once the
    whole file is written, so an interrupted run loses the record in hand and the final bytes do not depend on the
    interruption. Whole records of seeds that are not asked for stay; records of other settings or code are replaced.

    Raises:
        InputError: as `run_seed`.
    """
    study = _study(root, settings, task, selector, condition, sources)
    records = study.finished()
    seeds = settings.protocol.seeds_of(task)
    missing = [seed for seed in seeds if seed not in records]
    for seed in tqdm(missing, desc=f"{task} {selector} {condition}", unit="seed"):
        _write_part(study, seed, records)
        records[seed] = study.part_record(seed)
    write_json_lines(study.file, [records[seed] for seed in sorted(records)])
    for seed in seeds:
        study.part(seed).unlink(missing_ok=True)
    parts = study.part(0).parent
    if parts.is_dir() and not any(parts.iterdir()):
        parts.rmdir()
    return Receipt.of(study.root, [study.file])
