"""Factors on disk: round trip, determinism, and every way a file can be wrong."""

import pickle

import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.files import read_json, write_json
from sparse_control.jacobian import DenseOperator, randomized_qb
from sparse_control.jacobian.store import REQUIRED_METADATA, load_factors, save_factors


@pytest.fixture
def saved(tmp_path):
    matrix = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    factors = randomized_qb(DenseOperator(matrix), rank=4, oversampling=2)
    metadata = dict.fromkeys(REQUIRED_METADATA, 0) | {"hidden_dimension": 12, "rank": 4, "oversampling": 2}
    save_factors(tmp_path, factors, metadata)
    return tmp_path, factors


def test_round_trip(saved):
    folder, factors = saved
    loaded, metadata = load_factors(folder)
    assert torch.equal(loaded.Q, factors.Q) and torch.equal(loaded.B, factors.B) and metadata["rank"] == 4
    assert torch.load(folder / "Q.pt", weights_only=True).dtype == torch.float32


def test_same_factors_same_bytes(saved, tmp_path):
    folder, factors = saved
    again = tmp_path / "again"
    save_factors(again, factors, read_json(folder / "metadata.json"))
    for name in ("Q.pt", "B.pt", "metadata.json"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()


def test_missing_metadata_key_is_refused_on_writing(saved, tmp_path):
    with pytest.raises(ValueError, match="metadata lacks model"):
        save_factors(tmp_path / "other", saved[1], {})
    assert not (tmp_path / "other").exists()


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a tensor", pickle.dumps(Harmful()), pickle.dumps({"a": 1})],
    ids=["empty", "text", "code", "pickle"],
)
def test_corrupt_files_are_named(saved, content):
    folder, _ = saved
    (folder / "Q.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"Q\.pt: not a readable tensor file|Q\.pt: expected one float32 matrix"):
        load_factors(folder)


def test_truncated_file(saved):
    folder, _ = saved
    whole = (folder / "B.pt").read_bytes()
    (folder / "B.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"B\.pt: not a readable tensor file"):
        load_factors(folder)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(12, 6, dtype=torch.float64), "expected one float32 matrix"),
        ({"Q": torch.zeros(12, 6)}, "expected one float32 matrix"),
        (torch.full((12, 6), float("nan")), "not finite"),
        (torch.zeros(12, 5), r"shape is \(12, 5\), metadata.json says \(12, 6\)"),
    ],
)
def test_wrong_contents(saved, tensor, message):
    folder, _ = saved
    torch.save(tensor, folder / "Q.pt")
    with pytest.raises(InputError, match=message):
        load_factors(folder)


def test_columns_that_are_not_orthonormal(saved):
    folder, _ = saved
    torch.save(torch.zeros(12, 6), folder / "Q.pt")
    with pytest.raises(InputError, match=r"Q\.pt: its columns are not orthonormal"):
        load_factors(folder)


@pytest.mark.parametrize(("key", "value"), [("rank", "4"), ("hidden_dimension", None), ("oversampling", True)])
def test_metadata_of_the_wrong_type(saved, key, value):
    folder, _ = saved
    write_json(folder / "metadata.json", read_json(folder / "metadata.json") | {key: value})
    with pytest.raises(InputError, match=f"{key}: expected an integer, got {value!r}"):
        load_factors(folder)


def test_missing_files_and_keys(saved):
    folder, _ = saved
    metadata = read_json(folder / "metadata.json")
    write_json(folder / "metadata.json", {key: value for key, value in metadata.items() if key != "rank"})
    with pytest.raises(InputError, match="rank: is missing"):
        load_factors(folder)
    write_json(folder / "metadata.json", metadata)
    (folder / "B.pt").unlink()
    with pytest.raises(InputError, match=r"B\.pt: no such file"):
        load_factors(folder)
