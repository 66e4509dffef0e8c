"""One identity over everything that changes a model's outputs, and the names and copies that rest on it."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel, load_model
from sparse_control.models import identity as module
from sparse_control.models.identity import ModelIdentity, model_identity, model_label
from tests.support.tiny import prompt, save_tiny, tiny_model
from tests.support.tiny_gguf import gguf_tensors, tiny_qwen2, write_gguf, write_parts


def _edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _shard(folder):
    """The weights in two shards of a subfolder, which an index names."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "parts").mkdir()
    weight_map = {}
    for number, names in enumerate((list(tensors)[:5], list(tensors)[5:])):
        file = f"parts/{number}.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _touch_shard(folder):
    _shard(folder)
    before = model_identity(str(folder))
    path = folder / "parts" / "1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    return before


COUNTS = {
    "config.json": lambda folder: _edit_json(folder / "config.json", rms_norm_eps=0.1),
    "generation_config.json": lambda folder: _edit_json(folder / "generation_config.json", temperature=2.0),
    "tokenizer.json": lambda folder: _edit_json(folder / "tokenizer.json", truncation=None, version="1.1"),
    "tokenizer_config.json": lambda folder: _edit_json(folder / "tokenizer_config.json", padding_side="left"),
    "chat_template.jinja": lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"),
    "additional_chat_templates/tool.jinja": lambda folder: (
        (folder / "additional_chat_templates").mkdir(),
        (folder / "additional_chat_templates" / "tool.jinja").write_text("{{ messages }}"),
    ),
    "added_tokens.json": lambda folder: (folder / "added_tokens.json").write_text("{}"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_file_that_is_loaded_counts_and_is_named(directory, name):
    before = model_identity(str(directory))
    COUNTS[name](directory)
    after = model_identity(str(directory))
    assert after.sha256 != before.sha256 and after.files_sha256 != before.files_sha256
    assert before.difference(after) in (f"{name} differs", f"only the second has {name}")


def test_shards_in_a_subfolder_count(directory):
    before = _touch_shard(directory)
    assert before.difference(model_identity(str(directory))) == "parts/1.safetensors differs"


def test_what_is_not_loaded_does_not_count(directory):
    before = model_identity(str(directory))
    (directory / "README.md").write_text("notes")
    (directory / "optimizer.pt").write_bytes(b"state")
    (directory / "trainer_state.json").write_text("{}")
    (directory / "eval_results.json").write_text("{}")
    save_tiny(directory / "checkpoint-1", seed=1)
    assert model_identity(str(directory)) == before


def test_loading_opens_no_file_that_does_not_count(directory):
    """The loader's own files, in a process of its own, as an audit hook cannot be taken away again."""
    _shard(directory)
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    (directory / "special_tokens_map.json").write_text("{}")
    code = (
        "import os, sys\n"
        "from sparse_control.models import load_model\n"
        "folder, opened = os.path.realpath(sys.argv[1]), set()\n"
        "def seen(event, arguments):\n"
        "    if event == 'open' and isinstance(arguments[0], str) and arguments[0].startswith(folder):\n"
        "        opened.add(os.path.relpath(arguments[0], folder))\n"
        "sys.addaudithook(seen)\n"
        "lm = load_model(folder)\n"
        "print(sorted(opened - set(lm.identity.files)), len(opened) > 4)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"


def test_dtype_and_libraries_count(directory, monkeypatch):
    before = model_identity(str(directory))
    assert before.difference(model_identity(str(directory), "bfloat16")) == "dtype is float32 and bfloat16"
    monkeypatch.setattr(module, "version", lambda name: "9.9" if name == "torch" else "5.24.0")
    after = model_identity(str(directory))
    assert after.sha256 != before.sha256 and "torch is " in before.difference(after)
    assert after.files_sha256 == before.files_sha256, "a label outlives an update"


def test_a_loaded_model_and_its_records_carry_it(directory):
    lm, expected = load_model(str(directory)), model_identity(str(directory))
    assert lm.identity == expected and lm.provenance["identity"] == expected.sha256
    kept = json.loads(json.dumps(lm.provenance))
    assert ModelIdentity.from_provenance(kept) == expected
    with pytest.raises(ValueError, match="is not that of its parts"):
        ModelIdentity.from_provenance(kept | {"dtype": "float64"})
    assert ModelIdentity.from_provenance({"name": "an older record"}) is None


def test_a_model_in_memory_has_one_too():
    first, again, other = (tiny_model(seed=seed) for seed in (0, 0, 1))
    assert first.identity == again.identity
    assert first.identity.difference(other.identity) == "weights differs"
    other = LanguageModel.wrap(tiny_model().model)
    other.model.config.rms_norm_eps = 0.1
    assert first.identity.difference(other.identity) == "configuration differs"


def test_no_weights_are_loaded_for_it(directory):
    code = (
        "import sys; from sparse_control.models.identity import model_identity, model_label\n"
        "model_identity(sys.argv[1]), model_label(sys.argv[1]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_files_that_stay_as_they_are_are_hashed_once(directory, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "sha256_file", lambda path: calls.append(path.name) or path.name)
    model_identity(str(directory))
    once = len(calls)
    model_identity(str(directory), "float64")
    model_label(str(directory))
    assert once == len(calls) == len(set(calls))
    _edit_json(directory / "config.json", rms_norm_eps=0.1)
    model_identity(str(directory))
    assert calls[once:] == ["config.json"]


# --- names ----------------------------------------------------------------------------------------------------------


def test_two_folders_of_one_name_have_two_labels(tmp_path):
    folders = [save_tiny(tmp_path / f"seed{seed}" / "checkpoint-1", seed=seed) for seed in (0, 1)]
    labels = [model_label(str(folder)) for folder in folders]
    assert len(set(labels)) == 2
    for folder, label in zip(folders, labels, strict=True):
        digits = model_identity(str(folder)).files_sha256[:8]
        assert label == f"checkpoint-1-{digits}" == load_model(str(folder)).name
    _edit_json(folders[0] / "config.json", rms_norm_eps=0.1)
    assert model_label(str(folders[0])) not in labels, "another configuration is another model"
    moved = shutil.copytree(folders[1], tmp_path / "elsewhere" / "checkpoint-1")
    assert model_label(str(moved)) == labels[1], "it does not depend on where the folder is"


def test_names_of_registry_and_hub_stay():
    assert model_label("smollm2-135m-instruct") == "smollm2-135m-instruct"
    assert model_label("Qwen/Qwen2.5-0.5B") == "Qwen--Qwen2.5-0.5B"


def test_files_that_change_while_they_are_loaded_are_refused(directory, monkeypatch):
    from sparse_control.models import load

    def reading(folder, dtype):
        found = read(folder, dtype)
        _edit_json(folder / "config.json", rms_norm_eps=0.1)
        return found

    read = load.read_model
    monkeypatch.setattr(load, "read_model", reading)
    with pytest.raises(InputError, match="its files changed while they were loaded"):
        load_model(str(directory))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_is_refused_with_the_command_that_merges_it(directory, name):
    (directory / name).write_text("{}")
    for refuse in (load_model, model_identity, model_label):
        with pytest.raises(
            UnsupportedModel, match=rf"{name}: an adapter, which is not applied; .*merge_and_unload"
        ) as e:
            refuse(str(directory))
        assert "\n" not in str(e.value)


# --- GGUF files and their copies in the cache -----------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def _logits(model):
    return model(input_ids=prompt(12)[None]).logits


def _dequantised(model, tensors):
    """The model with the numbers a Q8_0 file holds."""
    from gguf import GGMLQuantizationType, dequantize, quantize

    names = dict(zip(tensors, model.state_dict(), strict=True))
    kind = GGMLQuantizationType.Q8_0
    state = {
        names[name]: torch.from_numpy(tensor if tensor.ndim == 1 else dequantize(quantize(tensor, kind), kind))
        for name, tensor in tensors.items()
    }
    model.load_state_dict(state)
    return model


def test_a_gguf_file_is_what_it_holds(tmp_path, cache):
    model = tiny_qwen2()
    tensors = {name: np.array(tensor) for name, tensor in gguf_tensors(model).items()}
    path = write_gguf(tmp_path / "tiny.gguf", tensors)
    lm = load_model(str(path))
    assert lm.identity == model_identity(str(path)) and lm.name == model_label(str(path))
    assert lm.identity.quantisation == "Q8_0, F32 dequantised to float32" and "gguf" in lm.identity.versions
    assert torch.allclose(_logits(lm.model), _logits(_dequantised(model, tensors)), atol=1e-5)


def test_the_parts_of_a_split_file_are_joined(tmp_path, cache):
    tensors = gguf_tensors(tiny_qwen2())
    whole = load_model(str(write_gguf(tmp_path / "whole.gguf", tensors)))
    parts = write_parts(tmp_path, "tiny", tensors, 3)
    for part in parts:
        lm = load_model(str(part))
        assert torch.equal(_logits(lm.model), _logits(whole.model)) and lm.name.startswith("tiny-")
        assert set(lm.identity.files) == {path.name for path in parts}
    parts[1].unlink()
    with pytest.raises(InputError, match="00002-of-00003.gguf: part of a split GGUF file, is missing"):
        load_model(str(parts[0]))


def _copy(cache):
    (folder,) = [path for path in cache.iterdir() if not path.name.startswith(".")]
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: _edit_json(copy / "config.json", rms_norm_eps=0.1),
        lambda copy: (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-4] + b"abcd"),
        lambda copy: (copy / "tokenizer_config.json").unlink(),
        lambda copy: (copy / "chat_template.jinja").write_text("{{ messages }}"),
        lambda copy: _edit_json(copy / "source.json", sha256="0" * 64),
        lambda copy: _edit_json(copy / "source.json", versions={}),
        lambda copy: (copy / "source.json").write_text("not JSON"),
    ],
    ids=["configuration", "weights", "file lost", "file added", "other source", "other versions", "no note"],
)
def test_a_copy_that_is_not_as_it_was_written_is_made_again(tmp_path, cache, damage):
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(tiny_qwen2()))
    before = _logits(load_model(str(path)).model)
    damage(_copy(cache))
    lm = load_model(str(path))
    assert torch.equal(_logits(lm.model), before)
    assert "chat_template.jinja" not in {file.name for file in _copy(cache).iterdir()}


def test_a_whole_copy_is_used_again(tmp_path, cache, monkeypatch):
    path = write_gguf(tmp_path / "tiny.gguf", gguf_tensors(tiny_qwen2()))
    load_model(str(path))
    monkeypatch.setattr("sparse_control.models.convert.read_model", None)
    load_model(str(path))
