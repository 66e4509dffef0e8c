"""What a root has already of the records that are asked for: of this run, measured with something else, or damaged.

Nothing that was measured is removed or overwritten: a record of other settings, code or model files stays where it is
until it is replaced on purpose, and then it goes to `ROOT/replaced/`, which no reader reads. A record says itself what
it was measured with and has the hash of its content, so nothing but the file is asked. Importing loads no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.files import LARGEST_TEXT, check_size, json_line, parse_json, sha256_json, write_bytes
from sparse_control.models.identity import ModelIdentity, model_identity, model_label
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.grid import TARGETS, TOLERANCE, WHICH, studies
from sparse_control.protocol.panels import PanelSources, drawn_from, panel_source
from sparse_control.records.paths import STUDY, replaced_file, replaced_folder
from sparse_control.records.six_axis import RecordKey, record_sha256
from sparse_control.settings import Settings

SCHEMA = "six-axis/1"


@dataclass(frozen=True, eq=False)
class Origin:
    """What every record of a run says of how it is measured, and what a record must say to be of the run.

    Attributes:
        model: what records call the model.
        identity: of the model.
        sources: where the prompts come from.
        provenance: hashes of settings and code, and the number of threads.
        given: interventions that were given as files.
    """

    model: str
    identity: ModelIdentity
    sources: PanelSources
    provenance: Mapping[str, Any]
    given: tuple[GivenFile, ...] = ()

    @classmethod
    def of(
        cls, settings: Settings, sources: PanelSources = PanelSources(), given: tuple[GivenFile, ...] = ()
    ) -> "Origin":
        """The origin of a run with these settings; the model's files are hashed, and it is not loaded.

        Raises:
            InputError: as `model_identity`.
        """
        protocol = settings.protocol.model_dump(mode="json", exclude=set(WHICH))  # those say which records, not how
        for name, usual in (("targets", TARGETS), ("tolerance", TOLERANCE)) if sources.pairs else ():
            if protocol["feedback"][name][sources.pairs.name] == usual:  # what every such file has; nothing of others
                del protocol["feedback"][name][sources.pairs.name]
        params = {"model": settings.model, "dtype": settings.dtype, "threads": settings.threads, **protocol}
        provenance = {
            "params_sha256": sha256_json(params),
            "code_sha256": code_sha256(STUDY),
            "threads": settings.threads,
        }
        identity = model_identity(settings.model, settings.dtype)
        return cls(model_label(settings.model), identity, sources, provenance, given)

    def panels(self, task: str) -> dict[str, Any]:
        """Where the prompts of a task's records come from, as they say it."""
        said = {name: panel_source(of, self.sources) for name, of in (("pairs", task), ("off_target", "off_target"))}
        if (given := self.sources.pairs_of(task)) is not None and given.last_token_only:
            return said | {"last_token_only": True}
        of = drawn_from(task, "fit")[0]
        return said if of == task else said | {"same_panel": of}

    def file_of(self, selector: str) -> GivenFile | None:
        """The file that has the intervention; None where it is selected."""
        return next((given for given in self.given if selector in given.names), None)

    def section(self, selector: str) -> dict[str, Any] | None:
        """The section `origin` of a selector's records."""
        given = self.file_of(selector)
        return None if given is None else given.origin(selector)

    def sha256(self, task: str, selector: str) -> str:
        """One hash over all of it."""
        parts = [self.identity.sha256, self.panels(task), dict(self.provenance), self.section(selector)]
        return sha256_json(parts)

    def difference(self, record: Mapping[str, Any]) -> str:
        """What a record was measured with that this run is not, in words; empty where nothing is."""
        theirs = record["provenance"]
        words = {"params_sha256": "settings", "code_sha256": "code", "threads": "threads"}
        found = [word for name, word in words.items() if theirs.get(name) != self.provenance[name]]
        if record.get("panels") != self.panels(record["task"]):
            found.append("prompts")
        if record.get("origin") != self.section(record["selector"]):
            found.append("intervention file or strength")
        if not isinstance(theirs.get("model"), Mapping) or theirs["model"].get("identity") != self.identity.sha256:
            found.append("model files or libraries")
        return ", ".join(found)


@dataclass(frozen=True)
class Stored:
    """The lines of one file of records.

    Attributes:
        records: seed -> record, of the lines that are whole records of the file's study.
        lines: seed -> the bytes of its line.
        damaged: what is wrong with each other line.
        content: of the file.
    """

    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: dict[int, bytes] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    content: bytes = b""


