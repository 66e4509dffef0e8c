"""Unfinished work on disk: kept in its own dtype, refused where it does not belong, never a result."""

import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.stages.checkpoint import Checkpoint, load_part, save_part
from sparse_control.stages.states import load_tensors, save_tensors

KEY = {"model": "small", "dtype": "float32"}


def test_tensors_come_back_bit_for_bit(tmp_path):
    checkpoint = Checkpoint(tmp_path / "sum", KEY, every=60)
    assert checkpoint.load() is None
    tensors = {"total": torch.randn(2, 3, dtype=torch.float64), "next": torch.tensor(7)}
    checkpoint.save(tensors)
    again = Checkpoint(tmp_path / "sum", KEY, every=60).load()
    assert torch.equal(again["total"], tensors["total"]) and again["total"].dtype == torch.float64
    assert int(again["next"]) == 7
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


def test_due_by_time(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    checkpoint = Checkpoint(tmp_path / "sum", KEY, every=60)
    assert not checkpoint.due
    now[0] = 160.0
    assert checkpoint.due
    checkpoint.save({"next": torch.tensor(1)})
    assert not checkpoint.due


def test_another_key_is_refused_by_its_name(tmp_path):
    Checkpoint(tmp_path / "sum", KEY, every=60).save({"next": torch.tensor(1)})
    with pytest.raises(InputError, match=r"another dtype \(float32, now float64\).*remove"):
        Checkpoint(tmp_path / "sum", KEY | {"dtype": "float64"}, every=60).load()
    save_part(tmp_path / "part.json", KEY, [1])
    assert load_part(tmp_path / "part.json", KEY) == [1]
    with pytest.raises(InputError, match="another model"):
        load_part(tmp_path / "part.json", KEY | {"model": "large"})


def test_a_checkpoint_is_no_result_and_a_result_no_checkpoint(tmp_path):
    checkpoint = Checkpoint(tmp_path / "6.safetensors", KEY, every=60)
    checkpoint.save({"n8": torch.ones(2, 2)})
    assert not (tmp_path / "6.safetensors").exists(), "another name than any result"
    with pytest.raises(InputError, match="is unfinished work"):
        load_tensors(checkpoint.path)
    save_tensors(checkpoint.path, {"n8": torch.ones(2, 2)})
    with pytest.raises(InputError, match="not a readable checkpoint|is not a checkpoint"):
        checkpoint.load()


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"kind": "checkpoint"}', b"[]"])
def test_broken_files(tmp_path, content):
    for path in (tmp_path / "sum.checkpoint", tmp_path / "part.json"):
        path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable checkpoint"):
        Checkpoint(tmp_path / "sum", KEY, every=60).load()
    with pytest.raises(InputError):
        load_part(tmp_path / "part.json", KEY)
