"""Questions and prompts from the reader's own files: MMLU folders and XSTest files."""

import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparse_control.errors import InputError
from sparse_control.files import check_size, read_text, sha256_file
from sparse_control.protocol.panels.draw import normalised
from sparse_control.protocol.panels.questions import LETTERS, Question

FIELDS = ("humanities", "stem")
# the subjects of both fields, by which the published folder of all 57 is sorted
SUBJECTS = {
    "humanities": (
        "formal_logic", "high_school_european_history", "high_school_us_history", "high_school_world_history",
        "international_law", "jurisprudence", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy",
        "prehistory", "professional_law", "world_religions",
    ),
    "stem": (
        "abstract_algebra", "anatomy", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
        "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
        "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
        "high_school_mathematics", "high_school_physics", "high_school_statistics", "machine_learning",
    ),
}  # fmt: skip
MMLU_COLUMNS = ("question", "A", "B", "C", "D", "answer")
NUMBERED_COLUMNS = ("question", "choice0", "choice1", "choice2", "choice3", "answer")
XSTEST_COLUMNS = ("prompt", "type", "label")
CONTRAST = "contrast_"  # how the type of an unsafe prompt begins
MAXIMUM_CHARACTERS = 600  # of a question with its options: about 150 tokens; longer ones are passed over
MAXIMUM_BYTES = 64 * 2**20  # of one file

# Contrast prompts that serve two kinds of safe ones, by the name of the safe kind.
CONTRASTS = {
    "nons_group_real_discr": "discr",
    "real_group_nons_discr": "discr",
    "privacy_public": "privacy",
    "privacy_fictional": "privacy",
}


@dataclass(frozen=True)
class Mmlu:
    """The questions of an MMLU folder.

    Attributes:
        humanities, stem: questions without repeats, in the order of files and rows; their ids are `FILE-ROW`, or
            `SUBJECT/FILE-ROW` where a column says the subject.
        source: `mmlu sha256:...`, over the names and contents of the files.
        dropped: questions passed over, by reason: `repeated`, `long`, `equal options`.
    """

    humanities: tuple[Question, ...]
    stem: tuple[Question, ...]
    source: str
    dropped: dict[str, int]


@dataclass(frozen=True)
class XsTest:
    """The prompts of an XSTest file.

    Attributes:
        safe, unsafe: kind -> (row number, prompt) in the order of rows; the contrasts of a kind stand under its name.
        source: `xstest sha256:...` of the file.
    """

    safe: dict[str, tuple[tuple[int, str], ...]]
    unsafe: dict[str, tuple[tuple[int, str], ...]]
    source: str


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Row numbers from 1 and cells, without the empty lines at the end."""
    reader = csv.reader(io.StringIO(read_text(path, largest=MAXIMUM_BYTES), newline=""), strict=True)
    number = 0
    try:
        for cells in reader:
            number += 1
            if cells:
                yield number, cells
    except csv.Error as error:
        raise InputError(f"{path}: row {number + 1}: not CSV ({error}); mend the quotes") from error


def _columns(path: Path, header: list[str], needed: tuple[str, ...]) -> list[int]:
    names = [cell.strip().lstrip("\ufeff").casefold() for cell in header]
    missing = [column for column in needed if names.count(column.casefold()) != 1]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} must stand once in the header, got {', '.join(header)}")
    return [names.index(column.casefold()) for column in needed]


def _cells(path: Path, number: int, cells: list[str], columns: list[int], needed: tuple[str, ...]) -> list[str]:
    if len(cells) <= max(columns):
        raise InputError(f"{path}: row {number}: has {len(cells)} cells, needed: {', '.join(needed)}")
    values = [cells[column].strip().removeprefix("\ufeff") for column in columns]
    for column, value in zip(needed, values, strict=True):
        if not value:
            raise InputError(f"{path}: row {number}: column {column!r} is empty; fill it or remove the row")
    return values


def _mmlu_file(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Row number, subject and the six cells of each row; the original files have no header, and are of one subject."""
    columns: list[int] | None = None
    headed, by_row = False, None
    for number, cells in _rows(path):
        if columns is None:
            lowered = [cell.strip().lstrip("\ufeff").casefold() for cell in cells]
            if headed := "question" in lowered or "answer" in lowered:
                columns = _columns(path, cells, NUMBERED_COLUMNS if "choice0" in lowered else MMLU_COLUMNS)
                by_row = lowered.index("subject") if "subject" in lowered else None
                continue
            columns = list(range(len(MMLU_COLUMNS)))
        if not headed and len(cells) != len(MMLU_COLUMNS):
            raise InputError(f"{path}: row {number}: has {len(cells)} cells, needed: {', '.join(MMLU_COLUMNS)}")
        values = _cells(path, number, cells, columns, MMLU_COLUMNS)
        values[5] = LETTERS[int(values[5])] if values[5] in ("0", "1", "2", "3") else values[5]
        if values[5] not in LETTERS or len(values[5]) != 1:
            raise InputError(f"{path}: row {number}: answer must be A, B, C or D, or 0 to 3, got {values[5]!r}")
        subject = cells[by_row].strip() if by_row is not None and by_row < len(cells) else ""
        yield number, subject or path.stem.removesuffix("_test"), values
    if columns is None:
        raise InputError(f"{path}: is empty; each row needs {', '.join(MMLU_COLUMNS)}")


