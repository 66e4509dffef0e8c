"""Archives of `torch.save` hold tensors and plain values, and no message tells anybody to unpickle the others."""

import os
import pickle
import zipfile

import pytest
import torch

from sparse_control.archives import read_archive
from sparse_control.errors import InputError


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Program(torch.nn.Module):
    def forward(self, x):
        return x


def damaged(path, mark):
    torch.save({"a": torch.ones(400)}, path)
    path.write_bytes(path.read_bytes()[:-300])


def torn_inside(path, mark):
    torch.save({"a": torch.ones(400)}, path)
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in content.items():
            new.writestr(name, data[: len(data) // 2] if name.endswith("data.pkl") else data)


@pytest.mark.parametrize(
    "make",
    [
        lambda path, mark: torch.save({"a": Planted(mark)}, path),
        lambda path, mark: torch.save(Program(), path),
        lambda path, mark: torch.jit.script(Program()).save(str(path)),
        lambda path, mark: torch.save({"a": Planted(mark)}, path, _use_new_zipfile_serialization=False),
        lambda path, mark: path.write_bytes(pickle.dumps(Planted(mark))),
        damaged,
        torn_inside,
    ],
    ids=["object", "module", "script", "object in the old form", "pickle", "cut short", "torn inside"],
)
def test_other_content_is_refused_without_advice_to_run_it(tmp_path, recwarn, make):
    path, mark = tmp_path / "file.pt", tmp_path / "mark"
    make(path, mark)
    recwarn.clear()
    with pytest.raises(InputError, match=r"file\.pt: .*; do this") as refused:
        read_archive(path, largest=1 << 20, restore="do this")
    assert "weights_only" not in str(refused.value) and "\n" not in str(refused.value)
    assert not mark.exists() and len(recwarn) == 0


def test_tensors_and_plain_values_come_back(tmp_path):
    torch.save({"a": torch.ones(2), "b": [1, "c"]}, tmp_path / "file.pt")
    content = read_archive(tmp_path / "file.pt", largest=1 << 20, restore="")
    assert content["a"].tolist() == [1, 1] and content["b"] == [1, "c"]