def read_stored(root: Path, key: RecordKey) -> Stored:
    """What the file of a study has, whatever its lines are; `key` is that of any of its records.

    Raises:
        InputError: the file is there and cannot be read.
    """
    path = key.file(root)
    if not path.is_file():
        return Stored()
    check_size(path, LARGEST_TEXT)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    records: dict[int, dict[str, Any]] = {}
    lines: dict[int, bytes] = {}
    damaged = []
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else [], start=1):
        try:
            record = _whole_record(line, key)
            if record["seed"] in records:
                raise ValueError(f"seed {record['seed']} is there twice")
        except ValueError as error:
            damaged.append(f"line {number}: {error}")
        else:
            records[record["seed"]], lines[record["seed"]] = record, line + b"\n"
    return Stored(records, lines, tuple(damaged), content)


def _whole_record(line: bytes, key: RecordKey) -> dict[str, Any]:
    """
    Raises:
        ValueError: the line is no record of the study, or not as it was written.
    """
    record = parse_json(line.decode(), "a record")
    provenance = record.get("provenance") if isinstance(record, dict) else None
    if not isinstance(provenance, dict) or not isinstance(record.get("seed"), int) or record["seed"] is True:
        raise ValueError("is no record")
    if tuple(record.get(name) for name in key._fields[:-1]) != key[:-1]:
        raise ValueError("belongs to another study")
    if provenance.get("record_sha256") not in (None, record_sha256(record)):
        raise ValueError("has another content than it was written with")
    return record


@dataclass(frozen=True)
class Survey:
    """What a root has of the records that are asked for.

    Attributes:
        asked: how many are asked for.
        others: those that are there and were measured with something else -> what differs.
        damaged: files with damaged lines -> what is wrong.
    """

    asked: int
    others: dict[RecordKey, str]
    damaged: dict[Path, tuple[str, ...]]

    def refuse(self) -> None:
        """Refuse to go on where a record that is asked for was measured with something else.

        Raises:
            InputError: says how many, what differs, and what to do.
        """
        if self.others:
            key, reason = next(iter(self.others.items()))
            raise InputError(
                f"{len(self.others)} of {self.asked} records that are asked for are there and were measured with other "
                f"{reason}, such as {key}; they are kept. To measure them again add --replace, which moves them to "
                "replaced/ in the folder; or ask for others, or choose another --root"
            )


def survey(
    root: Path, settings: Settings, sources: PanelSources = PanelSources(), given: tuple[GivenFile, ...] = ()
) -> Survey:
    """Look through the files of every study that is asked for.

    Raises:
        InputError: as `Origin.of`, or a file cannot be read.
    """
    origin, asked = Origin.of(settings, sources, given), 0
    others: dict[RecordKey, str] = {}
    damaged: dict[Path, tuple[str, ...]] = {}
    for task, selector, condition in studies(settings.protocol, sources.pairs):
        keys = [RecordKey(origin.model, task, selector, condition, seed) for seed in settings.protocol.seeds_of(task)]
        stored = read_stored(root, keys[0])
        asked += len(keys)
        for key in keys:
            if key.seed in stored.records and (reason := origin.difference(stored.records[key.seed])):
                others[key] = reason
        if stored.damaged:
            damaged[keys[0].file(root)] = stored.damaged
    return Survey(asked, others, damaged)


def merge(root: Path, key: RecordKey, records: Iterable[Mapping[str, Any]]) -> Path:
    """Put records into the file of their study; lines of other seeds stay as they are, byte for byte.

    Whatever the file loses by it, records of the same seeds or damaged lines, is in `ROOT/replaced/` before.

    Args:
        root: the folder measured into.
        key: of any record of the study.
        records: of this run.
    """
    stored, path = read_stored(root, key), key.file(root)
    lines = dict(stored.lines)
    lines.update((record["seed"], json_line(record).encode()) for record in records)
    lost = [line for seed, line in sorted(stored.lines.items()) if lines[seed] != line]
    if stored.damaged:
        write_bytes(_free_file(root, path), stored.content)
    elif lost:
        write_bytes(_free_file(root, path), b"".join(lost))
    content = b"".join(line for _, line in sorted(lines.items()))
    if content != stored.content or not path.is_file():
        write_bytes(path, content)
    return path


def _free_file(root: Path, path: Path) -> Path:
    """Where a study's next replaced records go."""
    number = 1
    while (found := replaced_file(root, path, number)).exists():
        number += 1
    return found


def said(survey: Survey, root: Path) -> Sequence[str]:
    """What a person is told before anything is measured."""
    told = []
    if survey.others:
        n = len(survey.others)
        told.append(f"{n} record{'s' * (n > 1)} will be measured again; the old ones go to {replaced_folder(root)}")
    for path, reasons in survey.damaged.items():
        told.append(f"{path}: damaged ({reasons[0]}); what is asked for is measured again, and the file as it is goes "
                    f"to {replaced_folder(root)}")  # fmt: skip
    return told
