"""Skipping, tampering, collisions and failures, with small stages that write real files."""

import base64
import json
import lzma
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

import tasks  # noqa: F401  settles the environment before Prefect reads it
from flows.common import Progress, Step
from sparse_control.errors import InputError
from sparse_control.receipt import Receipt
from sparse_control.settings import CorpusSettings
from tasks.caching import content_key, plain, standing_receipt

MODULES = ("sparse_control.receipt",)
BODIES: list[str] = []


def _write(name, root, value):
    BODIES.append(name)
    path = Path(root) / f"{name}.txt"
    path.write_text(str(value))
    return Receipt.of(Path(root), [path]).as_json()


@task(name="first", cache_key_fn=content_key("first", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def first(root: str, value: int) -> dict[str, str]:
    return _write("first", root, value)


@task(name="second", cache_key_fn=content_key("second", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def second(root: str, value: int) -> dict[str, str]:
    return _write("second", root, value)


@task(name="failing", cache_key_fn=content_key("failing", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def failing(root: str, value: int) -> dict[str, str]:
    raise InputError("params.yaml: wrong")


@task(name="lying", cache_key_fn=content_key("lying", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def lying(root: str, value: int) -> dict[str, str]:
    return {"never.txt": "0" * 64}


@flow(name="small", persist_result=False)
def small(root: str, value: int = 1, steps: tuple[str, ...] = ("first", "second")) -> list[bool]:
    known = {"first": first, "second": second, "failing": failing, "lying": lying}
    with ThreadPoolTaskRunner(max_workers=1) as runner:
        progress = Progress("small", [runner])
        for name in steps:
            progress.run([Step(known[name], name, {"root": root, "value": value})], below=Path(root))
    return [step["skipped"] for step in progress.steps]


@pytest.fixture
def root(prefect_server, tmp_path):
    BODIES.clear()
    return tmp_path


@pytest.mark.slow
def test_a_second_run_does_nothing(root):
    assert small(str(root)) == [False, False]
    assert small(str(root)) == [True, True]
    assert BODIES == ["first", "second"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("tampered")])
def test_a_missing_or_tampered_file_is_made_again_once(root, damage):
    small(str(root))
    damage(root / "first.txt")
    assert small(str(root)) == [False, True]
    assert (root / "first.txt").read_text() == "1"
    assert small(str(root)) == [True, True]
    assert BODIES == ["first", "second", "first"]


@pytest.mark.slow
def test_other_values_run_again_and_equal_arguments_of_two_tasks_do_not_collide(root):
    small(str(root))
    assert small(str(root), value=2) == [False, False]
    assert {path.name for path in root.iterdir()} == {"first.txt", "second.txt"}


@pytest.mark.slow
def test_a_failure_reaches_the_caller_in_one_line(root, capfd):
    with pytest.raises(InputError, match="params.yaml: wrong"):
        small(str(root), steps=("first", "failing", "second"))
    assert BODIES == ["first"]
    shown = "".join(capfd.readouterr())
    assert "Traceback" not in shown and "telemetry" not in shown.lower()


@pytest.mark.slow
def test_a_receipt_for_files_that_are_not_there_is_an_error(root):
    with pytest.raises(InputError, match="lying: reports files .* never.txt"):
        small(str(root), steps=("lying",))


@pytest.mark.parametrize("value", [np.zeros(2), {1: "a"}, {"a": np.float64}, object(), {"a", "b"}, lambda: 0])
def test_types_without_a_place_in_a_key_are_refused(value):
    key = content_key("any", schema=1, modules=MODULES)
    with pytest.raises(TypeError, match="a cached task takes paths and plain values"):
        key(None, {"root": "x", "value": value})


def test_a_path_counts_by_content_and_a_folder_by_all_its_files(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("same")
    assert plain(one) == plain(two)
    assert plain(one / "deep" / "file") == plain(two / "deep" / "file")
    (two / "deep" / "file").write_text("other")
    assert plain(one) != plain(two)
    with pytest.raises(InputError, match="cannot be read"):
        plain(tmp_path / "none")


def test_sections_a_stage_does_not_read_leave_its_key_alone():
    key = content_key("any", schema=1, modules=MODULES, without=("seed",))
    whole = content_key("any", schema=1, modules=MODULES)
    values = {"sequence_length": 8, "windows_per_article": 1, "minimum_paragraph_characters": 0}
    one, two = CorpusSettings(**values, seed=0), CorpusSettings(**values, seed=1)
    assert key(None, {"settings": one}) == key(None, {"settings": two})
    assert whole(None, {"settings": one}) != whole(None, {"settings": two})


def test_name_schema_and_code_are_in_the_key():
    base = content_key("a", schema=1, modules=MODULES)(None, {})
    assert base == content_key("a", schema=1, modules=MODULES)(None, {})
    assert base != content_key("b", schema=1, modules=MODULES)(None, {})
    assert base != content_key("a", schema=2, modules=MODULES)(None, {})
    assert base != content_key("a", schema=1, modules=("sparse_control.seeds",))(None, {})


@pytest.mark.slow
def test_a_result_cut_short_by_a_kill_is_made_again(root, prefect_server):
    small(str(root))
    results = [path for path in prefect_server.iterdir() if path.is_file()]
    assert results
    for path in results:
        path.write_bytes(path.read_bytes()[:-20])
    assert small(str(root)) == [False, False] and small(str(root)) == [True, True]


@task(name="unit", cache_key_fn=content_key("unit", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def unit(root: str, value: int) -> dict[str, str]:
    return _write(f"unit{value}", root, value)


@flow(name="whole", persist_result=False)
def whole(root: str, values: list[int]) -> list[bool]:
    units = [Step(unit, f"unit {value}", {"root": root, "value": value}, order=(-value,)) for value in values]
    with ThreadPoolTaskRunner(max_workers=1) as runner:
        progress = Progress("whole", [runner])
        progress.run([Step(first, "first", {"root": root, "value": 0}, lambda: units)], below=Path(root))
    return [step["skipped"] for step in progress.steps]


@pytest.mark.slow
def test_units_come_in_their_order_and_only_those_that_are_missing(root):
    assert whole(str(root), [1, 2, 3]) == [False]
    assert BODIES == ["unit3", "unit2", "unit1", "first"]
    BODIES.clear()
    assert whole(str(root), [1, 2, 3]) == [True] and BODIES == [], "units of a step that stands are not asked for"
    (root / "first.txt").unlink()
    (root / "unit2.txt").write_text("changed")
    assert whole(str(root), [1, 2, 3]) == [False] and BODIES == ["unit2", "first"]


class Planted:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def plant(tmp_path):
    """Puts a result under the key of `first`, as somebody else would who can write into Prefect's home."""
    arguments = {"root": str(tmp_path), "value": 1}
    (tmp_path / "first.txt").write_text("1")
    good = Receipt.of(tmp_path, ["first.txt"]).as_json()

    def planted(result=None, **serializer):
        record = {
            "metadata": {"serializer": {"type": "json"} | serializer, "storage_key": "any"},
            "result": json.dumps(good) if result is None else result,
        }
        (tmp_path / "results" / first.cache_key_fn(None, arguments)).write_text(json.dumps(record))
        return standing_receipt(first, below=tmp_path, arguments=arguments)

    (tmp_path / "results").mkdir()
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / "results"}):
        assert planted().as_json() == good
        yield planted


@pytest.mark.parametrize("kind", ["pickle", "compressed/pickle", "compressed", "other", None])
def test_a_result_that_is_not_json_is_refused_before_it_is_read(plant, tmp_path, kind):
    mark = tmp_path / "mark"
    content = cloudpickle.dumps(Planted(mark))
    content = lzma.compress(content) if kind == "compressed/pickle" else content
    with pytest.raises(InputError, match="serializer: expected json, got"):
        plant(base64.encodebytes(content).decode(), type=kind)
    assert not mark.exists()


def test_nothing_that_a_result_names_is_imported(plant, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("def decode(value): return value\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plant(json.dumps({"__class__": "planted.Thing", "data": {}})) is None
    assert plant(object_decoder="planted.decode", jsonlib="planted") is not None
    assert "planted" not in sys.modules


def test_a_planted_receipt_removes_nothing_outside_the_root(plant, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "a").write_text("")
    (tmp_path / "link").symlink_to(outside)
    assert plant(json.dumps({f"../{outside.name}/a": "0" * 64})) is None
    with pytest.raises(InputError, match="is a symbolic link to a folder"):
        plant(json.dumps({"link/a": "0" * 64}))
    assert (outside / "a").exists()


@pytest.mark.parametrize("result", ["", "{", "null", "[]", '{"first.txt": 1}', "[" * 100_000, 5, None])
def test_a_result_that_is_no_receipt_counts_for_nothing(plant, tmp_path, result):
    (path,) = (tmp_path / "results").iterdir()
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"result": result}))
    assert standing_receipt(first, below=tmp_path, arguments={"root": str(tmp_path), "value": 1}) is None


@task(name="shared", cache_key_fn=content_key("shared", schema=1, modules=MODULES), persist_result=True,
      result_serializer="json")  # fmt: skip
def shared(root: str, values: list[int]) -> dict[str, str]:
    """As a file of records: what other runs put there stays."""
    path = Path(root) / "records.txt"
    kept = set(path.read_text().split()) if path.exists() else set()
    path.write_text(" ".join(sorted({*kept, *map(str, values)})))
    return Receipt.of(Path(root), [path]).as_json()


@flow(name="sharing", persist_result=False)
def sharing(root: str, values: list[int]) -> None:
    with ThreadPoolTaskRunner(max_workers=1) as runner:
        Progress("sharing", [runner]).run([Step(shared, "shared", {"root": root, "values": values})], below=Path(root))


@pytest.mark.slow
def test_a_file_that_several_keys_share_loses_nothing(root):
    for values in ([0], [0, 1], [0]):
        sharing(str(root), values)
    assert (root / "records.txt").read_text() == "0 1"


def test_work_is_of_the_model_that_its_key_is_of(tmp_path):
    """A file of the model changed before the work began, or while it went on: nothing is kept under the old key."""
    from sparse_control.models.identity import model_identity
    from sparse_control.settings import load_settings
    from tasks.exclusive import exclusive
    from tests.support.tiny import save_tiny

    model = save_tiny(tmp_path / "model")
    settings = load_settings(Path(__file__).parents[2] / "params.yaml", model=str(model))
    weights = model_identity(str(model)).sha256
    with exclusive(settings, weights):
        pass
    config = model / "config.json"
    with pytest.raises(InputError, match="its files or the libraries here are not those the run began with"):
        with exclusive(settings, weights):
            config.write_text(config.read_text() + "\n")
    with pytest.raises(InputError, match="are not those the run began with"), exclusive(settings, weights):
        raise AssertionError("work began on another model")
