"""A project folder with a tiny random model, its corpus and settings; whole runs on it; and the count of faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sparse_control.files import sha256_file, write_json, write_json_lines
from sparse_control.project import project_folder

PROJECT = Path(__file__).resolve().parents[2]


def tiny_settings(model: Path) -> dict:
    """params.yaml with one preset, `tiny`: seconds on a three-layer model; loose thresholds, so that layers pass."""
    content = yaml.safe_load((project_folder() / "params.yaml").read_text())
    content["model"] = str(model)
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
    windows = [
        {"id": f"{n}:0", "article": f"Article {n}", "window": 0, "text": f"window {n}", "input_ids": [(n * 31 + t * 7) % 999 for t in range(16)]}
        for n in range(8)
    ]  # fmt: skip
    corpus = folder / "cache" / "corpus"
    write_json_lines(corpus / "windows.jsonl", windows)
    write_json(corpus / "corpus.json", {"windows_sha256": sha256_file(corpus / "windows.jsonl")})
    return folder


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """Environment of a Prefect server that lasts as long as the tests, with a home of its own."""
    import tasks  # noqa: F401  settles the environment before Prefect reads it
    from flows.server import temporary_server
    from prefect.settings import PREFECT_API_URL, temporary_settings

    home = tmp_path_factory.mktemp("prefect")
    before = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = str(home)
    try:
        with temporary_settings(restore_defaults={PREFECT_API_URL}), temporary_server() as url:
            yield {"PREFECT_HOME": str(home), "PREFECT_API_URL": url}
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


@pytest.fixture(scope="session")
def _faults():
    return {}


@pytest.fixture
def faults(_faults):
    def count(kind: str, number: int) -> None:
        _faults[kind] = _faults.get(kind, 0) + number

    return count
