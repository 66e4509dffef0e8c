"""Prompts beyond what a model reads as it reads shorter ones: refused by name, by everything that reads a prompt."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config

from sparse_control.errors import InputError
from sparse_control.jacobian import corpus_operator, exact_jacobian
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.models import LanguageModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.sites import Site, capture_sites
from sparse_control.models.stream import full_stream, residual_stream
from sparse_control.models.suffix import read_suffixes, suffix_logits
from sparse_control.protocol.generation import generate
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.prompts import Prompts, read_prompts

LIMIT = 16
_SHAPE = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
    "original_max_position_embeddings": LIMIT,
}  # fmt: skip
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
CONFIGS = {
    "learned positions": GPT2Config(
        n_positions=LIMIT, n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=1, eos_token_id=2
    ),
    "longrope": Phi3Config(
        **_SHAPE, max_position_embeddings=64, original_max_position_embeddings=LIMIT, rope_parameters=_LONG
    ),
    "dynamic": LlamaConfig(**_SHAPE, max_position_embeddings=LIMIT, rope_parameters=_DYNAMIC),
}
WORDS = {
    "learned positions": "beyond the 16 positions it has",
    "longrope": "beyond the 16 tokens after which its rotary angles depend on the length",
    "dynamic": "beyond the 16 tokens after which its rotary angles depend on the length",
}


def model_of(kind):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[kind])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(5)
    return LanguageModel.wrap(model.eval().requires_grad_(False), provenance={"name": kind})


def ids(length):
    return (torch.arange(1, length + 1) * 37) % 100


SITE = Site("resid", 0)
READERS = {
    "exact_jacobian": lambda lm, prompt: exact_jacobian(lm, prompt),
    "corpus_operator": lambda lm, prompt: corpus_operator(lm, [prompt], 0).matmat(torch.eye(32)),
    "future_sum_jacobian": lambda lm, prompt: future_sum_jacobian(lm, prompt, skip_first=2),
    "DecodeStep.batch": lambda lm, prompt: DecodeStep.batch(lm, [prompt]),
    "full_stream": lambda lm, prompt: full_stream(lm, prompt[None]),
    "residual_stream": lambda lm, prompt: residual_stream(lm, prompt[None]),
    "read_suffixes": lambda lm, prompt: read_suffixes(lm, [ids(4), prompt], 2),
    "read_prompts": lambda lm, prompt: read_prompts(lm, [ids(4), prompt], [SITE]),
    "Prompts": lambda lm, prompt: Prompts(lm, [ids(4), prompt], [SITE]),
    "capture_sites": lambda lm, prompt: capture_sites(lm, prompt[None], [SITE]),
    "generate": lambda lm, prompt: generate(
        lm, Intervention((SITE,), (1.0,), (torch.zeros(32),)), prompt[:-1].tolist(), doses=[0.0], max_tokens=1
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_reader_takes_prompts_up_to_the_limit_and_refuses_longer_ones(kind, reader):
    lm = model_of(kind)
    READERS[reader](lm, ids(LIMIT))
    with pytest.raises((InputError, ValueError), match=rf"{WORDS[kind]}|more than the {LIMIT} positions") as error:
        READERS[reader](lm, ids(LIMIT + 1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_beyond_it_cached_forwards_would_be_another_model(kind, monkeypatch):
    """The reason for the limit: within it they are full forwards, one token beyond they are not."""
    monkeypatch.setattr(LanguageModel, "check_length", lambda *_: None)
    lm, errors = model_of(kind), {}
    for length in (LIMIT, LIMIT + 1):
        with torch.no_grad():
            found = suffix_logits(lm, read_suffixes(lm, [ids(length)], 1), 1)[0, 0]
            expected = model_of(kind).model(input_ids=ids(length)[None]).logits[0, -1]
        errors[length] = float((found - expected).abs().max())
    assert errors[LIMIT] < 1e-5 and errors[LIMIT + 1] > 1e-3


def test_rotary_models_of_the_usual_kinds_have_no_limit():
    from tests.support.tiny import tiny_model

    for name in ("llama", "gemma3", "phi3", "gpt_neox"):
        assert tiny_model(name).prompt_limit is None
    assert tiny_model("gpt2").prompt_limit.tokens == 64
