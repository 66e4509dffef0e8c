"""A project folder with a tiny random model, its corpus and settings; whole runs on it; and the count of faults."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from sparse_control.files import sha256_file
from sparse_control.project import project_folder
from sparse_control.settings import CorpusSettings
from tests.support.corpus import windows, write_corpus

PROJECT = Path(__file__).resolve().parents[2]


def tiny_settings(model: Path) -> dict:
    """params.yaml with one preset, `tiny`: seconds on a three-layer model; loose thresholds, so that layers pass."""
    content = yaml.safe_load((project_folder() / "params.yaml").read_text())
    content["model"] = str(model)
    content["corpus"]["sequence_length"] = 16
    content["iss"] |= {"layers": [0, 2], "benchmark_relations": 2, "calibration_relations": 2, "facts_per_relation": 4}
    content["iss"]["bootstrap_resamples"] = 200
    content["estimator"] |= {
        "corpus_sizes": [4, 8],
        "block_prompts": 2,
        "checkpoint_seconds": 0,
        "ranks": [4, 8, 16],
        "oversampling": [2, 4],
        "power_iterations": [0, 1],
    }
    content["validation"] |= {"activations": 16, "median_relative_error": 0.9, "median_cosine": 0.1}
    content["validation"] |= {"iss_rank_difference": 0.9, "iss_seed_deviation": 0.9}
    content["alternatives"] = {"layers": [0, 2], "ranks": [4, 8], "power_iterations": [0]}
    content["nulls"] = {"layers": [0], "corpus_sizes": [4]}
    content["protocol"] |= {
        "tasks": ["ioi"],
        "selectors": ["driver_omp"],
        "conditions": ["P", "F"],
        "seeds": [0, 1, 2],
        "task_seeds": {},
        "pairs": {"fit": 4, "evaluate": 4, "reuse": 4},
        "minimum_gap": 0.0,
        "minimum_pairs": 1,
        "effects_check": 2,
    }
    content["presets"] = {"tiny": {}}
    return content


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, default_model):
    """A folder with params.yaml, a random three-layer model with the default model's tokenizer, and a small corpus."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = tmp_path_factory.mktemp("project")
    tokenizer = default_model.tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / "tiny")
    tokenizer.save_pretrained(folder / "tiny")
    (folder / "params.yaml").write_text(yaml.safe_dump(tiny_settings(folder / "tiny")))
    _place_corpus(folder)
    return folder


def _place_corpus(folder: Path) -> None:
    """A small corpus where `corpus.build` looks for the one of the tiny model's tokenizer and settings."""
    from sparse_control import corpus
    from sparse_control.models import load_model
    from sparse_control.settings import load_settings

    def made_up(archive: Path, out: Path, *, tokenizer_sha256: str, settings: CorpusSettings, **_: object) -> None:
        rows = windows(length=settings.sequence_length, vocabulary=999)
        write_corpus(out, rows, tokenizer_sha256=tokenizer_sha256, **settings.model_dump())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "build_corpus", made_up)
        patch.setattr(corpus, "fetch_archive", lambda *_: folder)
        settings = load_settings(folder / "params.yaml", "tiny")
        corpus.build(settings, load_model(settings.model), cache=folder / "cache")


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """Environment of a Prefect server that lasts as long as the tests, with a home of its own."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    import tasks  # noqa: F401  settles the environment before Prefect reads it
    from flows.server import temporary_server

    home = tmp_path_factory.mktemp("prefect")
    before = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = str(home)
    try:
        with temporary_settings(restore_defaults={PREFECT_API_URL}), temporary_server() as url:
            secret = PREFECT_API_AUTH_STRING.value()
            yield {"PREFECT_HOME": str(home), "PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": secret}
    finally:
        os.environ.pop("PREFECT_HOME")
        if before is not None:
            os.environ["PREFECT_HOME"] = before


class Launcher:
    """Whole runs in processes of their own; see `tests.reliability.launcher`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.launcher", str(folder)],
            cwd=PROJECT,
            env=clean | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, flow: str, root: Path, **how: object) -> int:
        """Exit code of a flow; minus the number of the signal that ended it."""
        self._process.stdin.write(json.dumps({"flow": flow, "root": str(root), **how}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())["code"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def launcher(tiny_folder, api):
    launcher = Launcher(tiny_folder, api)
    yield launcher
    launcher.close()


def content_of(root: Path) -> dict[str, str]:
    """Relative path -> hash of everything that was measured into a root."""
    return {
        path.relative_to(root).as_posix(): sha256_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


# --- the table ------------------------------------------------------------------------------------------------------

TABLE = PROJECT / "docs" / "reliability.md"
TAMPERING = "## What `verify` believes"  # the rest of the page is held to tests/verify/tampering.py
ASKED = "RELIABILITY_TABLE"  # the environment variable that has the table written, after a run of all of these tests


@dataclass
class Faults:
    """What was done to the code, and how often it came through."""

    injected: Counter = field(default_factory=Counter)
    survived: Counter = field(default_factory=Counter)
    inputs: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def inject(self, kind: str, number: int = 1) -> None:
        self.injected[kind] += number

    def survive(self, kind: str, number: int = 1) -> None:
        """The results were compared, and nothing was lost."""
        self.survived[kind] += number

    def tried(self, reader: str, inputs: int, refused: int, unclean: int) -> None:
        self.inputs[reader] = (inputs, refused, unclean)

    def text(self) -> str:
        faults = [(kind, n, self.survived[kind], n - self.survived[kind]) for kind, n in self.injected.items()]
        readers = [(reader, *counts) for reader, counts in self.inputs.items()]
        return HEADER + "\n".join(
            (
                _markdown(("fault", "injected", "survived", "lost"), faults),
                _markdown(("file from others", "bad inputs tried", "refused in one line", "unclean errors"), readers),
            )
        )


HEADER = f"""\
# Reliability

Written by the tests: `{ASKED}=1 python -m pytest tests/reliability`. *Survived* means that the run went on, or refused
in one line with exit code 2, and that every measurement and factor is byte for byte that of an undisturbed run; a
killed run does at most the piece in hand twice. *Refused* inputs raise one line of error; the others are good, or good
enough. No reader wrote a file, started a process or took longer than ten seconds.

"""


def _markdown(header: tuple[str, ...], rows: list[tuple]) -> str:
    total = ("**in all**", *(sum(row[column] for row in rows) for column in range(1, len(header))))
    lines = [header, ("---", *("---:" for _ in header[1:])), *rows, total]
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in line] for line in lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


FAULTS = pytest.StashKey[Faults]()


def pytest_configure(config):
    config.stash[FAULTS] = Faults()


def pytest_sessionfinish(session, exitstatus):
    faults = session.config.stash.get(FAULTS, None)
    if os.environ.get(ASKED) and faults is not None and faults.injected and faults.inputs:
        TABLE.parent.mkdir(exist_ok=True)
        _, heading, tampering = TABLE.read_text().partition(TAMPERING)
        TABLE.write_text(faults.text() + "\n" + heading + tampering)


@pytest.fixture
def faults(request) -> Faults:
    return request.config.stash[FAULTS]
