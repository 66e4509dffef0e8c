"""`doctor --model`: what will work on a model, from every kind of name; what does not is told and is no success."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from sparse_control.commands.doctor import doctor
from sparse_control.commands.entry import exit_code
from tests.support.architectures import tiny_architecture
from tests.support.tiny import save_tiny, words_tokenizer
from tests.support.tiny_gguf import gguf_tensors, tiny_qwen2, write_gguf


@pytest.fixture
def examine(capsys):
    def call(*arguments):
        code = exit_code(doctor, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def saved(folder, model):
    model.save_pretrained(folder)
    words_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["llama", "opt", "bloom", "gguf"])
def test_a_folder_and_a_gguf_are_examined(examine, tmp_path, kind):
    path = tmp_path / kind
    if kind == "gguf":
        path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(tiny_qwen2()))
    elif kind in ("opt", "bloom"):
        saved(path, tiny_architecture(kind))
    else:
        save_tiny(path)
    code, out, _ = examine("--model", path, "--threads", 1, "--json")
    found = json.loads(out)
    assert code == 0 and found["threads"] == 1 and len(found["identity"]) == 64
    names = ["self-check", "Jacobian", "dose 0", "sites: head", "sites: mlp", "sites: resid"]
    assert [check["name"] for check in found["checks"]] == names and all(check["ok"] for check in found["checks"])
    layers, heads = found["layers"], found["heads"]
    assert found["checks"][3]["detail"].startswith(f"{layers * heads} of {layers * heads} change the logits")
    assert found["seconds"]["load"] > 0 and found["seconds"]["corpus_prompt"] > 0
    assert found["megabytes"]["peak"] > found["megabytes"]["weights"] > 0
    assert found["seconds"]["six_axis_record"] is None, "a tokenizer of a few words has no panels"
    assert any(note.startswith("a six-axis record was not timed: ") for note in found["notes"])
    told = "official ISS needs other settings: params.yaml: estimator.ranks: none is below the width"
    assert any(note.startswith(told) for note in found["notes"])


def test_a_head_that_moves_nothing_is_named(examine, tmp_path):
    folder = save_tiny(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        width = model.config.head_dim
        model.model.layers[1].self_attn.o_proj.weight[:, width : 2 * width] = 0
    code, out, _ = examine("--model", saved(tmp_path / "pruned", model))
    assert code == 1
    heads = model.config.num_attention_heads * model.config.num_hidden_layers
    assert f"FAIL  sites: head: {heads - 1} of {heads} change the logits" in out and "; not L01.head.1@-1\n" in out
    assert out.endswith("will not work: six axes\n")


def test_derivatives_that_are_not_adjoint_fail(examine, tmp_path, monkeypatch):
    from sparse_control.jacobian import preflight

    push = preflight._forward_mode
    monkeypatch.setattr(preflight, "_forward_mode", lambda *args: {k: 1.01 * v for k, v in push(*args).items()})
    code, out, _ = examine("--model", save_tiny(tmp_path / "model"))
    assert code == 1 and "FAIL  Jacobian: " in out and "are not adjoint" in out
    assert out.endswith("will not work: official ISS\n")


@pytest.mark.parametrize("model_type", ["gpt_neo", "mamba", "deepseek_v3"])
def test_what_cannot_be_read_is_one_line(examine, tmp_path, model_type):
    code, out, err = examine("--model", saved(tmp_path / model_type, tiny_architecture(model_type)))
    assert code == 2 and out == ""
    assert err.splitlines()[-1].startswith("error: ") and len(err.splitlines()) == 2  # after `loading ...`


def test_a_name_that_is_none_is_one_line(examine):
    code, out, err = examine("--model", "no-such-model")
    assert code == 2 and out == "" and "no-such-model" in err
