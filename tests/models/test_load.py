"""From names to models, and the one clear line for everything that is not one."""

import pytest
import torch

from sparse_control.errors import InputError, NotAvailable
from sparse_control.models import load_model
from sparse_control.models.identity import model_label
from sparse_control.models.load import _tokenizer_sha256
from sparse_control.registry import registry
from tests.support.tiny import prompt, tiny_model


def test_local_directory(directory):
    lm = load_model(str(directory))
    assert lm.n_layers == 3 and lm.width == 32 and lm.name == model_label(str(directory))
    assert lm.encode("w5 w7").tolist() == [5, 7]
    kept = lm.provenance
    assert kept["source"] == "directory" and len(kept["weights_sha256"]) == 64 and kept["bos"] is False
    assert str(directory.parent) not in str(kept), "no machine path in a record"
    assert kept == load_model(str(directory)).provenance
    assert not any(module.training for module in lm.model.modules())
    expected = tiny_model().model(input_ids=prompt()[None]).logits
    assert torch.allclose(lm.model(input_ids=prompt()[None]).logits, expected, atol=1e-5)


def test_other_weights_other_hash(directory):
    before = load_model(str(directory)).provenance["weights_sha256"]
    tiny_model(seed=1).model.save_pretrained(directory)
    assert load_model(str(directory)).provenance["weights_sha256"] != before


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match="model 'gpt5': not in the registry.*smollm2-135m-instruct"):
        load_model("gpt5")


def test_hub_id_without_a_hub():
    with pytest.raises(NotAvailable, match="Qwen/Qwen2.5-0.5B: cannot be had from the hub"):
        load_model("Qwen/Qwen2.5-0.5B")


def test_registry_name_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path))
    with pytest.raises(NotAvailable, match="models fetch smollm2-135m-instruct"):
        load_model("smollm2-135m-instruct")


def test_registry_file_with_another_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path))
    source = registry()["smollm2-135m-instruct"]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / source.gguf).write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match=f"SHA-256 is .*, expected {source.sha256}"):
        load_model(source.name)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a GGUF file"), (b"PK\x03\x04", "not a GGUF file"), (b"GGUF\x03\x00\x00\x00", "not a whole GGUF file")],
    ids=["empty", "zip", "truncated"],
)
def test_bad_gguf(tmp_path, monkeypatch, content, message):
    monkeypatch.setenv("SPARSE_CONTROL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_model(str(path))


def test_missing_gguf(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_model(str(tmp_path / "absent.gguf"))


def test_directory_without_weights(tmp_path):
    with pytest.raises(InputError, match="holds no"):
        load_model(str(tmp_path))


def test_truncated_weights(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded as a language model"):
        load_model(str(directory))


def test_unknown_dtype(directory):
    with pytest.raises(InputError, match="dtype must be one of float32"):
        load_model(str(directory), dtype="int8")


@pytest.mark.slow
def test_truncated_real_gguf(default_model, tmp_path, monkeypatch):
    """The header of the real file is whole, its tensors are not."""
    from sparse_control.models.fetch import model_path

    source = registry()["smollm2-135m-instruct"]
    monkeypatch.setattr("sparse_control.models.convert.cache_folder", lambda: tmp_path / "cache")
    path = tmp_path / "cut.gguf"
    with open(model_path(source), "rb") as whole:
        path.write_bytes(whole.read(20_000_000))
    with pytest.raises(InputError, match="not a whole GGUF file .its tensors need"):
        load_model(str(path))
    assert not list((tmp_path / "cache" / "models").glob("*")), "nothing half-written stays"


@pytest.mark.slow
def test_default_model(default_model):
    assert (default_model.n_layers, default_model.width, default_model.n_heads, default_model.head_dim) == (
        30,
        576,
        9,
        64,
    )
    assert default_model.provenance["bos"] is False
    assert default_model.encode("The capital of France is").tolist() == [504, 3575, 282, 4649, 314]
    logits = default_model.model(input_ids=default_model.encode("The capital of France is")[None]).logits[0, -1]
    assert default_model.tokenizer.decode(logits.argmax()) == " Paris"


@pytest.mark.parametrize("raised", [Exception("No space left on device (os error 28)"), OSError(28, "No space left")])
def test_a_full_temporary_folder_is_one_line(raised):
    class Tokenizer:
        def save_pretrained(self, folder):
            raise raised

    with pytest.raises(InputError, match="^TMPDIR: the tokenizer cannot be saved there .*No space left.* make room"):
        _tokenizer_sha256(Tokenizer())
