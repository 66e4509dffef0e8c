"""The project's own facts and prompts: reading them strictly, and keeping the three resources apart.

Two sets of facts that never meet (source document, 13): the *calibration* set, on which ranks and shrinkage are chosen,
and the *benchmark*, opened only after the freeze. Each has its own two files, and reading one set opens no file of the
other. A query is one prompt about one fact; the answer follows the prompt after one space.
"""

import csv
import hashlib
import io
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, ValidationError

from sparse_control.errors import InputError
from sparse_control.files import read_text
from sparse_control.settings import Section

DATA = Path(__file__).parent.parent / "data"
BENCHMARK_FACTS = DATA / "benchmark_facts.csv"
BENCHMARK_PROMPTS = DATA / "benchmark_prompts.yaml"
CALIBRATION_FACTS = DATA / "calibration_facts.csv"
CALIBRATION_PROMPTS = DATA / "calibration_prompts.yaml"

COLUMNS = ("relation", "subject", "answer", "source")
SLOT = re.compile(r"\{([^{}]*)\}")
NAMED = 10  # offenders listed in one error line


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One row of a facts table; `line` is its line in the file."""

    relation: str
    subject: str
    answer: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Query:
    """One prompt about one fact.

    Attributes:
        fact: `relation/subject`.
        relation: name of the relation.
        family: condition family of the prompt.
        template: index of the template within its family, from 0.
        text: the prompt; contains the subject and never the answer, ends without a space.
        answers: the right ones, each of which may follow the prompt after one space.
    """

    fact: str
    relation: str
    family: str
    template: int
    text: str
    answers: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The entity the fact is about."""
        return self.fact.removeprefix(f"{self.relation}/")

    @property
    def id(self) -> str:
        """`relation/subject/family/template`, unique within a set."""
        return f"{self.fact}/{self.family}/{self.template}"


class _Template(Section):
    prompt: str
    demonstration: str | None = None


class _Relation(Section):
    phrases: dict[str, list[str]]
    demonstrations: dict[str, str] = {}


class _Prompts(Section):
    families: dict[str, Annotated[list[_Template], Field(min_length=1)]] = Field(min_length=1)
    relations: dict[str, _Relation]


def normalise(text: str) -> str:
    """The form in which names and prompts are compared: NFKC, case folded, spaces and punctuation as single spaces.

    A leading article is no part of a name: "The Odyssey" and "Odyssey" are the same entity.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    # combining marks stay: they are letters' parts in many scripts
    words = "".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in folded).split()
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        del words[0]
    return " ".join(words)


def mentions(text: str, name: str) -> bool:
    """Whether a text holds a name, as whole words in the form in which names are compared."""
    return f" {normalise(name)} " in f" {normalise(text)} "


def read_facts(path: Path) -> dict[str, list[Fact]]:
    """Facts of a table by relation, both in file order.

    Raises:
        InputError: naming file, line, field, value and mend: a missing or unknown column, a blank cell, a row of
            another length, an answer that does not start with a letter, or a fact that stands there twice.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    facts: dict[str, list[Fact]] = {}
    seen: dict[tuple[str, str], int] = {}
    try:
        header = next(reader, [])
        for column in COLUMNS:
            if column not in header:
                raise InputError(f"{path}:1: {column}: the column is missing; the header must be {','.join(COLUMNS)}")
        if sorted(header) != sorted(COLUMNS):
            raise InputError(f"{path}:1: header: got {','.join(header)!r}; it must be {','.join(COLUMNS)}")
        for cells in reader:
            place = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                raise InputError(
                    f"{place}: row: {len(cells)} cells, the header has {len(header)}; quote cells with commas"
                )
            row = dict(zip(header, cells, strict=True))
            for column, cell in row.items():
                if not cell or cell != " ".join(cell.split()):
                    raise InputError(f"{place}: {column}: {cell!r} is blank or has stray spaces; fill or trim it")
            if not row["relation"].isidentifier():
                raise InputError(f"{place}: relation: {row['relation']!r}; use letters, digits and underscores")
            if not row["answer"][0].isalpha():
                raise InputError(f"{place}: answer: {row['answer']!r} must start with a letter; rephrase or drop it")
            key = (row["relation"], normalise(row["subject"]))
            if key in seen:
                raise InputError(f"{place}: subject: {row['subject']!r} stands already in line {seen[key]}; drop one")
            seen[key] = reader.line_num
            fact = Fact(relation=row["relation"], subject=row["subject"], answer=row["answer"], line=reader.line_num)
            facts.setdefault(fact.relation, []).append(fact)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not valid CSV ({error}); mend the quotes") from error
    return facts


