"""Made-up corpora: a few windows of plain arithmetic, with the metadata a built one has."""

from pathlib import Path

from sparse_control.corpus import METADATA, WINDOWS
from sparse_control.files import read_json_lines, sha256_file, write_json, write_json_lines
from sparse_control.settings import load_settings

PARAMS = Path(__file__).parents[2] / "params.yaml"


def windows(n: int = 8, length: int = 16, vocabulary: int = 256) -> list[dict]:
    return [
        {
            "id": f"{number}:0",
            "article": f"Article {number}",
            "window": 0,
            "text": f"window {number}",
            "input_ids": [(number * 31 + position * 7) % vocabulary for position in range(length)],
        }
        for number in range(n)
    ]


def write_metadata(folder: Path, *, tokenizer_sha256: str = "0" * 64, **settings: int) -> None:
    """corpus.json of the windows that are in `folder`."""
    rows = read_json_lines(folder / WINDOWS)
    length = len(rows[0]["input_ids"])
    defaults = load_settings(PARAMS).corpus.model_dump() | {"sequence_length": length}
    content = {
        "schema": "corpus/1",
        "tokenizer_sha256": tokenizer_sha256,
        "settings": defaults | settings,
        "windows_sha256": sha256_file(folder / WINDOWS),
        "ids": [row["id"] for row in rows],
    }
    write_json(folder / METADATA, content)


def write_corpus(folder: Path, rows: list[dict] | None = None, **metadata) -> Path:
    write_json_lines(folder / WINDOWS, windows() if rows is None else rows)
    write_metadata(folder, **metadata)
    return folder
