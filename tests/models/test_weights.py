"""What is loaded is what is there: tensors, tokenizers, and no code of the folder's own."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sparse_control.errors import InputError
from sparse_control.models import load_model
from tests.support.tiny import save_tiny, tiny_model, words_tokenizer
from tests.support.tiny_gguf import gguf_tensors, tiny_qwen2, write_gguf, write_parts

FIRST = "model.layers.0.self_attn.q_proj.weight"


def _without(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != FIRST}


def _compiled(tensors):
    return {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}


def _unmerged(tensors):
    """As PEFT leaves it where the adapter is not merged before saving."""
    base = {f"base_model.model.{name}": tensor for name, tensor in _without(tensors).items()}
    return base | {
        f"base_model.model.{FIRST.replace('.weight', '.base_layer.weight')}": tensors[FIRST],
        f"base_model.model.{FIRST.replace('.weight', '.lora_A.default.weight')}": torch.ones(2, 32),
        f"base_model.model.{FIRST.replace('.weight', '.lora_B.default.weight')}": torch.ones(32, 2),
    }


DAMAGE = {
    "one missing": (_without, rf"lacks {FIRST}$"),
    "one more": (lambda tensors: tensors | {"model.other.weight": torch.ones(2)}, "has unknown model.other.weight$"),
    "compiled": (_compiled, r"lacks .* and \d+ more; has unknown _orig_mod\."),
    "unmerged adapter": (_unmerged, r"lacks .*; has unknown base_model\.model\..*"),
    "one adapted": (
        lambda tensors: tensors | {FIRST.replace(".weight", ".lora_A.default.weight"): torch.ones(2, 32)},
        "has unknown .*lora_A",
    ),
    "another shape": (
        lambda tensors: tensors | {FIRST: torch.ones(16, 32)},
        rf"has of another shape {FIRST} \(16, 32\) for \(32, 32\)$",
    ),
    "bias alone": (
        lambda tensors: tensors | {FIRST.replace("weight", "bias"): torch.ones(32)},
        "has unknown .*q_proj.bias$",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_tensors_that_do_not_fill_the_model_are_named_in_one_line(directory, kind):
    change, message = DAMAGE[kind]
    path = directory / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}, path, {"format": "pt"})
    with pytest.raises(InputError, match=message) as error:
        load_model(str(directory))
    assert "\n" not in str(error.value) and str(directory) in str(error.value)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "cohere"])
def test_tied_weights_and_buffers_that_are_computed_are_not_missing(tmp_path, architecture):
    folder = save_tiny(tmp_path / architecture, architecture)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load_model(str(folder))


def test_an_output_matrix_that_is_not_tied_is_missed(tmp_path):
    folder = save_tiny(tmp_path / "gpt2", "gpt2")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="lacks lm_head.weight$"):
        load_model(str(folder))


GGUF_DAMAGE = {
    "one missing": (
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "blk.1.ffn_up.weight"},
        "lacks model.layers.1.mlp.up_proj.weight$",
    ),
    "one more": (
        lambda tensors: tensors | {"rope_freqs.weight": torch.ones(4).numpy()},
        "has unknown rope_freqs.weight$",
    ),
    "another shape": (
        lambda tensors: tensors | {"blk.0.attn_output.weight": torch.ones(16, 32).numpy()},
        r"has of another shape model.layers.0.self_attn.o_proj.weight \(16, 32\) for \(32, 32\)$",
    ),
}


@pytest.mark.parametrize("kind", GGUF_DAMAGE)
def test_gguf_files_too_and_no_copy_is_kept(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path / "cache"))
    change, message = GGUF_DAMAGE[kind]
    path = write_gguf(tmp_path / "tiny.gguf", change(gguf_tensors(tiny_qwen2())))
    with pytest.raises(InputError, match=message) as error:
        load_model(str(path))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_a_first_part_under_another_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path / "cache"))
    first, *_ = write_parts(tmp_path, "tiny", gguf_tensors(tiny_qwen2()), 2)
    with pytest.raises(InputError, match="is a part of 2 of a split GGUF file"):
        load_model(str(first.rename(tmp_path / "model.gguf")))
    assert not list((tmp_path / "cache" / "models").iterdir())


# --- tokenizers -----------------------------------------------------------------------------------------------------


def _appending_eos():
    tokenizer = words_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "w2"})
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="w1 $A w2", special_tokens=[("w1", 1), ("w2", 2)]
    )
    return tokenizer


def _empty():
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({}, [])))


def _deaf():
    """With special tokens alone."""
    tokenizer = Tokenizer(models.WordLevel({"w1": 1}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1")


def _one_more():
    tokenizer = words_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (_appending_eos, "its tokenizer appends 'w2' to every text"),
        (_empty, "its tokenizer is empty"),
        (_deaf, "its tokenizer is empty or cannot encode 'a'"),
        (_one_more, r"its tokenizer knows ids up to 100 \('<pad>'\), the model embeds 0..99"),
        (lambda: words_tokenizer(500), r"its tokenizer knows ids up to 499 \('w499'\)"),
    ],
    ids=["appends EOS", "empty", "special tokens alone", "one token more", "of a larger model"],
)
def test_a_tokenizer_that_is_not_the_models_is_refused_in_one_line(tmp_path, tokenizer, message):
    tiny_model().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=message) as error:
        load_model(str(tmp_path / "model"))
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_begins_with_bos_is_taken(tmp_path):
    tokenizer = words_tokenizer()
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(single="w1 $A", special_tokens=[("w1", 1)])
    tiny_model().model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert load_model(str(tmp_path / "model")).provenance["bos"] is True


def test_a_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path):
    tiny_model().model.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError) as error:
        load_model(str(tmp_path / "model"))
    assert "\n" not in str(error.value) and str(tmp_path / "model") in str(error.value)


# --- code -----------------------------------------------------------------------------------------------------------

CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import {base} as Base
class Own(Base):
    pass
"""


@pytest.mark.parametrize("where", ["model", "configuration", "tokenizer", "generation"])
def test_a_folders_own_code_is_never_run(directory, tmp_path, monkeypatch, where):
    """Whatever stands on stdin: nobody is asked."""
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\ny\n"))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    marker = tmp_path / "marker"
    bases = {"model": "LlamaForCausalLM", "configuration": "LlamaConfig", "tokenizer": "PreTrainedTokenizerFast"}
    (directory / "own.py").write_text(CODE.format(marker=str(marker), base=bases.get(where, "LlamaConfig")))
    config = json.loads((directory / "config.json").read_text())
    if where == "tokenizer":
        path = directory / "tokenizer_config.json"
        own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
        path.write_text(json.dumps(json.loads(path.read_text()) | own))
    elif where == "generation":
        (directory / "custom_generate").mkdir()
        text = (
            CODE.format(marker=str(marker), base="LlamaConfig") + "\ndef generate(model, **kwargs):\n    return None\n"
        )
        (directory / "custom_generate" / "generate.py").write_text(text)
    else:
        config |= {"model_type": "own"} if where == "configuration" else {}
        config |= {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (directory / "config.json").write_text(json.dumps(config))
    try:
        load_model(str(directory))
    except InputError as error:
        assert "\n" not in str(error)
    assert not marker.exists()