def _read_prompts(path: Path, facts: Mapping[str, Sequence[Fact]]) -> _Prompts:
    try:
        prompts = _Prompts.model_validate(yaml.safe_load(read_text(path)))
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path}: {field}: {first['msg']}, got {first['input']!r}; see the shipped file") from error
    for name, relation in prompts.relations.items():
        if name not in facts:
            raise InputError(f"{path}: relations.{name}: no such relation in the facts; there are: {', '.join(facts)}")
        subjects = {normalise(fact.subject) for fact in facts[name]}
        answers = {normalise(fact.answer) for fact in facts[name]}
        for subject, answer in relation.demonstrations.items():
            if normalise(subject) in subjects or normalise(answer) in answers:
                raise InputError(
                    f"{path}: relations.{name}.demonstrations.{subject}: {answer!r}: "
                    "the subject or the answer is also in the facts; choose a reserved example"
                )
    for name in facts:
        if name not in prompts.relations:
            raise InputError(f"{path}: relations.{name}: is missing; add its phrases")
    return prompts


def _expand(frame: str, relation: _Relation, place: str) -> str:
    """Put the relation's phrases into a frame; the slots {subject} and {answer} stay."""
    phrases = {f"{kind}_{n}": text for kind, texts in relation.phrases.items() for n, text in enumerate(texts, start=1)}

    def phrase(slot: re.Match[str]) -> str:
        name = slot.group(1)
        if name in ("subject", "answer"):
            return slot.group(0)
        if name not in phrases:
            raise InputError(f"{place}: {slot.group(0)!r} is no slot; there are: subject, {', '.join(phrases)}")
        return phrases[name]

    return SLOT.sub(phrase, frame)


def _compose(template: _Template, relation: _Relation, place: str) -> str:
    """One template of one relation with its demonstrations, only {subject} left to fill."""
    prompt = _expand(template.prompt, relation, place)
    if "{subject}" not in prompt:
        raise InputError(f"{place}: {prompt!r} has no {{subject}} slot; add it to the prompt or to the phrase it takes")
    if "{answer}" in prompt or prompt != prompt.rstrip():
        raise InputError(f"{place}: {prompt!r} holds the answer or ends with a space; end it where the answer follows")
    if template.demonstration is None:
        return prompt
    if not relation.demonstrations:
        raise InputError(f"{place}: the relation has no demonstrations; add two or three")
    shown = _expand(template.demonstration, relation, place)
    return (
        "".join(
            shown.replace("{subject}", subject).replace("{answer}", answer)
            for subject, answer in relation.demonstrations.items()
        )
        + prompt
    )


def _first(items: Sequence, count: int | None, name: str, place: str) -> Sequence:
    if count is None:
        return items
    if not 1 <= count <= len(items):
        raise InputError(f"{place}: {name}: {count} asked, there are {len(items)}; ask for 1..{len(items)}")
    return items[:count]


def load_queries(
    which: Literal["benchmark", "calibration"],
    *,
    relations: int,
    facts_per_relation: int,
    families: int | None = None,
    templates: int | None = None,
) -> tuple[Query, ...]:
    """The queries of one set, in file order: relation, fact, family, template.

    Args:
        which: the set; only its own two files are opened.
        relations: the first so many relations.
        facts_per_relation: the first so many facts of each.
        families: the first so many condition families; None for all.
        templates: the first so many templates of each family; None for all.

    Raises:
        InputError: a malformed file (see `read_facts`), an unknown relation or slot, a prompt without its subject or
            with its answer, or more asked than there is.
    """
    if which == "benchmark":
        facts_path, prompts_path = BENCHMARK_FACTS, BENCHMARK_PROMPTS
    elif which == "calibration":
        facts_path, prompts_path = CALIBRATION_FACTS, CALIBRATION_PROMPTS
    else:
        raise InputError(f"which: {which!r} is no set of facts; use 'benchmark' or 'calibration'")
    facts = read_facts(facts_path)
    prompts = _read_prompts(prompts_path, facts)
    queries = []
    for name in _first(list(facts), relations, "relations", str(facts_path)):
        chosen = _first(facts[name], facts_per_relation, "facts_per_relation", f"{facts_path}: {name}")
        filled = []
        for family in _first(list(prompts.families), families, "families", str(prompts_path)):
            place = f"{prompts_path}: families.{family}"
            for index, template in enumerate(_first(prompts.families[family], templates, "templates", place)):
                text = _compose(template, prompts.relations[name], f"{place}[{index}] with relations.{name}")
                filled.append((family, index, text))
        for fact in chosen:
            for family, index, text in filled:
                query = Query(
                    fact=f"{name}/{fact.subject}",
                    relation=name,
                    family=family,
                    template=index,
                    text=text.replace("{subject}", fact.subject),
                    answers=(fact.answer,),
                )
                if mentions(query.text, fact.answer):
                    raise InputError(
                        f"{facts_path}:{fact.line}: answer: {fact.answer!r} stands in the prompt {query.text!r}; "
                        f"reword families.{family}[{index}] or choose another fact"
                    )
                queries.append(query)
    return tuple(queries)


