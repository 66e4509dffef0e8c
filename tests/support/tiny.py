"""Random models of every supported architecture, three layers and 32 wide, built from configurations alone."""

import copy
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
    Starcoder2Config,
)

from sparse_control.models import LanguageModel

WIDTH, N_LAYERS, VOCABULARY, WINDOW = 32, 3, 100, 5
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_USUAL = _TOKENS | {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_WINDOWED = _USUAL | {"sliding_window": WINDOW}

# Grouped queries throughout; windows shorter than the test prompts where the architecture has them.
CONFIGS = {
    "llama": lambda: LlamaConfig(**_USUAL),
    "qwen2": lambda: Qwen2Config(**_WINDOWED, use_sliding_window=True, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**_USUAL, head_dim=8),
    "mistral": lambda: MistralConfig(**_WINDOWED),
    "gemma": lambda: GemmaConfig(**_USUAL, head_dim=8),
    "gemma2": lambda: Gemma2Config(**_WINDOWED, head_dim=8, query_pre_attn_scalar=8),
    "gemma3": lambda: Gemma3TextConfig(**_WINDOWED, head_dim=8, query_pre_attn_scalar=8),
    "olmo": lambda: OlmoConfig(**_USUAL),
    "olmo2": lambda: Olmo2Config(**_USUAL),
    "olmo3": lambda: Olmo3Config(**_WINDOWED),
    "phi": lambda: PhiConfig(**_USUAL),
    "phi3": lambda: Phi3Config(**_WINDOWED),
    "glm4": lambda: Glm4Config(**_USUAL, head_dim=8),
    "granite": lambda: GraniteConfig(**_USUAL, residual_multiplier=0.7, embedding_multiplier=3.0),
    "cohere": lambda: CohereConfig(**_USUAL),
    "stablelm": lambda: StableLmConfig(**_USUAL),
    "starcoder2": lambda: Starcoder2Config(**_WINDOWED),
    "gpt2": lambda: GPT2Config(
        **_TOKENS, vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=N_LAYERS, n_head=4, n_positions=64
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**{key: value for key, value in _USUAL.items() if key != "num_key_value_heads"}),
}


def tiny_model(name: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0) -> LanguageModel:
    """A random model with weights large enough that every block matters."""
    return LanguageModel.wrap(copy.deepcopy(_random_model(name, dtype, seed)), provenance={"name": f"tiny-{name}"})


@lru_cache
def _random_model(name: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(5)
    return model.eval().requires_grad_(False)


def words_tokenizer(n_words: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The words w0, w1, .. are the tokens 0, 1, ..; w1 is BOS and is not added."""
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(n_words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", bos_token="w1")


def save_tiny(folder: Path, name: str = "llama", *, seed: int = 0) -> Path:
    """A tiny model and a tokenizer of words in a folder, as a user would save them."""
    tiny_model(name, seed=seed).model.save_pretrained(folder)
    words_tokenizer().save_pretrained(folder)
    return folder


def prompt(length: int = 24, shift: int = 0) -> torch.Tensor:
    """Distinct token ids (length,)."""
    return (torch.arange(1, length + 1) * 37 + shift) % VOCABULARY
