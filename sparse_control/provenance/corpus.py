"""What `corpus.json` says of the windows beside it, which are built and never committed."""

from pathlib import Path
from typing import Any

from sparse_control.errors import InputError
from sparse_control.files import read_json
from sparse_control.project import project_folder
from sparse_control.provenance.facts import Artefact, pairs

CORPUS = Path("corpus", "corpus.json")


def corpora(root: Path, sha256: Any) -> tuple[Path, ...]:
    """`corpus.json` of the corpus with this hash, below the root or in the project folder; none where it is another."""
    found = {path.resolve(): path for path in (Path(root, CORPUS), Path(project_folder(), CORPUS)) if path.is_file()}
    return tuple(path for path in found.values() if _content(path)["windows_sha256"] == sha256)[:1]


def corpus_artefact(path: Path) -> Artefact:
    """`corpus.json`, wherever it is.

    Raises:
        InputError: it cannot be read, or is none.
    """
    content = _content(path)
    ids = content.get("ids")
    return Artefact(
        kind="the Jacobian corpus, built bit for bit from a pinned package",
        facts=(
            f"source: {pairs(content.get('source'))}",
            f"parser: {content.get('parser')}; tokenizer sha256: {content.get('tokenizer_sha256')}",
            f"settings: {pairs(content.get('settings'))}",
            f"windows sha256: {content['windows_sha256']} ({len(ids) if isinstance(ids, list) else 'unknown'} windows)",
        ),
    )


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or "windows_sha256" not in content:
        raise InputError(f"{path}: windows_sha256: is missing")
    return content