def benchmark_entities() -> frozenset[str]:
    """Normalised subjects of all benchmark facts: articles with such a title stay out of the Jacobian corpus."""
    return frozenset(normalise(fact.subject) for facts in read_facts(BENCHMARK_FACTS).values() for fact in facts)


def _refuse(offenders: Iterable[str], what: str) -> None:
    unique = list(dict.fromkeys(offenders))
    if unique:
        more = f" and {len(unique) - NAMED} more" if len(unique) > NAMED else ""
        raise InputError(f"data separation: {what}: {'; '.join(unique[:NAMED])}{more}; remove one side")


def _overlap(
    calibration: Sequence[Query],
    benchmark: Sequence[Query],
    *,
    keys: Callable[[Query], Iterable[str]],
    name: Callable[[Query], str],
) -> list[str]:
    owners: dict[str, list[str]] = defaultdict(list)
    for query in benchmark:
        for key in keys(query):
            owners[key].append(name(query))
    return [f"{name(query)} ~ {owners[key][0]}" for query in calibration for key in keys(query) if key in owners]


def check_separation(
    corpus_texts: Sequence[str],
    calibration: Sequence[Query],
    benchmark: Sequence[Query],
    *,
    articles: Sequence[str] = (),
) -> None:
    """Check that corpus, calibration set and benchmark are disjoint (source document, 13).

    Calibration against benchmark: content hash and normalised text of the prompts, relations, and entities, where
    subjects and answers of one side are held against subjects and answers of the other. Corpus against both: no prompt
    stands in a text, and no article is titled like a benchmark subject.

    Args:
        corpus_texts: the corpus windows as text.
        calibration: calibration queries.
        benchmark: benchmark queries.
        articles: title of the article of every window, or nothing where titles are unknown.

    Raises:
        InputError: with the ids of the offending queries, facts or windows.
    """
    if articles and len(articles) != len(corpus_texts):
        raise InputError(f"articles: {len(articles)} titles for {len(corpus_texts)} corpus texts; give one for each")
    comparisons = (
        ("prompts of equal content hash", lambda q: [hashlib.sha256(q.text.encode()).hexdigest()], lambda q: q.id),
        ("prompts of equal normalised text", lambda q: [normalise(q.text)], lambda q: q.id),
        ("relations in both sets", lambda q: [normalise(q.relation)], lambda q: q.relation),
        (
            "entities in both sets",
            lambda q: [normalise(q.subject), *map(normalise, q.answers)],
            lambda q: f"{q.fact} ({', '.join(q.answers)})",
        ),
    )
    for what, keys, name in comparisons:
        _refuse(_overlap(calibration, benchmark, keys=keys, name=name), what)

    subjects = {normalise(query.subject) for query in benchmark}
    titled = (f"window {n} ({title})" for n, title in enumerate(articles) if normalise(title) in subjects)
    _refuse(titled, "corpus articles about benchmark subjects")

    windows = [f" {normalise(text)} " for text in corpus_texts]
    whole = "\n".join(windows)  # one search per prompt; windows are looked at only after a hit
    quoted = []
    for query in (*calibration, *benchmark):
        prompt = f" {normalise(query.text)} "
        if prompt in whole:
            quoted += [f"window {n} ~ {query.id}" for n, window in enumerate(windows) if prompt in window]
    _refuse(quoted, "corpus texts that hold a prompt")
