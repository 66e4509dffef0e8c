"""Facts and prompts of the reader's own, in place of the benchmark: own tables, and the published ParaRel and LAMA.

A *fact* is a relation, a subject and one or several right answers; a *prompt* is a text with {subject} that ends where
the answer follows after one space, and belongs to a relation and a condition family. ISS compares families, so every
relation needs prompts of two at least (ISS source document, 10.3 and 10.4).

    facts.csv     relation,subject,answer                 several right answers separated by |
    facts.jsonl   {"relation": ..., "subject": ..., "answer": ...} or "answers": [...]; and, there or elsewhere,
                  {"relation": ..., "family": ..., "prompt": "... {subject} ..."}
    prompts.csv   relation,family,prompt
    ParaRel       its folder data/: pattern_data/graphs_json/P36.jsonl beside trex_lms_vocab/P36.jsonl; the lemma of a
                  pattern is its family, and patterns that do not end with [Y] are left out
    LAMA          its folder: relations.jsonl beside TREx/P36.jsonl; it has one template a relation and needs prompts
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse_control.arguments import file_path, whole_number
from sparse_control.errors import InputError
from sparse_control.files import read_json_lines, read_text, sha256_file
from sparse_control.iss.benchmark import Query, mentions, normalise

SUBJECT, OBJECT = "[X]", "[Y]"  # slots of ParaRel and LAMA
PARAREL = ("pattern_data/graphs_json", "trex_lms_vocab")
LAMA = ("relations.jsonl", "TREx")
TOLD = 5  # offenders listed in one error line


@dataclass(frozen=True)
class OwnFact:
    """One fact; `where` is its file and line."""

    relation: str
    subject: str
    answers: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class FactSet:
    """Facts with their prompts.

    Attributes:
        facts: relation -> facts, both in file order.
        prompts: relation -> family -> prompts with {subject}.
        dropped: what was left out, by reason.
        source: kind and SHA-256 of the files, for the record.
        path: they were read from.
    """

    facts: Mapping[str, Sequence[OwnFact]]
    prompts: Mapping[str, Mapping[str, Sequence[str]]]
    dropped: Mapping[str, int]
    source: str
    path: Path

    def queries(self) -> tuple[Query, ...]:
        """Every prompt about every fact, in order: relation, fact, family, prompt."""
        return tuple(
            Query(
                fact=f"{relation}/{fact.subject}",
                relation=relation,
                family=family,
                template=index,
                text=prompt.replace("{subject}", fact.subject),
                answers=fact.answers,
            )
            for relation, facts in self.facts.items()
            for fact in facts
            for family, prompts in self.prompts[relation].items()
            for index, prompt in enumerate(prompts)
        )


@dataclass
class _Read:
    """What the files hold, as they are read."""

    facts: list[OwnFact] = field(default_factory=list)
    prompts: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)

    def add_prompt(self, where: str, relation: str, family: str, prompt: str) -> None:
        if prompt.count("{subject}") != 1 or prompt != prompt.rstrip():
            raise InputError(f"{where}: prompt: {prompt!r} must hold {{subject}} once and end where the answer follows")
        several = self.prompts.setdefault(relation, {}).setdefault(family, [])
        if prompt in several:
            raise InputError(f"{where}: prompt: {prompt!r} is given twice for {relation}, {family}; remove one")
        several.append(prompt)


def read_facts(path: str | Path, prompts: str | Path | None = None, facts_per_relation: int | None = None) -> FactSet:
    """Read facts and their prompts from files of one's own (ISS source document, 13.3).

    Args:
        path: a .csv or .jsonl of facts, or the folder of ParaRel or LAMA.
        prompts: a .csv or .jsonl of prompts, where `path` has none or too few.
        facts_per_relation: the first so many facts of each relation; None: all.

    Raises:
        ValueError: an argument of the wrong type or out of range.
        InputError: one line with file, line, field and value: a file of another form, a blank or missing field, a
            subject given twice in a relation (told once, with all its lines), a relation without prompts of two
            families, or no relation with two facts.
    """
    path = file_path("path", path)
    prompts = None if prompts is None else file_path("prompts", prompts)
    if facts_per_relation is not None:
        whole_number("facts_per_relation", facts_per_relation, 2)
    read = _Read()
    kind = _read_folder(path, read) if path.is_dir() else _read_own(path, read)
    if prompts is not None:
        _read_own(prompts, read)
    if kind == "pararel":
        _drop_single_families(read)
    facts = _by_relation(path, read, facts_per_relation)
    digest = hashlib.sha256("".join(f"{file.name} {sha256_file(file)}\n" for file in read.files).encode()).hexdigest()
    own = {relation: read.prompts[relation] for relation in facts}
    return FactSet(facts, own, dict(read.dropped), f"{kind} sha256:{digest}", path)


def _by_relation(path: Path, read: _Read, most: int | None) -> dict[str, list[OwnFact]]:
    """The facts that can be asked, by relation.

    Raises:
        InputError: as `read_facts`.
    """
    _refuse_repeated(path, read.facts)
    found: dict[str, list[OwnFact]] = {}
    for fact in read.facts:
        families = read.prompts.get(fact.relation, {})
        if len(families) < 2:
            raise InputError(
                f"{fact.where}: relation {fact.relation!r} has prompts of {len(families)} families and needs two; "
                "add lines with relation, family and prompt, or give them with --prompts"
            )
        several = found.setdefault(fact.relation, [])
        if most is not None and len(several) == most:
            continue
        asked = (prompt.replace("{subject}", fact.subject) for prompts in families.values() for prompt in prompts)
        if any(mentions(text, answer) for text in asked for answer in fact.answers):
            read.dropped["the prompt holds the answer"] += 1
        else:
            several.append(fact)
    for relation, several in list(found.items()):
        if len(several) < 2:
            read.dropped["the only fact of its relation"] += len(several)
            del found[relation]
    if not found:
        told = ", ".join(f"{count} dropped as {reason}" for reason, count in read.dropped.items())
        raise InputError(
            f"{path}: no relation has two facts that can be asked{'; ' + told if told else ''}; a relation needs two "
            "facts, and prompts of two families (--prompts)"
        )
    return found


def _refuse_repeated(path: Path, facts: Iterable[OwnFact]) -> None:
    """A subject that a relation has twice is told once, with all its lines."""
    lines: dict[tuple[str, str], list[OwnFact]] = {}
    for fact in facts:
        lines.setdefault((fact.relation, normalise(fact.subject)), []).append(fact)
    repeated = [several for several in lines.values() if len(several) > 1]
    if repeated:
        told = "; ".join(
            f"{one[0].relation}/{one[0].subject} in {', '.join(fact.where.rpartition('/')[2] for fact in one)}"
            for one in repeated[:TOLD]
        )
        more = f"; and {len(repeated) - TOLD} more" if len(repeated) > TOLD else ""
        raise InputError(
            f"{path}: subject: given more than once: {told}{more}; keep one line, with all its answers in one field"
        )


# --- own tables -----------------------------------------------------------------------------------------------------


def _read_own(path: Path, read: _Read) -> str:
    """A .csv or .jsonl of facts, prompts, or both."""
    read.files.append(path)
    if path.suffix == ".csv":
        rows: Iterable[tuple[str, dict[str, Any]]] = _csv_rows(path)
    elif path.suffix in (".jsonl", ".json"):
        rows = ((f"{path}:{number}", row) for number, row in enumerate(read_json_lines(path), start=1))
    else:
        raise InputError(f"{path}: facts are read from .csv, .jsonl, or the folder of ParaRel or LAMA")
    for where, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected an object with relation, subject and answer, got {type(row).__name__}")
        if "prompt" in row:
            _only(where, row, ("relation", "family", "prompt"))
            read.add_prompt(where, *(_text(where, row, name) for name in ("relation", "family", "prompt")))
        else:
            _only(where, row, ("relation", "subject", "answer", "answers", "source"))
            answers = _answers(where, row)
            read.facts.append(OwnFact(_text(where, row, "relation"), _text(where, row, "subject"), answers, where))
    return "own"


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if len(set(header)) != len(header) or not {"relation"} <= set(header):
            raise InputError(f"{path}:1: header: got {','.join(header)!r}; it needs relation, subject and answer")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(f"{path}:{reader.line_num}: {len(cells)} cells, the header has {len(header)}")
            row: dict[str, Any] = dict(zip(header, cells, strict=True))
            if "answer" in row:
                row["answer"] = [part.strip() for part in row["answer"].split("|")]
            yield f"{path}:{reader.line_num}", row
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not valid CSV ({error}); fix the quotes") from error


def _answers(where: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    given = [row[name] for name in ("answer", "answers") if name in row]
    if len(given) != 1:
        raise InputError(f"{where}: answer: give either answer or answers, got {'both' if given else 'neither'}")
    several = given[0] if isinstance(given[0], list) else [given[0]]
    if not several:
        raise InputError(f"{where}: answers: is empty; give at least one")
    answers = tuple(_text(where, {"answer": one}, "answer") for one in several)
    if len(set(answers)) < len(answers):
        raise InputError(f"{where}: answers: one is given twice, got {list(answers)}")
    return answers


def _only(where: str, row: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := sorted(set(map(str, row)) - set(known)):
        raise InputError(f"{where}: {unknown[0]}: unknown field; known: {', '.join(known)}")


def _text(where: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip() or value != value.strip():
        raise InputError(f"{where}: {name}: {value!r} must be text without spaces around it")
    return value


# --- published forms ------------------------------------------------------------------------------------------------


def _read_folder(path: Path, read: _Read) -> str:
    for folder in (path, path / "data"):
        if all((folder / part).is_dir() for part in PARAREL):
            return _read_pararel(folder, read)
        if (folder / LAMA[0]).is_file() and (folder / LAMA[1]).is_dir():
            return _read_lama(folder, read)
    raise InputError(
        f"{path}: is neither ParaRel ({' and '.join(PARAREL)} in it) nor LAMA ({' and '.join(LAMA)}); "
        "facts of your own are a .csv or .jsonl file"
    )


def _read_pararel(folder: Path, read: _Read) -> str:
    patterns, facts = (folder / part for part in PARAREL)
    for path in sorted(patterns.glob("*.jsonl"), key=lambda path: (len(path.stem), path.stem)):
        vocabulary = facts / path.name
        if not vocabulary.is_file():
            read.dropped["relations without facts"] += 1
            continue
        read.files += [path, vocabulary]
        for where, row in _objects(path):
            _add_pattern(read, where, path.stem, _text(where, row, "lemma"), row.get("pattern"))
        _add_triples(read, vocabulary)
    return "pararel"


def _read_lama(folder: Path, read: _Read) -> str:
    listed = folder / LAMA[0]
    read.files.append(listed)
    for where, row in _objects(listed):
        relation = _text(where, row, "relation")
        vocabulary = folder / LAMA[1] / f"{relation}.jsonl"
        if not vocabulary.is_file():
            read.dropped["relations without facts"] += 1
            continue
        read.files.append(vocabulary)
        _add_pattern(read, where, relation, "template", row.get("template"))
        _add_triples(read, vocabulary)
    return "lama"


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(read_json_lines(path), start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: expected an object, got {type(row).__name__}")
        yield f"{path}:{number}", row


def _add_pattern(read: _Read, where: str, relation: str, family: str, pattern: Any) -> None:
    """A pattern as a prompt; one that goes on after its object cannot be asked of a model that reads forwards."""
    if not isinstance(pattern, str) or pattern.count(SUBJECT) != 1 or pattern.count(OBJECT) != 1:
        raise InputError(f"{where}: pattern: {pattern!r} must hold {SUBJECT} and {OBJECT} once each")
    before, after = pattern.split(OBJECT)
    prompt = " ".join(before.replace(SUBJECT, "{subject}").split())
    if after.strip(" .") or not before.endswith(" ") or "{subject}" not in prompt:
        read.dropped["patterns that do not end with the answer"] += 1
    elif prompt in read.prompts.get(relation, {}).get(family, ()):
        read.dropped["patterns given twice"] += 1
    else:
        read.add_prompt(where, relation, family, prompt)


def _add_triples(read: _Read, path: Path) -> None:
    """One fact per subject; further objects of a subject are further right answers."""
    answers: dict[str, list[str]] = {}
    first: dict[str, tuple[str, str]] = {}
    for where, row in _objects(path):
        subject, answer = (_text(where, row, name) for name in ("sub_label", "obj_label"))
        key = normalise(subject)
        first.setdefault(key, (subject, where))
        if answer not in answers.setdefault(key, []):
            answers[key].append(answer)
    read.facts += [OwnFact(path.stem, subject, tuple(answers[key]), where) for key, (subject, where) in first.items()]


def _drop_single_families(read: _Read) -> None:
    """Relations of ParaRel whose usable patterns are of one lemma say nothing about two ways of asking."""
    single = {fact.relation for fact in read.facts if len(read.prompts.get(fact.relation, {})) < 2}
    read.dropped["relations with patterns of one family"] += len(single)
    if not read.dropped["relations with patterns of one family"]:
        del read.dropped["relations with patterns of one family"]
    read.facts = [fact for fact in read.facts if fact.relation not in single]
