"""Files from others are data: a reader gives their content or one line of error, soon, and writes nothing."""

import copy
import io
import json
import os
import random
import signal
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, write_json, write_json_lines
from tests.support.corpus import write_corpus

# of each reader: many for the table, fewer wherever else the tests run
INPUTS = int(os.environ.get("FUZZ_INPUTS", "10000" if "RELIABILITY_TABLE" in os.environ else "2000"))
SECONDS = 10  # a reader that takes longer hangs
WIDTH, RANK = 8, 2
PROJECT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

NASTY = [
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 2**63, 10**400, "", "a", "0", "nan", "../../etc/passwd",
    "/etc/passwd", "a/../../b", "C:\\x", "\x00", "\x1b[2J", "\ud800", "é" * 50, "A" * 2000, [], {}, [[]], {"a": None},
    [None], "${jndi}", "\\input{/etc/passwd}", "<script>", "a\nb", "1" * 400,
]  # fmt: skip
TOKENS = [b"NaN", b"-Infinity", b"1e999", b"null", b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\xff", b"\x00"]


FORBIDDEN = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.system", "subprocess.Popen", "socket.connect")


# --- mutations ------------------------------------------------------------------------------------------------------


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """A few flipped, replaced, cut, inserted or repeated bytes."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        place = draw.randrange(len(content) + 1)
        end = min(len(content), place + draw.randrange(1, 17))
        kind = draw.randrange(7)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << draw.randrange(8)
        elif kind == 1 and place < len(content):
            content[place] = draw.randrange(256)
        elif kind == 2:
            del content[place:]
        elif kind == 3:
            content[place:place] = draw.randbytes(draw.randrange(1, 9))
        elif kind == 4:
            del content[place:end]
        elif kind == 5:
            content[place:place] = content[place:end]
        else:
            content[place:end] = draw.choice(TOKENS)
    return bytes(content)


def changed_value(value: Any, draw: random.Random) -> Any:
    """A JSON value with one or two nodes replaced, removed, renamed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2))):
        node, steps = value, draw.randrange(1, 9)
        for _ in range(steps):
            inner = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
            inner = [item for item in inner if isinstance(item, (dict, list)) and item]
            if not inner:
                break
            node = draw.choice(inner)
        if not isinstance(node, (dict, list)) or not node:
            return draw.choice(NASTY)
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        kind = draw.randrange(5)
        if kind <= 2:
            node[key] = copy.deepcopy(draw.choice(NASTY))
        elif kind == 3:
            del node[key]
        elif isinstance(node, dict):
            node[draw.choice(["", "extra", "__class__", "../x", "\x00", str(key) + " "])] = node.pop(key)
        else:
            node.insert(key, node[key])
    return value


def changed_json(value: Any, draw: random.Random) -> bytes:
    if draw.randrange(3) == 0:
        return changed_bytes(json.dumps(value).encode(), draw)
    return json.dumps(changed_value(value, draw)).encode()


def changed_lines(rows: list[Any], draw: random.Random) -> bytes:
    rows = list(rows)
    place = draw.randrange(len(rows))
    lines = [json.dumps(row).encode() for row in rows]
    lines[place] = changed_json(rows[place], draw)
    return b"".join(line + b"\n" for line in lines)


def changed_archive(data: bytes, draw: random.Random) -> bytes:
    """A saved tensor: its bytes, or one member of the archive with a checksum that fits."""
    if draw.randrange(2):
        return changed_bytes(data, draw)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as changed:
        names = archive.namelist()
        chosen = draw.choice(names)
        for name in names:
            content = archive.read(name)
            if name == chosen:
                content = changed_bytes(content, draw)
            if name != chosen or draw.randrange(8):
                changed.writestr(draw.choice(["../../x", "/abs"]) if draw.randrange(64) == 0 else name, content)
    return out.getvalue()


# --- the trial ------------------------------------------------------------------------------------------------------


class Watch:
    """Notes whether anything was written, removed, started or connected to while a reader was at work."""

    def __init__(self) -> None:
        self.on, self.seen = False, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event == "open":
            mode, flags = arguments[1], arguments[2]
            writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
            writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (mode is None and writing):
                self.seen.append((event, str(arguments[0])))
        elif event in FORBIDDEN:
            self.seen.append((event, str(arguments)))


@pytest.fixture(scope="module")
def watch():
    return Watch()


