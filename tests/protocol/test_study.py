"""One study end to end on a tiny model: schema, gate, resume, and the default model's figures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_control.artifact.measurements import read_measurements
from sparse_control.errors import InputError
from sparse_control.files import read_json_lines, write_json_lines
from sparse_control.models.sites import all_sites
from sparse_control.protocol import study
from sparse_control.protocol.gate import kept_pairs
from sparse_control.protocol.measurement import OffTargetPanel
from sparse_control.protocol.prompts import CachedPrompts
from sparse_control.protocol.splits import Split
from sparse_control.settings import load_settings
from tests.protocol.pairs import make_pairs
from tests.tiny import prompt, tiny_model

PARAMS = Path(__file__).parents[2] / "params.yaml"


def settings(**protocol):
    base = load_settings(PARAMS)
    counts = base.protocol.pairs.model_copy(update={"fit": 4, "evaluate": 4, "reuse": 4})
    small = {"pairs": counts, "minimum_gap": 0.0, "minimum_pairs": 1, "effects_check": 3, "seeds": [0, 1]}
    return base.model_copy(update={"threads": 1, "protocol": base.protocol.model_copy(update=small | protocol)})


@pytest.fixture
def tiny(monkeypatch):
    """A random model in place of the named one, with random pairs in place of the panels."""
    lm = tiny_model()
    lm.provenance["weights_sha256"] = "0" * 64
    measured = []

    def pairs(task, _lm, split, n, seed):
        return make_pairs(n, first=100 * ("fit", "evaluate", "reuse").index(split) % 37 + seed)

    monkeypatch.setattr(study, "_model", lambda name, dtype: lm)
    monkeypatch.setattr(study, "build_pairs", pairs)
    monkeypatch.setattr(
        study, "_off_target", lambda lm: OffTargetPanel(("a", "b"), CachedPrompts(lm, [prompt(5).tolist()] * 2))
    )
    inner = study.measure_seed
    monkeypatch.setattr(study, "measure_seed", lambda *args: measured.append(args[2:]) or inner(*args))
    study._shared.cache_clear()
    yield measured
    study._shared.cache_clear()


def run(root, **changes):
    arguments = {"task": "ioi", "selector": "driver_omp", "condition": "P", "settings": settings()}
    return study.run(root=root, **arguments | changes)


def path(root, selector="driver_omp", condition="P", model="tiny-llama"):
    return root / "measurements" / model / f"ioi.{selector}.{condition}.jsonl"


@pytest.mark.parametrize("selector", ["driver_omp", "coverage_driver"])
@pytest.mark.parametrize("condition", ["P", "F"])
@pytest.mark.parametrize("effects", ["first_order", "measured"])
def test_records_follow_the_schema(tiny, tmp_path, selector, condition, effects):
    receipt = run(tmp_path, selector=selector, condition=condition, settings=settings(effects=effects))
    assert list(receipt.as_json()) == [f"measurements/tiny-llama/ioi.{selector}.{condition}.jsonl"]
    records = read_measurements(tmp_path, path(tmp_path, selector, condition))
    assert [record.seed for record in records] == [0, 1]
    for record in records:
        assert record.supported and record.effects.kind == effects
        assert len(record.feedback.endpoints) == 8
        assert len(record.support) <= 4


def test_a_rerun_is_byte_identical_and_keeps_what_is_there(tiny, tmp_path):
    run(tmp_path)
    first = path(tmp_path).read_bytes()
    assert len(tiny) == 2
    run(tmp_path)
    assert path(tmp_path).read_bytes() == first and len(tiny) == 2
    study._shared.cache_clear()
    run(tmp_path / "again")
    assert path(tmp_path / "again").read_bytes() == first


def test_a_new_seed_leaves_finished_ones_alone(tiny, tmp_path):
    run(tmp_path)
    run(tmp_path, settings=settings(seeds=[0, 1, 2]))
    assert len(tiny) == 3
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [0, 1, 2]
    run(tmp_path, settings=settings(seeds=[2]))
    assert len(tiny) == 3
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [0, 1, 2], "nothing measured is lost"


def test_an_edited_record_is_measured_again(tiny, tmp_path):
    run(tmp_path)
    before = path(tmp_path).read_bytes()
    rows = read_json_lines(path(tmp_path))
    rows[0]["evaluate"]["patched"][1][0] += 0.5
    write_json_lines(path(tmp_path), rows)
    run(tmp_path)
    assert len(tiny) == 3 and path(tmp_path).read_bytes() == before


@pytest.mark.parametrize("change", [{"support_size": 2}, {"doses": [0.0, 1.0]}, {"minimum_gap": 0.01}])
def test_other_settings_measure_again(tiny, tmp_path, change):
    run(tmp_path)
    run(tmp_path, settings=settings(**change))
    assert len(tiny) == 4


def test_other_code_measures_again(tiny, tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setattr(study, "code_sha256", lambda *_: "f" * 64)
    run(tmp_path)
    assert len(tiny) == 4


def test_a_broken_file_is_measured_again(tiny, tmp_path):
    run(tmp_path)
    first = path(tmp_path).read_bytes()
    path(tmp_path).write_bytes(first[: len(first) // 3])
    run(tmp_path)
    assert path(tmp_path).read_bytes() == first and len(tiny) == 4


def test_an_interrupted_run_keeps_its_finished_seeds(tiny, tmp_path, monkeypatch):
    inner = study.measure_seed

    def fail_on_second(*args):
        if len(tiny) == 1:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(study, "measure_seed", fail_on_second)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [0]
    monkeypatch.setattr(study, "measure_seed", inner)
    run(tmp_path)
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [0, 1] and len(tiny) == 2


def test_conditions_share_support_strengths_and_gain(tiny, tmp_path):
    for condition in ("P", "F"):
        run(tmp_path, condition=condition)
    rows = [read_json_lines(path(tmp_path, condition=condition))[0] for condition in ("P", "F")]
    for name in ("support", "strengths", "selection", "gate", "effects"):
        assert rows[0][name] == rows[1][name]
    assert rows[0]["feedback"]["gain"] == rows[1]["feedback"]["gain"]
    assert rows[0]["evaluate"]["source"] == rows[1]["evaluate"]["source"]
    assert rows[0]["evaluate"]["patched"] != rows[1]["evaluate"]["patched"]


def test_a_task_without_gaps_is_not_supported(tiny, tmp_path):
    run(tmp_path, settings=settings(minimum_gap=1e6))
    for record in read_measurements(tmp_path, path(tmp_path)):
        assert not record.supported and record.evaluate is None
        assert record.gate.fit.built == 4 and record.gate.fit.kept == 0


def test_gate_keeps_the_pairs_with_a_gap():
    assert kept_pairs([0.0, 0.0, 0.0, -1.0], [1.0, 0.99, -5.0, 0.0], 1.0) == [0, 3]


def test_a_gated_split_is_the_split_of_the_pairs_kept():
    lm, pairs = tiny_model(), make_pairs(5)
    sites = all_sites(lm)
    taken = Split.read(lm, pairs, sites).take([1, 3])
    fresh = Split.read(lm, (pairs[1], pairs[3]), sites)
    assert taken.pairs == fresh.pairs and np.allclose(taken.gap, fresh.gap, atol=1e-5)
    for site in sites:
        assert torch.allclose(taken.contrasts[site], fresh.contrasts[site], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "refusal"}, "task must be one of ioi, sentiment, got 'refusal'"),
        ({"selector": "top_k"}, "selector must be one of"),
        ({"condition": "p"}, "condition must be one of P, F, got 'p'"),
    ],
)
def test_unknown_names(tiny, tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, **change)


@pytest.mark.slow
def test_default_model_shows_the_pattern_of_the_source(default_model, tmp_path, monkeypatch):
    """Pair contrasts reach the target, training means do not (source document, axes 1 and 4)."""
    from sparse_control.metrics.reachability import rel_tar

    monkeypatch.setattr(study, "_model", lambda name, dtype: default_model)
    chosen = load_settings(PARAMS)
    chosen = chosen.model_copy(update={"protocol": chosen.protocol.model_copy(update={"seeds": [0]})})
    values = {}
    for condition in ("P", "F"):
        study.run(root=tmp_path, settings=chosen, task="ioi", selector="driver_omp", condition=condition)
        (record,) = read_measurements(tmp_path, path(tmp_path, condition=condition, model=default_model.name))
        evaluated = record.evaluate
        values[condition] = rel_tar(evaluated.source, evaluated.target, evaluated.at_dose(1.0))
    assert values["P"] <= 0.4 < 0.8 < values["F"]
