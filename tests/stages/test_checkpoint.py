"""Unfinished work on disk: kept in its own dtype, refused where it does not belong or is damaged, never a result."""

import json
import random
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_json, write_json
from sparse_control.stages import a_reference, alternatives, b_validate
from sparse_control.stages.checkpoint import KIND, Checkpoint, Part, _content_sha256
from sparse_control.stages.inputs import open_inputs
from sparse_control.stages.queries import calibration_queries
from sparse_control.stages.states import load_tensors, query_states, save_tensors, states_checkpoint

KEY = {"model": "small", "dtype": "float32"}
LAYOUT = {"total": ((2, 3), torch.float64), "next": ((), torch.int64)}


def kept(path, key=KEY, every=60.0):
    return Checkpoint(path, key, LAYOUT, every)


def tensors(following=7):
    return {"total": torch.arange(6, dtype=torch.float64).reshape(2, 3), "next": torch.tensor(following)}


def accepts(content):
    assert isinstance(content, dict)


def test_tensors_come_back_bit_for_bit(tmp_path):
    assert kept(tmp_path / "sum").load() is None
    kept(tmp_path / "sum").save(tensors())
    again = kept(tmp_path / "sum").load()
    assert torch.equal(again["total"], tensors()["total"]) and again["total"].dtype == torch.float64
    assert int(again["next"]) == 7


def test_due_by_time(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    checkpoint = kept(tmp_path / "sum")
    assert not checkpoint.due
    now[0] = 160.0
    assert checkpoint.due
    checkpoint.save(tensors())
    assert not checkpoint.due


def test_another_key_is_refused_by_its_name(tmp_path):
    kept(tmp_path / "sum").save(tensors())
    with pytest.raises(InputError, match=r"another dtype \(float32, now float64\).*remove"):
        kept(tmp_path / "sum", KEY | {"dtype": "float64"}).load()
    part = Part(tmp_path / "part.json", KEY, tmp_path)
    part.save({"rows": [1]})
    assert part.load(accepts) == ({"rows": [1]}, [])
    with pytest.raises(InputError, match="another model"):
        Part(tmp_path / "part.json", KEY | {"model": "large"}, tmp_path).load(accepts)


def test_a_part_whose_files_are_gone_or_changed_is_done_again(tmp_path):
    part, file = Part(tmp_path / "part.json", KEY, tmp_path), tmp_path / "Q.pt"
    file.write_text("factors")
    part.save({"rows": [1]}, [file])
    assert part.load(accepts) == ({"rows": [1]}, [file])
    file.write_text("others")
    assert part.load(accepts) is None
    file.unlink()
    assert part.load(accepts) is None


def test_a_checkpoint_is_no_result_and_a_result_no_checkpoint(tmp_path):
    checkpoint = kept(tmp_path / "6.safetensors")
    checkpoint.save(tensors())
    assert not (tmp_path / "6.safetensors").exists(), "another name than any result"
    with pytest.raises(InputError, match="is unfinished work"):
        load_tensors(checkpoint.path)
    save_tensors(checkpoint.path, {"n8": torch.ones(2, 2)})
    with pytest.raises(InputError, match="not a readable checkpoint|is not a checkpoint"):
        checkpoint.load()


# --- damage: one line or the same numbers, never others -------------------------------------------------------------


def rewrite(path, change, *, sealed=True):
    """The file as one writes it who knows the format: other tensors and metadata, with the hash of the content."""
    with safe_open(path, framework="pt") as file:
        metadata, content = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}
    change(content, metadata)
    if sealed and "content" in metadata:
        metadata["content"] = _content_sha256(content)
    path.write_bytes(save(content, metadata=metadata))


def put(name, value):
    return lambda content, metadata: content.update({name: value(content.get(name))})


def drop(name):
    return lambda content, metadata: content.pop(name)


def meta(name, value):
    return lambda content, metadata: metadata.update({name: value}) if value else metadata.pop(name)


def other_work(content, metadata):
    metadata["key"] = json.dumps(json.loads(metadata["key"]) | {"work": "reference prompts_3-6"})


def damaged_value(tensor):
    changed = tensor.clone()
    changed.view(-1)[0] = float("nan") if tensor.is_floating_point() else 1
    return changed


