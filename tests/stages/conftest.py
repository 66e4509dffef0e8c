"""A whole small study: a random model with a byte tokenizer, a made-up corpus, the project's own facts."""

import json

import pytest

from sparse_control.files import sha256_file, write_json, write_json_lines
from sparse_control.models.identity import model_label
from sparse_control.project import project_folder
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import Settings, load_settings


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
def small_corpus(tmp_path_factory):
    """Eight windows of sixteen bytes."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        {
            "id": f"{n}:0",
            "article": f"Article {n}",
            "window": 0,
            "text": f"window {n}",
            "input_ids": [(n * 31 + t * 7) % 256 for t in range(16)],
        }
        for n in range(8)
    ]
    write_json_lines(folder / "windows.jsonl", rows)
    write_json(folder / "corpus.json", {"windows_sha256": sha256_file(folder / "windows.jsonl")})
    return folder


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