def trial(
    path: Path,
    change: Callable[[random.Random], bytes],
    read: Callable[[], Any],
    watch: Watch,
    faults,
    name: str,
) -> None:
    """Read many changed forms of one file.

    Args:
        path: of the file that is changed; the others the reader needs stand beside it.
        change: gives its new bytes.
        read: the reader.
        name: of the reader, for the table.
    """
    draw, unclean, refused = random.Random(name), [], 0
    path.touch()
    before = sorted(path.parent.rglob("*"))

    def too_long(number: int, frame: Any) -> None:
        raise TimeoutError(f"{name}: longer than {SECONDS} s")

    handler = signal.signal(signal.SIGALRM, too_long)
    try:
        for _ in range(INPUTS):
            data = change(draw)
            path.write_bytes(data)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            watch.on = True
            try:
                read()
            except InputError as error:
                refused += 1
                if len(str(error)) > 3000:
                    unclean.append((f"{len(str(error))} characters of error", data[:200]))
            except Exception as error:
                unclean.append((f"{type(error).__name__}: {error}"[:200], data[:200]))
            finally:
                watch.on = False
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, handler)
    written, watch.seen = watch.seen, []
    faults.tried(name, INPUTS, refused, len(unclean))
    assert not unclean, f"{len(unclean)} unclean, among: {unclean[:20]}"
    assert not written, written[:3]
    assert sorted(path.parent.rglob("*")) == before
    assert refused > INPUTS // 10, "the changes must matter"


# --- the readers ----------------------------------------------------------------------------------------------------


def test_records(tmp_path, watch, faults):
    from sparse_control.records.six_axis_files import read_measurements
    from tests.support.measured_root import measurement

    rows = [json.loads(json.dumps(measurement(seed=seed))) for seed in (0, 1)]
    study = "{task}.{selector}.{condition}.jsonl".format(**rows[0])
    path = tmp_path / rows[0]["model"] / "six_axis" / study
    path.parent.mkdir(parents=True)
    write_json_lines(path, rows)
    assert len(read_measurements(tmp_path, path)) == 2
    read = partial(read_measurements, tmp_path, path)
    trial(path, partial(changed_lines, rows), read, watch, faults, "records")


def test_params(tmp_path, watch, faults, monkeypatch):
    """The settings' own checks, on content that YAML would give; its text is the next test's."""
    import yaml

    from sparse_control import settings
    from sparse_control.files import read_json

    content = yaml.safe_load((PROJECT / "params.yaml").read_bytes())
    small = {key: value for key, value in content.items() if key != "presets"} | {"presets": {"smoke": {}}}
    path = tmp_path / "params.yaml"
    monkeypatch.setattr("sparse_control.settings.load.read_yaml", read_json)
    trial(path, partial(changed_json, small), partial(settings.load_settings, path), watch, faults, "params.yaml")


def test_yaml(tmp_path, watch, faults):
    from sparse_control.files import read_yaml

    text = b"a: {b: [1, 2.5e-3, null, true], c: 'x y'}\n# why\nd:\n  - e: 2026-01-01\n    f: |\n      text\n  - 0x1f\n"
    path = tmp_path / "any.yaml"
    trial(path, lambda draw: changed_bytes(text, draw), lambda: read_yaml(path), watch, faults, "YAML")


def test_score_files(tmp_path, watch, faults):
    from sparse_control.records.readouts import score_file

    content = json.loads((PROJECT / "examples" / "score_example.json").read_text())
    path = tmp_path / "score.json"
    trial(path, lambda draw: changed_json(content, draw), lambda: score_file(path), watch, faults, "readout files")


@pytest.fixture
def factors(tmp_path):
    import torch

    from sparse_control.jacobian.qb import Factors
    from sparse_control.jacobian.store import REQUIRED_METADATA, save_factors

    with torch.random.fork_rng():
        torch.manual_seed(0)
        q, b = torch.linalg.qr(torch.randn(WIDTH, 2 * RANK))[0], torch.randn(2 * RANK, WIDTH)
    metadata = dict.fromkeys(REQUIRED_METADATA, 0) | {"hidden_dimension": WIDTH, "rank": RANK, "oversampling": RANK}
    save_factors(tmp_path / "6", Factors(q, b, RANK, RANK), metadata)
    return tmp_path / "6"


