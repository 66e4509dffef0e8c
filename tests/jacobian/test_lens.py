"""Jacobian-lens files: what published ones hold is read, what is wrong is named, what is written they can read."""

import pickle
import random
import zipfile

import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.jacobian import DenseOperator
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.jacobian.lens import RECORDED, read_lens, write_lens
from sparse_control.models.stream import first_input_as_leaf
from tests.support.tiny import prompt, tiny_model

D, LAYERS = 6, (0, 2, 5)
METADATA = dict.fromkeys(RECORDED, "x") | {"skip_first": 16, "sequence_length": 128, "versions": {"torch": "2"}}


def matrices(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {layer: torch.randn(D, D, generator=generator).to(dtype) for layer in LAYERS}


def content(**changes):
    """The four keys, as published files have them."""
    return {"J": matrices(torch.float16), "n_prompts": 7, "source_layers": list(LAYERS), "d_model": D} | changes


@pytest.fixture
def saved(tmp_path):
    def save(value, **options):
        path = tmp_path / "lens.pt"
        torch.save(value, path, **options)
        return path

    return save


def test_a_published_file(saved):
    lens = read_lens(saved(content()))
    assert (lens.layers, lens.width, lens.n_prompts, lens.position) == (LAYERS, D, 7, "future_sum")
    assert lens.metadata == {} and lens.dtype == "float16"
    for layer, matrix in matrices(torch.float16).items():
        op = lens.operator(layer)
        assert isinstance(op, DenseOperator) and op.dtype == torch.float32 and op.shape == (D, D)
        vectors = torch.eye(D, dtype=torch.float64)[:, :2]
        assert torch.equal(op.matmat(vectors), matrix.double() @ vectors), "columns of J, not of its transpose"


def test_one_tensor_in_the_order_of_source_layers(saved):
    stacked = torch.stack(list(matrices().values()))
    lens = read_lens(saved(content(J=stacked[[2, 0, 1]], source_layers=[5, 0, 2])))
    assert lens.layers == LAYERS and lens.dtype == "float32"
    for layer, matrix in matrices().items():
        assert torch.equal(lens.operator(layer).matrix, matrix.double())


def test_an_absent_layer_is_named(saved):
    with pytest.raises(InputError, match="layer 1: not in the lens; there are: 0, 2, 5"):
        read_lens(saved(content())).operator(1)


def test_written_files_are_read_by_the_four_keys(tmp_path):
    path = write_lens(tmp_path / "new" / "lens.pt", matrices(torch.float64), n_prompts=3, metadata=METADATA)
    plain = torch.load(path, weights_only=True)
    assert plain["n_prompts"] == 3 and plain["source_layers"] == list(LAYERS) and plain["d_model"] == D
    assert list(plain["J"]) == list(LAYERS)
    for layer, matrix in matrices().items():
        assert plain["J"][layer].dtype == torch.float32 and torch.equal(plain["J"][layer], matrix)
    lens = read_lens(path)
    assert torch.equal(lens.operator(2).matrix, matrices()[2].double()) and lens.dtype == "float32"
    assert lens.metadata["position"] == "future_sum" and lens.metadata["dtype"] == "float32"
    assert {key: lens.metadata[key] for key in METADATA} == METADATA
    assert [entry.name for entry in path.parent.iterdir()] == ["lens.pt"], "no temporary file is left"


def test_same_lens_same_bytes(tmp_path):
    one, two = (write_lens(tmp_path / name, matrices(), n_prompts=3, metadata=METADATA) for name in ("a.pt", "b.pt"))
    assert one.read_bytes() == two.read_bytes()


def test_float32_keeps_what_half_precision_loses(tmp_path):
    """Entries in [1, 2) lose up to 4.9e-4 in float16: a round trip must be exact."""
    matrix = 1 + torch.rand(D, D, generator=torch.Generator().manual_seed(0))
    lens = read_lens(write_lens(tmp_path / "lens.pt", {0: matrix}, n_prompts=1, metadata=METADATA))
    assert torch.equal(lens.operator(0).matrix, matrix.double())
    assert (matrix.half().float() - matrix).abs().max() > 1e-4


def test_a_fitted_lens_acts_on_block_outputs(tmp_path):
    """Layer l of a file is what a hook on block l sees leave it, whatever number the fit gives that state."""
    lm = tiny_model()
    fitted = future_sum_jacobian(lm, prompt(), [1, 2])
    path = write_lens(tmp_path / "lens.pt", {0: fitted[0], 1: fitted[1]}, n_prompts=1, metadata=METADATA)
    kept = {}
    for layer in (0, 2):
        lm.layout.blocks[layer].register_forward_hook(
            lambda _module, _args, output, layer=layer: kept.update({layer: output})
        )
    with torch.enable_grad(), first_input_as_leaf(lm):
        lm.model(input_ids=prompt()[None])
    for coordinate in (0, 17):
        (gradient,) = torch.autograd.grad(kept[2][0, 16:-1, coordinate].sum(), kept[0], retain_graph=True)
        row = gradient[0, 16:-1].mean(0)
        assert torch.allclose(read_lens(path).operator(0).matrix[coordinate].float(), row, rtol=1e-4, atol=1e-5)


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"J": None}, "J: expected a mapping of layers to matrices or one tensor, got None"),
        ({"J": {}}, "J: its layers are not those of source_layers: 0 is in one of them only"),
        ({"J": matrices() | {3: torch.eye(D)}}, "not those of source_layers: 3"),
        ({"J": {"0": torch.eye(D)}, "source_layers": [0]}, "J: layer '0' is not an integer"),
        ({"J": {True: torch.eye(D)}, "source_layers": [1]}, "J: layer True is not an integer"),
        ({"J": matrices() | {2: torch.zeros(D, D + 1)}}, r"J\[2\]: shape is \(6, 7\), d_model and source_layers say"),
        ({"J": matrices() | {2: torch.zeros(D)}}, r"J\[2\]: shape is \(6,\)"),
        ({"J": matrices() | {2: [[1.0]]}}, r"J\[2\]: expected a dense tensor of real numbers, got list"),
        ({"J": matrices() | {2: torch.zeros(D, D, dtype=torch.int64)}}, r"J\[2\]: expected .* got a torch.int64"),
        ({"J": matrices() | {2: torch.zeros(D, D, dtype=torch.complex64)}}, r"J\[2\]: expected a dense tensor"),
        ({"J": matrices() | {2: torch.eye(D).to_sparse()}}, r"J\[2\]: expected a dense tensor"),
        ({"J": matrices() | {2: torch.nested.nested_tensor([torch.eye(D)])}}, r"J\[2\]: .* got a nested torch.float32"),
        ({"J": torch.nested.nested_tensor([torch.eye(D)] * 3)}, "J: expected a dense tensor"),
        ({"J": matrices() | {2: torch.zeros(1).expand(D, D)}}, r"J\[2\]: holds fewer numbers than its shape"),
        ({"J": matrices() | {5: torch.full((D, D), float("nan"))}}, r"J\[5\]: holds values that are not finite"),
        ({"J": torch.zeros(3, D, D + 1)}, r"J: shape is \(3, 6, 7\), d_model and source_layers say \(3, 6, 6\)"),
        ({"J": torch.zeros(2, D, D)}, r"J: shape is \(2, 6, 6\)"),
        ({"J": torch.full((3, D, D), float("inf"))}, "J: holds values that are not finite"),
        ({"d_model": D + 1}, r"shape is \(6, 6\), d_model and source_layers say \(7, 7\)"),
        ({"d_model": 0}, "d_model: expected an integer in 1..65536, got 0"),
        ({"d_model": 6.0}, "d_model: expected an integer in 1..65536, got 6.0"),
        ({"d_model": 10**30}, "d_model: expected an integer in 1..65536, got int"),
        ({"d_model": torch.tensor(6)}, "d_model: expected an integer .* got a torch.int64 tensor"),
        ({"n_prompts": 0}, "n_prompts: expected an integer at least 1, got 0"),
        ({"n_prompts": True}, "n_prompts: expected an integer at least 1, got True"),
        ({"n_prompts": None}, "n_prompts: expected an integer at least 1, got None"),
        ({"source_layers": [0, 2, 2, 5]}, "source_layers: layer 2 stands twice"),
        ({"source_layers": []}, "source_layers: expected a list of layers"),
        ({"source_layers": 5}, "source_layers: expected a list of layers, got 5"),
        ({"source_layers": [0, 2, -5]}, r"source_layers\[2\]: expected an integer at least 0, got -5"),
        ({"source_layers": [0, 2, "5"]}, r"source_layers\[2\]: expected an integer at least 0, got '5'"),
        ({"position": "final"}, "position: 'final' is not 'future_sum'"),
        ({"position_reduction": torch.zeros(2)}, "position_reduction: a torch.float32 tensor"),
        ({"kind": "checkpoint"}, "holds kind 'checkpoint': a fitting checkpoint is no lens"),
        ({"jacobian_sum": {}}, "holds 'jacobian_sum': a fitting checkpoint is no lens"),
        ({3: 4}, "expected a mapping with the keys J, n_prompts, source_layers, d_model"),
    ],
)
def test_malformed_lenses(saved, changes, message):
    path = saved(content() | changes)
    with pytest.raises(InputError, match=message) as caught:
        read_lens(path)
    assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.parametrize("key", ["J", "n_prompts", "source_layers", "d_model"])
