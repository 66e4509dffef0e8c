"""Measuring the six-axis records of a root: one per (task, selector, condition, seed), and one file per study."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from sparse_control.code_hash import save_closure
from sparse_control.errors import InputError
from sparse_control.files import read_json, write_json
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.identity import ModelIdentity, model_identity
from sparse_control.protocol.fitting import Fitting
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.given_record import given_sections
from sparse_control.protocol.grid import check_names
from sparse_control.protocol.panels import PanelSources
from sparse_control.protocol.record import record_sections
from sparse_control.protocol.stored import SCHEMA, Origin, Stored, merge, read_stored, survey
from sparse_control.receipt import Receipt
from sparse_control.records.paths import STUDY
from sparse_control.records.six_axis import RecordKey, record_sha256, sealed
from sparse_control.settings import ProtocolSettings, Settings
from sparse_control.threads import pin_threads


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


@dataclass(frozen=True, eq=False)
class _Study:
    """The records of one (task, selector, condition): where they are, and how they are measured."""

    root: Path
    settings: Settings
    task: str
    selector: str
    condition: str
    origin: Origin

    def key(self, seed: int) -> RecordKey:
        return RecordKey(self.origin.model, self.task, self.selector, self.condition, seed)

    def part(self, seed: int) -> Path:
        """The file of one record until its study is whole; another one for records that are measured otherwise."""
        file = self.key(seed).file(self.root)
        name = f"{file.stem}.{seed}.{self.origin.sha256(self.task, self.selector)[:16]}.part"
        return file.parent / ".parts" / name  # no reader takes it for a measurement

    def part_record(self, seed: int) -> dict[str, Any] | None:
        """The whole record of a part file; None where there is none."""
        try:
            record = read_json(self.part(seed)) if self.part(seed).is_file() else None
        except InputError:
            return None
        whole = (
            isinstance(record, dict)
            and isinstance(record.get("provenance"), dict)
            and tuple(record.get(name) for name in RecordKey._fields) == self.key(seed)
            and record["provenance"].get("record_sha256") == record_sha256(record)
        )
        return record if whole and not self.origin.difference(record) else None

    def finished(self, stored: Stored, seed: int) -> dict[str, Any] | None:
        """The record of this run in the study's file."""
        record = stored.records.get(seed)
        return None if record is None or self.origin.difference(record) else record

    def measured(self, seed: int) -> dict[str, Any]:
        """The record of a seed, measured."""
        pin_threads(self.settings.threads)
        lm = _templated(
            _model(self.settings.model, self.settings.dtype), json.dumps(self.settings.protocol.template_arguments)
        )
        if lm.identity.sha256 != self.origin.identity.sha256:
            raise InputError(f"model {self.settings.model}: its files changed while they were read; run it again")
        fitting = _fitting(lm, self.settings.protocol.model_dump_json(), self.origin.sources)
        key, given = self.key(seed), self.origin.file_of(self.selector)
        origin = self.origin.section(self.selector)
        record = {
            "schema": SCHEMA,
            "model": key.model,
            "task": key.task,
            "selector": key.selector,
            "condition": key.condition,
            "panels": self.origin.panels(key.task),
            "seed": seed,
            **({} if origin is None else {"origin": origin}),
            **(record_sections(fitting, key) if given is None else given_sections(fitting, key, given)),
            "provenance": {"model": lm.provenance, **self.origin.provenance, "seed": seed},
        }
        return sealed(record)

    def write(self, seed: int) -> Path:
        """The file that has the record of a seed: the study's own, or else its part, measured where it is missing."""
        if self.finished(self.stored(), seed) is None and self.part_record(seed) is None:
            write_json(self.part(seed), self.measured(seed))
        if self.finished(self.stored(), seed) is None:
            return self.part(seed)
        self.remove_parts([seed])  # the study became whole meanwhile: a cluster repeats what it lost with a worker
        return self.key(seed).file(self.root)

    def stored(self) -> Stored:
        """What the study's file has."""
        return read_stored(self.root, self.key(0))

    def remove_parts(self, seeds: Sequence[int]) -> None:
        """Remove the part files of these seeds, and their folder with the last of all."""
        for seed in seeds:
            self.part(seed).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # absent, or there are other parts in it
            self.part(0).parent.rmdir()


def _study(
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    sources: PanelSources,
    replace: bool,
    seeds: list[int],
    given: GivenFile | None,
) -> _Study:
    """A study, once it is sure that nothing that was measured is in the way."""
    files = () if given is None else (given,)
    check_names(tasks=[task], selectors=[selector], conditions=[condition], given=files, pairs=sources.pairs)
    which = {"tasks": [task], "selectors": [selector], "conditions": [condition], "seeds": seeds, "task_seeds": {}}
    asked = settings.model_copy(update={"protocol": settings.protocol.model_copy(update=which)})
    if not replace:
        survey(Path(root), asked, sources, files).refuse()
    save_closure(root, STUDY)
    return _Study(Path(root), settings, task, selector, condition, Origin.of(settings, sources, files))


def run_seed(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    seed: int,
    sources: PanelSources = PanelSources(),
    replace: bool = False,
    given: GivenFile | None = None,
) -> Receipt:
    """One record, into a part file below `.parts/` beside the assembled one.

    A whole record of this run is kept, whether it is in the part or in the assembled file. What the records of a seed
    share (pairs, effect columns, selections) is kept in the process for a few seeds, so a run that takes all selectors
    and conditions of a (task, seed) one after the other is the cheapest. Records must not be measured in parallel
    threads, as their hooks are on one model.

    Args:
        given: the file that has the intervention, where `selector` is one of its names.

    Raises:
        InputError: unknown task, selector or condition, a record that was measured with something else and is not to
            be replaced, or as `load_model`, `build_pairs` and `gated_pairs`.
    """
    study = _study(root, settings, task, selector, condition, sources, replace, [seed], given)
    return Receipt.of(study.root, [study.write(seed)])


def run(
    *,
    root: Path,
    settings: Settings,
    task: str,
    selector: str,
    condition: str,
    sources: PanelSources = PanelSources(),
    replace: bool = False,
    given: GivenFile | None = None,
) -> Receipt:
    """One study: measure what is missing, then write the file of `ModelPaths.six_axis`.

    Every record is written to its part file as soon as it is measured (`run_seed`), and the parts are removed once the
    whole file is written, so an interrupted run loses the record in hand and the final bytes do not depend on the
    interruption. Records of other seeds stay, whatever they were measured with. One of a seed that is asked for and
    was measured with other settings, code or model files is refused, or with `replace` moved to `ROOT/replaced/` once
    the new one is measured.

    Raises:
        InputError: as `run_seed`.
    """
    seeds = settings.protocol.seeds_of(task)
    study = _study(root, settings, task, selector, condition, sources, replace, seeds, given)
    stored = study.stored()
    missing = [seed for seed in seeds if study.finished(stored, seed) is None]
    records = []
    for seed in tqdm(missing, desc=f"{task} {selector} {condition}", unit="seed"):
        study.write(seed)
        records.append(study.part_record(seed))
    file = merge(study.root, study.key(0), records)
    study.remove_parts(seeds)
    return Receipt.of(study.root, [file])