@pytest.mark.parametrize("name", ["Q.pt", "B.pt"])
def test_factors(factors, name, watch, faults):
    from sparse_control.jacobian.store import load_factors

    good = (factors / name).read_bytes()
    trial(factors / name, lambda draw: changed_archive(good, draw), lambda: load_factors(factors), watch, faults, name)


def test_factor_metadata(factors, watch, faults):
    from sparse_control.jacobian.store import load_factors

    path = factors / "metadata.json"
    content = json.loads(path.read_text())
    trial(path, lambda draw: changed_json(content, draw), lambda: load_factors(factors), watch, faults, "metadata.json")


def test_lenses(tmp_path, watch, faults):
    import torch

    from sparse_control.jacobian.lens import read_lens

    path = tmp_path / "lens.pt"
    matrices = {0: torch.eye(4), 1: torch.ones(4, 4)}
    torch.save({"J": matrices, "n_prompts": 3, "source_layers": [0, 1], "d_model": 4}, path)
    good = path.read_bytes()
    assert read_lens(path).layers == (0, 1)
    trial(path, lambda draw: changed_archive(good, draw), lambda: read_lens(path), watch, faults, "lens files")


def test_corpus_windows(tmp_path, watch, faults):
    from sparse_control.corpus import load_corpus

    rows = [{"id": f"{n}:0", "article": "A", "window": 0, "text": "t", "input_ids": [n, n + 1]} for n in range(4)]
    path = tmp_path / "windows.jsonl"
    write_corpus(tmp_path, rows)
    trial(path, lambda draw: changed_lines(rows, draw), lambda: load_corpus(tmp_path), watch, faults, "corpus windows")


def test_corpus_windows_with_their_hash(tmp_path, watch, faults):
    from sparse_control.corpus import load_corpus

    rows = [{"id": f"{n}:0", "article": "A", "window": 0, "text": "t", "input_ids": [n, n + 1]} for n in range(4)]
    path, metadata = tmp_path / "windows.jsonl", tmp_path / "corpus.json"
    write_corpus(tmp_path, rows)
    content = read_json(metadata)

    def read() -> None:
        metadata.write_text(
            json.dumps(content | {"windows_sha256": sha256_file(path)})
        )  # as one who changes both would
        watch.seen.clear()
        load_corpus(tmp_path)

    trial(path, lambda draw: changed_lines(rows, draw), read, watch, faults, "corpus windows and their hash")


def test_corpus_metadata(tmp_path, watch, faults):
    from sparse_control.corpus import load_corpus

    path = write_corpus(tmp_path) / "corpus.json"
    content = read_json(path)
    trial(path, lambda draw: changed_json(content, draw), lambda: load_corpus(tmp_path), watch, faults, "corpus.json")


def test_freeze_manifest(tmp_path, watch, faults):
    from sparse_control.records.base import read_record
    from sparse_control.records.jacobian_iss.freeze import FreezeManifest
    from tests.support.measured_iss import iss_files

    path, content = tmp_path / "freeze_manifest.json", iss_files()["freeze_manifest.json"]
    write_json(path, content)
    read = partial(read_record, FreezeManifest, path)
    assert read().layers
    trial(path, partial(changed_json, content), read, watch, faults, "freeze manifest")


def test_manifest(tmp_path, watch, faults):
    from sparse_control.records.manifest import read_manifest

    path = tmp_path / "MANIFEST.json"
    content = {
        "schema": "manifest/1",
        "measurements": {"measurements/a.jsonl": "0" * 64, "jacobian_iss/b.json": "1" * 64},
        "tables": {"paper/tables/c.csv": "2" * 64},
    }
    path.write_text("")
    trial(path, partial(changed_json, content), partial(read_manifest, tmp_path), watch, faults, "MANIFEST.json")


def test_unfinished_work(tmp_path, watch, faults):
    import torch

    from sparse_control.stages.checkpoint import Checkpoint

    layout = {"total": ((2, 3), torch.float64), "next": ((), torch.int64)}
    checkpoint = Checkpoint(tmp_path / "sum", {"model": "a"}, layout, every=60)
    checkpoint.save({"total": torch.ones(2, 3, dtype=torch.float64), "next": torch.tensor(3)})
    good = checkpoint.path.read_bytes()
    trial(checkpoint.path, lambda draw: changed_bytes(good, draw), checkpoint.load, watch, faults, "checkpoints")