def test_each_key_is_needed(saved, key):
    with pytest.raises(InputError, match=f": {key}: is missing"):
        read_lens(saved({name: value for name, value in content().items() if name != key}))


@pytest.mark.parametrize("value", [torch.eye(D), [1, 2], 3, None, {"state": Harmful()}, content(extra=Harmful())])
def test_other_content(saved, value):
    with pytest.raises(InputError, match="expected a mapping with the keys|other things than tensors") as caught:
        read_lens(saved(value))
    assert "weights_only" not in str(caught.value)


def test_a_fitting_checkpoint_is_no_lens(saved):
    """Also where it holds everything a lens has."""
    with pytest.raises(InputError, match="'jacobian_sum': a fitting checkpoint is no lens"):
        read_lens(saved({"jacobian_sum": matrices(), "n_done": 3, "next_idx": 4}))
    with pytest.raises(InputError, match="'n_done': a fitting checkpoint is no lens"):
        read_lens(saved(content(n_done=3)))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"text", pickle.dumps(Harmful()), pickle.dumps({"J": 1})])
def test_files_of_another_kind(tmp_path, data):
    path = tmp_path / "lens.pt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"lens\.pt: not a readable tensor file"):
        read_lens(path)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "absent.pt", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            read_lens(path)


def test_a_file_beyond_the_limit_is_not_opened(saved, monkeypatch):
    path = saved(content())
    monkeypatch.setattr("sparse_control.jacobian.lens.LARGEST_FILE", path.stat().st_size - 1)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(InputError, match="bytes is more than any such file has"):
        read_lens(path)


