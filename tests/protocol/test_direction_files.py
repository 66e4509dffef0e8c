"""Directions as other tools write them: what layer l means in each format, and what is refused in one line."""

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from safetensors.torch import save_file

from sparse_control.errors import InputError
from sparse_control.protocol.direction_files import read_directions
from sparse_control.protocol.direction_writing import write_directions
from tests.support.tiny import N_LAYERS, WIDTH, tiny_model


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


def vectors(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def saved(path, content):
    """Write named arrays, or whatever torch saves, in the format of the ending."""
    if path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".safetensors":
        save_file({name: torch.tensor(array) for name, array in content.items()}, path)
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors", ".npz", ".pt"])
def test_written_directions_are_read_back_layer_by_layer(lm, tmp_path, suffix):
    given = {2: vectors(WIDTH), 0: vectors(WIDTH, seed=1)}
    found = read_directions(write_directions(tmp_path / f"v{suffix}", given, model_hint="llama"), lm)
    assert list(found.by_layer) == [0, 2]
    for layer, vector in given.items():
        assert np.array_equal(found.by_layer[layer], vector.astype(np.float32))


def test_a_control_vector_has_the_fields_that_its_readers_ask_for(tmp_path):
    path = write_directions(tmp_path / "v.gguf", {1: vectors(WIDTH), 2: vectors(WIDTH)}, model_hint="qwen2")
    reader = GGUFReader(path)
    assert reader.get_field("general.architecture").contents() == "controlvector"
    assert reader.get_field("controlvector.model_hint").contents() == "qwen2"
    assert reader.get_field("controlvector.layer_count").contents() == 2
    assert [(tensor.name, list(tensor.shape)) for tensor in reader.tensors] == [
        ("direction.1", [WIDTH]),
        ("direction.2", [WIDTH]),
    ]


def test_rows_of_a_matrix_are_block_outputs_or_hidden_states(lm, tmp_path):
    """With one row more than blocks the first is the embedding: row l + 1 is the output of block l."""
    rows = vectors(N_LAYERS + 1, WIDTH)
    of_blocks = read_directions(saved(tmp_path / "blocks.npz", {"direction": rows[1:]}), lm).by_layer
    of_states = read_directions(saved(tmp_path / "states.npz", {"direction": rows}), lm).by_layer
    for layer in range(N_LAYERS):
        assert np.array_equal(of_blocks[layer], rows[layer + 1]) and np.array_equal(of_states[layer], rows[layer + 1])


def test_a_probe_needs_its_layer(lm, tmp_path):
    weights = vectors(1, WIDTH)
    path = saved(tmp_path / "probe.npz", {"coef_": weights, "intercept_": np.zeros(1)})
    found = read_directions(path, lm, layer=1)
    assert list(found.by_layer) == [1] and np.array_equal(found.by_layer[1], weights[0])
    with pytest.raises(InputError, match="coef_: is one vector; .*--layer"):
        read_directions(path, lm)


@pytest.mark.parametrize("name, transposed", [("W_dec", False), ("decoder.weight", True)])
@pytest.mark.parametrize("features", [50, WIDTH])
def test_a_row_of_a_decoder_is_a_feature(lm, tmp_path, name, transposed, features):
    """Also where the decoder is square: then its name says which side the features are."""
    decoder = vectors(features, WIDTH)
    stored = decoder.T.copy() if transposed else decoder
    path = saved(
        tmp_path / "sae.safetensors", {name: stored, "W_enc": vectors(WIDTH, features), "b_dec": vectors(WIDTH)}
    )
    assert np.array_equal(read_directions(path, lm, layer=2, row=7).by_layer[2], decoder[7])
    for arguments, message in (
        ({"layer": 2, "row": features}, rf"row {features} is outside 0\.\.{features - 1}"),
        ({"row": 7}, "needs its layer"),
        ({"layer": 2}, "give --row and --layer"),
    ):
        with pytest.raises(InputError, match=message):
            read_directions(path, lm, **arguments)


@pytest.mark.parametrize(
    "content",
    [
        {1: torch.ones(WIDTH)},
        {"layer.1": torch.ones(WIDTH)},
        {"layer_activations": {1: torch.ones(WIDTH)}, "layer_type": "decoder_block"},
        [torch.full((WIDTH,), 2.0), torch.ones(WIDTH)],
    ],
)
def test_plain_tensors_by_layer(lm, tmp_path, content):
    found = read_directions(saved(tmp_path / "v.pt", content), lm, layer=1).by_layer
    assert list(found) == [1] and np.array_equal(found[1], np.ones(WIDTH))


class Custom:
    pass


def control_vector(path, architecture="controlvector", name="direction.1"):
    writer = GGUFWriter(path, architecture)
    writer.add_tensor(name, np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("v.pt", Custom(), "holds other things than tensors and plain values"),
        ("v.pt", {"layer_activations": {1: torch.ones(WIDTH)}, "layer_type": "mlp"}, "layer_type: 'mlp' is not read"),
        ("v.pt", {1: torch.ones(WIDTH), "1": torch.ones(WIDTH)}, None),
        ("v.pt", {"a1": torch.ones(WIDTH), "b1": torch.ones(WIDTH)}, "b1: a second vector of layer 1"),
        ("v.pt", {9: torch.ones(WIDTH)}, r"layer 9 is outside 0\.\.2"),
        ("v.pt", {1: torch.ones(WIDTH + 1)}, f"layer 1: width {WIDTH + 1} is not the width {WIDTH}"),
        ("v.pt", {1: torch.full((WIDTH,), torch.nan)}, "layer 1: holds a value that is not finite"),
        ("v.pt", {1: torch.zeros(WIDTH)}, "layer 1: is all zero"),
        ("v.pt", torch.ones(7, WIDTH), "is no vector of width"),
        ("v.pt", "text", "expected a tensor"),
        ("v.npz", {"direction": np.array(["a"] * WIDTH)}, "expected numbers"),
        ("v.npz", {"direction": np.array([{}] * WIDTH)}, "not a readable .npz file of plain arrays"),
        ("v.npz", {"a": vectors(WIDTH), "b": vectors(WIDTH)}, "cannot tell which tensor is meant among a 32, b 32"),
    ],
)
def test_what_is_wrong_or_ambiguous_is_refused(lm, tmp_path, name, content, message):
    path = saved(tmp_path / name, content)
    if message is None:  # an int and its text are one layer
        assert list(read_directions(path, lm).by_layer) == [1]
        return
    with pytest.raises(InputError, match=message) as raised:
        read_directions(path, lm)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)
    assert "weights_only" not in str(raised.value)


def test_gguf_files_of_another_kind_are_refused(lm, tmp_path):
    with pytest.raises(InputError, match="architecture 'llama', expected a control vector"):
        read_directions(control_vector(tmp_path / "m.gguf", architecture="llama"), lm)
    with pytest.raises(InputError, match="output.weight: a control vector holds direction.LAYER"):
        read_directions(control_vector(tmp_path / "n.gguf", name="output.weight"), lm)


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors", ".npz", ".pt"])
def test_a_file_cut_short_at_any_byte_is_refused_in_one_line(lm, tmp_path, suffix):
    whole = tmp_path / f"whole{suffix}"
    if suffix in (".gguf", ".safetensors"):
        write_directions(whole, {1: vectors(WIDTH)}, model_hint="llama")
    else:
        saved(whole, {"layer.1": torch.ones(WIDTH)} if suffix == ".pt" else {"layer.1": vectors(WIDTH)})
    data = whole.read_bytes()
    for length in range(0, len(data) - 1, max(1, len(data) // 60)):
        cut = tmp_path / f"cut{suffix}"
        cut.write_bytes(data[:length])
        with pytest.raises(InputError) as raised:
            read_directions(cut, lm)
        assert "\n" not in str(raised.value)