CHANGES = {
    "a tensor is missing": (drop("total"), drop("0")),
    "the counter is missing": (drop("next"), drop("batches")),
    "a tensor too many": (put("more", lambda _: torch.zeros(2)),) * 2,
    "another width": (put("total", lambda t: t[..., :16].clone()), put("0", lambda t: t[:, :16].clone())),
    "another number of rows": (put("total", lambda t: t[:1].clone()), put("0", lambda t: t[:-1].clone())),
    "one dimension": (put("total", lambda t: t.reshape(-1)), put("0", lambda t: t.reshape(-1))),
    "another dtype": (put("total", lambda t: t.float()), put("0", lambda t: t.double())),
    "not a number": (put("total", damaged_value), put("0", damaged_value)),
    "infinite": (put("total", lambda t: t / 0.0), put("0", lambda t: t / 0.0)),
    "a counter of floats": (put("next", lambda t: t.double()), put("batches", lambda t: t.float())),
    "a counter of several": (put("next", lambda t: t.repeat(2)), put("batches", lambda t: t.repeat(2))),
    "a counter below": (put("next", lambda t: t * 0 - 5), put("batches", lambda t: t * 0 - 5)),
    "a counter at nothing done": (put("next", lambda t: t * 0), put("batches", lambda t: t * 0)),
    "a counter beyond": (put("next", lambda t: t * 0 + 10**6), put("batches", lambda t: t * 0 + 10**6)),
    "of other work": (other_work,) * 2,
    "no key": (meta("key", None),) * 2,
    "a key of nonsense": (meta("key", "{"),) * 2,
    "no hash": (meta("content", None),) * 2,
    "another kind": (meta("kind", "result"),) * 2,
}
UNSEALED = {
    "scaled": (put("total", lambda t: 2 * t), put("0", lambda t: 2 * t)),
    "zeros": (put("total", lambda t: 0 * t), put("0", lambda t: 0 * t)),
    "a counter one less": (put("next", lambda t: t - 1), put("batches", lambda t: t - 1)),
    "right answers turned round": (put("total", lambda t: t.flip(0)), put("answered", lambda t: ~t)),
}


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def work(tmp_path_factory, small_settings, small_corpus):
    """Inputs of stage A with a block and calibration states begun, and what both give without damage."""
    root = tmp_path_factory.mktemp("work")
    estimator = small_settings.estimator.model_copy(update={"checkpoint_seconds": 0.0})
    inputs = open_inputs(small_corpus, root, small_settings.model_copy(update={"estimator": estimator}))
    asked = []

    def stop_after_two():
        asked.append(1)
        if len(asked) == 2:
            raise Stop

    with pytest.raises(Stop):
        a_reference._sum_block(inputs, (4, 7), stop_after_two)
    begun = root.joinpath("begun")
    shutil.copytree(inputs.paths.unfinished("reference"), begun)
    total = a_reference._sum_block(inputs, (4, 7), lambda: None)

    queries = calibration_queries(inputs.settings)[:8]
    checkpoint = states_checkpoint(inputs, "reference", "calibration_states", queries, [0, 2])
    states = query_states(inputs.lm, queries, [0, 2], "states", checkpoint)
    shutil.copy(checkpoint.path, begun)
    return inputs, begun, total, queries, states


def units(work):
    """(file of unfinished work, its result, whether it is the right one) for a block and for states."""
    inputs, begun, total, queries, states = work
    folder = inputs.paths.unfinished("reference")
    block, kept_states = begun / "prompts_4-7.checkpoint", begun / "calibration_states.checkpoint"

    def sum_block():
        return torch.equal(a_reference._sum_block(inputs, (4, 7), lambda: None), total)

    def measure_states():
        checkpoint = states_checkpoint(inputs, "reference", "calibration_states", queries, [0, 2])
        found = query_states(inputs.lm, queries, [0, 2], "states", checkpoint)
        same = all(torch.equal(found.states[layer], states.states[layer]) for layer in (0, 2))
        return same and (found.answered == states.answered).all()

    return (block, folder / block.name, sum_block), (kept_states, folder / kept_states.name, measure_states)


def outcome(result):
    """True for the right numbers, None for one line; fails on anything else."""
    try:
        assert result(), "other numbers were believed"
    except InputError as error:
        assert "\n" not in str(error) and ".checkpoint" in str(error) or ".json" in str(error)
        return None
    return True


@pytest.mark.parametrize("name", [*CHANGES, *UNSEALED])
def test_damaged_content_is_one_line(work, name):
    for (original, path, result), change in zip(units(work), (CHANGES | UNSEALED)[name]):
        shutil.copy(original, path)
        rewrite(path, change, sealed=name in CHANGES)
        assert outcome(result) is None, name