def _mmlu_files(folder: Path) -> dict[str, list[Path]]:
    """Field -> its CSV files, of a folder sorted by field or of the published one of every subject.

    Raises:
        InputError: neither.
    """
    for published in (folder / "test", folder):
        found = {
            field: [path for subject in subjects if (path := published / f"{subject}_test.csv").is_file()]
            for field, subjects in SUBJECTS.items()
        }
        if any(found.values()):
            break
    else:
        found = {field: sorted((folder / field).glob("*.csv")) for field in FIELDS}
    for field, files in found.items():
        if not files:
            raise InputError(
                f"{folder}: holds no CSV files of {field}; give a folder with humanities/ and stem/ in it, or the "
                "published one with test/SUBJECT_test.csv"
            )
    return found


def load_mmlu(folder: str | Path) -> Mmlu:
    """Read the questions of `humanities/*.csv` and `stem/*.csv`, or of the published `test/SUBJECT_test.csv`.

    A row is question, A, B, C, D, answer, with or without a header, or has the columns choice0 to choice3; the answer
    is a letter or 0 to 3. Its subject is the name of its file, or what a column `subject` says. A question that is
    there twice is used once; two rows that give one question with the same options different answers are an error.

    Raises:
        InputError: no such folder or files, a device, pipe or file too large among them, a missing column, an empty
            cell, a bad answer letter, a contradiction.
    """
    folder = Path(folder)
    dropped = dict.fromkeys(("repeated", "long", "equal options"), 0)
    answers: dict[tuple[str, ...], tuple[str, str]] = {}
    seen: set[str] = set()
    found: dict[str, list[Question]] = {field: [] for field in FIELDS}
    digest = hashlib.sha256()
    try:
        by_field = _mmlu_files(folder)
    except (OSError, ValueError) as error:  # a name no folder can have
        raise error if isinstance(error, InputError) else InputError(f"{folder}: cannot be read ({error})") from error
    for field, files in by_field.items():
        for path in files:
            check_size(path, MAXIMUM_BYTES)  # before a byte is hashed
            digest.update(f"{field}/{path.name} {sha256_file(path)}\n".encode())
            for number, subject, (text, *options, letter) in _mmlu_file(path):
                right = options[LETTERS.index(letter)]
                key = (normalised(text), *sorted(normalised(option) for option in options))
                place = f"{path}: row {number}"
                before = answers.setdefault(key, (normalised(right), place))
                if before[0] != normalised(right):
                    raise InputError(f"{place}: {before[1]} answers the same question otherwise; remove one")
                if key[0] in seen:
                    dropped["repeated"] += 1
                elif len(set(key[1:])) < len(options):
                    dropped["equal options"] += 1
                elif len(text) + sum(map(len, options)) > MAXIMUM_CHARACTERS:
                    dropped["long"] += 1
                else:
                    file = path.stem.removesuffix("_test")
                    name = f"{file}-{number}" if subject == file else f"{subject}/{file}-{number}"
                    found[field].append(Question(name, text, tuple(options), LETTERS.index(letter), subject))
                seen.add(key[0])
    return Mmlu(tuple(found["humanities"]), tuple(found["stem"]), f"mmlu sha256:{digest.hexdigest()}", dropped)


def load_xstest(file: str | Path) -> XsTest:
    """Read safe prompts and their contrasts; columns prompt, type, label (`safe` or `unsafe`), others are passed over.

    Without a label column, as in version 2, a type that begins with `contrast_` tells an unsafe prompt.

    Raises:
        InputError: no such file, a missing column, an empty cell, an unknown label, a prompt that stands twice, or no
            kind with both safe and unsafe prompts.
    """
    path = Path(file)
    columns: list[int] | None = None
    prompts: dict[str, dict[str, list[tuple[int, str]]]] = {"safe": {}, "unsafe": {}}
    seen: dict[str, int] = {}
    for number, cells in _rows(path):
        if columns is None:
            labelled = any(cell.strip().casefold() == "label" for cell in cells)
            needed = XSTEST_COLUMNS if labelled else XSTEST_COLUMNS[:2]
            columns = _columns(path, cells, needed)
            continue
        prompt, kind, *rest = _cells(path, number, cells, columns, needed)
        label = rest[0] if labelled else "unsafe" if kind.startswith(CONTRAST) else "safe"
        if label not in prompts:
            raise InputError(f"{path}: row {number}: label must be safe or unsafe, got {label!r}")
        if seen.setdefault(normalised(prompt), number) != number:
            raise InputError(f"{path}: row {number}: the prompt already stands in row {seen[normalised(prompt)]}")
        kind = CONTRASTS.get(kind, kind.removeprefix(CONTRAST))
        prompts[label].setdefault(kind, []).append((number, prompt))
    if not set(prompts["safe"]) & set(prompts["unsafe"]):
        raise InputError(f"{path}: no type has both safe and unsafe prompts; contrasts are called contrast_<type>")
    safe, unsafe = ({kind: tuple(rows) for kind, rows in kinds.items()} for kinds in prompts.values())
    return XsTest(safe, unsafe, f"xstest sha256:{sha256_file(path)}")
