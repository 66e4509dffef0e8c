"""Every type of model that transformers has: exact where it is taken, refused in one line where it is not."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.decode import DECODE_ATTENTION, using_attention
from sparse_control.models.self_check import self_check
from tests.support.architectures import OWN, TYPES, tiny_architecture, tiny_config
from tests.support.examination import outcome, read_page

# one of each kind of thing that has gone wrong
KINDS = {
    "afmoe": ("supported", ""),  # queries and outputs that are strided
    "gptj": ("supported", ""),  # a table of positions
    "gpt_bigcode": ("supported", ""),  # one key/value head for all
    "granitemoe": ("supported", ""),  # experts
    "bitnet": ("refused", "head 0 of layer 0 moves slices"),  # a norm over all heads before the projection
    "deepseek_v3": ("refused", "caches something other than the keys and values"),  # latent attention
    "deepseek_v32": ("refused", "layers of kind 'indexed_attention'"),  # sparse attention
    "diffllama": ("refused", "a decode step on cached keys and values does not give"),  # attention of its own
    "doge": ("refused", "a decode step on cached keys and values does not give"),  # a mask made of the values
    "gemma3n": ("refused", "the captured last state, normed again, is not"),  # shared keys and values, several streams
    "gemma4_text": ("refused", "heads of different sizes in different layers"),
    "kimi_linear": ("refused", "layers of kind 'linear_attention'"),
    "opt": ("supported", ""),  # the tokens of all prompts as one list in the MLP; positions with an offset
    "bloom": ("supported", ""),  # attention of its own with a bias by distance, and a residual added inside of modules
    "falcon": ("supported", ""),  # attention of its own, beside the MLP
    "mpt": ("supported", "prompts of up to the positions its attention has a bias for"),
    "reformer": ("refused", "has no module 'model.layers'"),
    "rwkv": ("refused", "has no module 'model.layers'"),
}


@pytest.mark.parametrize("model_type", KINDS)
def test_one_of_each_kind(model_type):
    kind, reason = KINDS[model_type]
    found, why = outcome(model_type)
    assert found == kind and (reason in why)


OWN_ATTENTION = [
    ("falcon", {"alibi": True}),
    ("falcon", {"alibi": True, "parallel_attn": False, "bias": True}),
    ("falcon", {"multi_query": False, "num_kv_heads": 4}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"alibi": True, "hidden_size": 48, "num_attention_heads": 6}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("bloom", {"hidden_size": 48, "n_head": 6}),  # slopes of a number of heads that is no power of two
    ("mpt", {"attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.1}}),
    ("mpt", {"d_model": 48, "n_heads": 6}),
]


@pytest.mark.parametrize(("model_type", "fields"), OWN_ATTENTION)
def test_every_form_of_an_attention_of_its_own(monkeypatch, model_type, fields):
    monkeypatch.setitem(OWN, model_type, fields)
    assert outcome(model_type)[0] == "supported"


def test_an_attention_of_its_own_is_put_back(monkeypatch):
    """On an error within, too; and another thread is not let in meanwhile."""
    lm = LanguageModel.wrap(tiny_architecture("bloom"), provenance={"name": "bloom"})
    modules = [block.self_attention for block in lm.layout.blocks]
    with pytest.raises(RuntimeError, match="an error"), using_attention(lm, DECODE_ATTENTION):
        assert all("forward" in vars(module) for module in modules)
        with pytest.raises(InputError, match="bloom: another thread"), using_attention(lm, DECODE_ATTENTION):
            pass
        raise RuntimeError("an error")
    assert not any("forward" in vars(module) for module in modules)


def test_an_unembedding_of_another_width_is_refused():
    """The residual stream is then not what the unembedding reads, as with OPT's projections."""
    config = tiny_config("opt")
    config.word_embed_proj_dim = 16
    with pytest.raises(UnsupportedModel, match="its unembedding reads 16 numbers and not the 32 of the residual"):
        LanguageModel.wrap(AutoModelForCausalLM.from_config(config))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_every_type_does_what_the_page_says(model_type):
    assert outcome(model_type)[0] == read_page()[model_type]


def test_the_page_has_every_type():
    assert set(read_page()) == set(TYPES)


def test_whatever_a_model_raises_is_one_line(monkeypatch):
    """A model that transformers does not know yet, say."""
    lm = LanguageModel.wrap(tiny_architecture("llama"))

    def broken(*_args, **_kwargs):
        raise KeyError("no such\nthing")

    monkeypatch.setattr(lm.model.model.layers[1], "forward", broken)
    with pytest.raises(UnsupportedModel, match="cannot be read as a decoder .KeyError") as error:
        self_check(lm)
    assert "\n" not in str(error.value)


def test_a_type_that_is_refused_is_refused_from_a_folder_too(tmp_path):
    from tests.support.tiny import words_tokenizer

    for model_type in ("deepseek_v3", "mamba", "bert"):
        folder = tmp_path / model_type
        tiny_architecture(model_type).save_pretrained(folder)
        words_tokenizer().save_pretrained(folder)
        with pytest.raises(UnsupportedModel) as error:
            load_model(str(folder))
        assert "\n" not in str(error.value)


def test_heads_are_what_the_projection_takes():
    """Not what a configuration calls head_dim, which is the rotary part of a key where attention is latent."""
    model = tiny_architecture("deepseek_v3")
    lm = LanguageModel.wrap(model)
    assert model.config.head_dim == 4 and model.config.v_head_dim == 8 and lm.head_dim == 8 and lm.n_heads == 4
    assert torch.Size((32, lm.n_heads * lm.head_dim)) == lm.layout.attention_outputs[0].weight.shape