def test_archives_that_unpack_to_more_than_they_hold(saved, tmp_path, monkeypatch):
    path, packed = saved(content(J=torch.zeros(3, 200, 200), d_model=200)), tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in whole.infolist():
            archive.writestr(member.filename, whole.read(member))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(InputError, match="unpacks to more than it holds"):
        read_lens(packed)


def test_a_structure_too_large_for_a_lens(saved, monkeypatch):
    monkeypatch.setattr("sparse_control.archives.LARGEST_PICKLE", 100)
    with pytest.raises(InputError, match=r"data\.pkl: \d+ bytes is more than tensors need"):
        read_lens(saved(content()))


def test_only_plain_values_become_metadata(saved):
    endless = []
    endless.append(endless)
    wide = [0] * 10
    for _ in range(7):
        wide = [wide] * 10  # 10^8 values in a few bytes
    plain = {"note": "a", "seeds": [1, 2]}
    others = {"tensor": torch.zeros(2), "nan": float("nan"), "endless": endless, "wide": wide}
    assert read_lens(saved(content(**plain, **others))).metadata == plain


def test_cut_and_altered_files_give_clean_errors(saved, tmp_path):
    """A lens or one InputError, whatever the bytes."""
    whole = saved(content()).read_bytes()
    draw = random.Random(0)
    path = tmp_path / "altered.pt"
    refused = 0
    for trial in range(300):
        data = bytearray(whole)
        if trial % 3 == 0:
            del data[draw.randrange(len(data)) :]
        elif trial % 3 == 1:
            for _ in range(draw.randint(1, 8)):
                data[draw.randrange(len(data))] = draw.randrange(256)
        else:
            start = draw.randrange(len(data))
            data[start : start + draw.randint(1, 200)] = draw.randbytes(draw.randint(0, 200))
        path.write_bytes(data)
        try:
            lens = read_lens(path)
        except InputError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            refused += 1
        else:
            assert lens.layers == LAYERS
    assert refused > 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrices": {}}, "matrices must hold at least one layer"),
        ({"matrices": {-1: torch.eye(D)}}, "layer must be an integer at least 0, got -1"),
        ({"matrices": {0: torch.eye(D), 1: torch.eye(D + 1)}}, r"matrices\[1\] must be \(d, d\) as the others"),
        ({"matrices": {0: torch.zeros(D, D + 1)}}, r"matrices\[0\] must be \(d, d\)"),
        ({"matrices": {0: torch.full((D, D), 1e39, dtype=torch.float64)}}, r"matrices\[0\] must be finite in float32"),
        ({"n_prompts": 0}, "n_prompts must be an integer at least 1, got 0"),
        ({"metadata": {}}, "metadata lacks target_layer, norm, skip_first, sequence_length, model, weights_sha256"),
        ({"metadata": METADATA | {"position": "final"}}, "metadata must not set 'position'"),
        ({"metadata": METADATA | {"J": 1}}, "metadata must not set 'J'"),
        ({"metadata": METADATA | {"n_done": 1}}, "metadata must not set 'n_done'"),
        ({"metadata": METADATA | {"norm": torch.eye(2)}}, r"metadata\['norm'\] must be plain"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path, arguments, message):
    good = {"matrices": matrices(), "n_prompts": 3, "metadata": METADATA}
    with pytest.raises(ValueError, match=message):
        write_lens(tmp_path / "lens.pt", **good | arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["jacobian_iss/lens.pt", "runs/jacobian_iss/x/lens.pt", "a/../jacobian_iss/lens.pt"])
def test_never_beside_official_results(tmp_path, place):
    with pytest.raises(InputError, match="jacobian_iss/ holds official results alone"):
        write_lens(tmp_path / place, matrices(), n_prompts=3, metadata=METADATA)
    assert list(tmp_path.iterdir()) == []