def test_any_changed_byte_gives_one_line_or_the_same_numbers(work):
    draw = random.Random(0)
    for original, path, result in units(work):
        content = original.read_bytes()
        head = 8 + int.from_bytes(content[:8], "little")
        for position in [*draw.sample(range(head), 30), *draw.sample(range(head, len(content)), 30)]:
            path.write_bytes(
                content[:position] + bytes([content[position] ^ 1 << draw.randrange(8)]) + content[position + 1 :]
            )
            outcome(result)
        for length in (0, 7, head - 1, head, len(content) - 1):
            path.write_bytes(content[:length])
            assert outcome(result) is None


def test_undamaged_work_is_taken_up(work):
    for original, path, result in units(work):
        shutil.copy(original, path)
        assert outcome(result) is True


@pytest.fixture(scope="module")
def parts(tmp_path_factory, small_settings, small_corpus):
    """Inputs after stage A, with one layer validated, compared and judged, each kept as a part; and their rows."""
    root = tmp_path_factory.mktemp("parts")
    a_reference.run(corpus=small_corpus, root=root, settings=small_settings, keep_unfinished=True)
    inputs = open_inputs(small_corpus, root, small_settings, ("iss", "estimator", "alternatives"))
    content, _ = b_validate._validated_layer(inputs, 2)
    alternatives.run(corpus=small_corpus, root=root, settings=small_settings, keep_unfinished=True)
    judged = read_json(inputs.paths.unfinished("alternatives") / "layer_2.json")["content"]
    return inputs, content, judged


def nested(content):
    """Every list of rows in a part's content."""
    return [value for value in content.values() if isinstance(value, list) and value]


PART_CHANGES = {
    "rows of another layer": lambda part: [row.update(layer=0) for rows in nested(part["content"]) for row in rows],
    "a number is text": lambda part: [row.update(layer="2") for rows in nested(part["content"]) for row in rows],
    "a row is no row": lambda part: [rows.append(3) for rows in nested(part["content"])],
    "a field is missing": lambda part: [row.popitem() for rows in nested(part["content"]) for row in rows[:1]],
    "a field too many": lambda part: [row.update(more=1) for rows in nested(part["content"]) for row in rows[:1]],
    "no content": lambda part: part.update(content=None),
    "content of nothing": lambda part: part.update(content={}),
    "a list for content": lambda part: part.update(content=[1]),
    "files of nonsense": lambda part: part.update(files=[1]),
    "of other work": lambda part: part["key"].update(work="another"),
    "of other states": lambda part: part["key"].update(states="0" * 64),
    "of another reference": lambda part: part["key"].update(reference="0" * 64),
    "no key": lambda part: part.pop("key"),
    "another kind": lambda part: part.update(kind="result"),
}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("name", PART_CHANGES)
def test_damaged_parts_are_one_line(parts, name, sealed):
    inputs, _, _ = parts
    for stage, work_name, load in (
        ("reference", "comparison_2", lambda: a_reference._save_comparison(inputs)),
        ("validate", "layer_2", lambda: b_validate._validated_layer(inputs, 2)),
        (
            "alternatives",
            "layer_2",
            lambda: alternatives._part(inputs, 2).load(lambda c: alternatives._check_part(c, 2)),
        ),
    ):
        path = inputs.paths.unfinished(stage) / f"{work_name}.json"
        before = path.read_bytes()
        part = read_json(path)
        PART_CHANGES[name](part)
        if sealed:
            part["sha256"] = sha256_json({"content": part["content"], "files": part["files"]})
        write_json(path, part)
        with pytest.raises(InputError) as caught:
            load()
        assert "\n" not in str(caught.value) and path.name in str(caught.value)
        path.write_bytes(before)


def test_undamaged_parts_are_taken_up(parts, monkeypatch):
    inputs, content, judged = parts
    monkeypatch.setattr(b_validate, "_validate_layer", lambda *_: pytest.fail("validated again"))
    assert b_validate._validated_layer(inputs, 2)[0] == content
    assert alternatives._part(inputs, 2).load(lambda c: alternatives._check_part(c, 2))[0] == judged


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b'{"kind": "checkpoint"}', b"[]", f'{{"kind": "{KIND}"}}'.encode()]
)
def test_broken_files(tmp_path, content):
    for path in (tmp_path / "sum.checkpoint", tmp_path / "part.json"):
        path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable checkpoint"):
        kept(tmp_path / "sum").load()
    with pytest.raises(InputError):
        Part(tmp_path / "part.json", KEY, tmp_path).load(accepts)
