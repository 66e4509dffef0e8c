import pytest

from sparse_control.errors import InputError
from sparse_control.receipt import Receipt


def test_round_trip_and_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.json").write_text("2")
    (tmp_path / "a.json").write_text("1")
    receipt = Receipt.of(tmp_path, [tmp_path / "b" / "two.json", tmp_path / "a.json"])
    assert [path for path, _ in receipt.files] == ["a.json", "b/two.json"]
    assert Receipt.from_json(receipt.as_json()) == receipt
    assert receipt.broken(tmp_path) == []


def test_broken_names_missing_and_changed_files(tmp_path):
    for name in ("kept", "changed", "gone"):
        (tmp_path / name).write_text(name)
    receipt = Receipt.of(tmp_path, [tmp_path / name for name in ("kept", "changed", "gone")])
    (tmp_path / "changed").write_text("other")
    (tmp_path / "gone").unlink()
    assert receipt.broken(tmp_path) == ["changed", "gone"]


def test_relative_paths_are_taken_below_the_root(tmp_path):
    (tmp_path / "a").write_text("1")
    assert Receipt.of(tmp_path, ["a"]) == Receipt.of(tmp_path, [tmp_path / "a"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"a": 1},
        {1: "a"},
        "text",
        {"a": "0"},
        {"../a": "0" * 64},
        {"a/../../b": "0" * 64},
        {"/etc/passwd": "0" * 64},
        {"C:\\a": "0" * 64},
    ],
)
def test_from_json_refuses_other_shapes_and_paths_that_lead_out(value):
    with pytest.raises(InputError, match="receipt"):
        Receipt.from_json(value)


def test_a_path_outside_the_root_is_refused(tmp_path):
    with pytest.raises(InputError, match="outside"):
        Receipt.of(tmp_path / "root", [tmp_path / "a"])
