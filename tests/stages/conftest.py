"""A whole small study: a random model with a byte tokenizer, a made-up corpus, the project's own facts."""

import json
import shutil

import pytest

from sparse_control.corpus import tokenizer_sha256
from sparse_control.iss import benchmark
from sparse_control.models import load_model
from sparse_control.models.identity import model_label
from sparse_control.project import project_folder
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import Settings, load_settings
from sparse_control.stages import a_reference, b_validate, c_freeze
from tests.support.corpus import write_corpus


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=letters[0])


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """Folder of a three-layer random llama, 32 wide, over bytes."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = tmp_path_factory.mktemp("models") / "small"
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def paths_of(small_model):
    """Paths of the small model, or of one of its nulls, below a root."""
    return lambda root, null="none": ModelPaths(root, model_label(str(small_model)), null)


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory, small_model):
    """Eight windows of sixteen bytes."""
    identity = tokenizer_sha256(load_model(str(small_model)).tokenizer)
    return write_corpus(tmp_path_factory.mktemp("corpus"), tokenizer_sha256=identity)


@pytest.fixture(scope="session")
def small_settings(small_model) -> Settings:
    """Settings that fit the small model; loose thresholds, so that some layers pass and none by full width."""
    settings = json.loads(load_settings(project_folder() / "params.yaml").model_dump_json())
    settings["model"] = str(small_model)
    settings["corpus"]["sequence_length"] = 16
    settings["iss"] |= {"layers": [0, 2], "benchmark_relations": 2, "calibration_relations": 2, "facts_per_relation": 4}
    settings["iss"]["bootstrap_resamples"] = 200
    settings["estimator"] |= {
        "corpus_sizes": [2, 4, 8],
        "block_prompts": 3,
        "ranks": [4, 8, 16],
        "oversampling": [2, 4],
        "power_iterations": [0, 1],
    }
    settings["validation"] |= {"activations": 16, "median_relative_error": 0.66, "median_cosine": 0.5}
    settings["validation"] |= {"iss_rank_difference": 0.5, "iss_seed_deviation": 0.5}
    settings["alternatives"] |= {"layers": [0, 2], "ranks": [4, 8, 16]}
    settings["nulls"] |= {"layers": [0, 2], "corpus_sizes": [2, 4]}
    return Settings.model_validate(settings)


def changed(settings: Settings, **parts: dict) -> Settings:
    """The settings with some fields of their sections changed."""
    content = json.loads(settings.model_dump_json())
    for part, values in parts.items():
        content[part] |= values
    return Settings.model_validate(content)


@pytest.fixture(scope="session")
def validated(tmp_path_factory, small_settings, small_corpus):
    """A root after stages A and B, run with the benchmark out of reach."""
    root = tmp_path_factory.mktemp("validated")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BENCHMARK_FACTS", "BENCHMARK_PROMPTS"):
            patch.setattr(benchmark, name, root / "out-of-reach")
        for stage in (a_reference, b_validate):
            stage.run(corpus=small_corpus, root=root, settings=small_settings)
    return root


@pytest.fixture(scope="session")
def frozen(validated, tmp_path_factory, small_settings, small_corpus):
    """A root after stages A to C, run with the benchmark out of reach."""
    root = shutil.copytree(validated, tmp_path_factory.mktemp("frozen") / "root")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BENCHMARK_FACTS", "BENCHMARK_PROMPTS"):
            patch.setattr(benchmark, name, root / "out-of-reach")
        c_freeze.run(corpus=small_corpus, root=root, settings=small_settings)
    return root


@pytest.fixture
def root(frozen, tmp_path):
    """A copy of the frozen root, to be changed."""
    return shutil.copytree(frozen, tmp_path / "root")
