"""An intervention from a file: what is applied, its records and controls, and what is refused."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sparse_control.errors import InputError
from sparse_control.files import read_json_lines
from sparse_control.metrics.reachability import rel_tar
from sparse_control.models.sites import Site
from sparse_control.protocol import Intervention, study
from sparse_control.protocol.direction_writing import write_directions
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.given_record import SHARES, fitted_factor
from sparse_control.protocol.grid import restricted, studies
from sparse_control.protocol.patching import patched
from sparse_control.protocol.splits import Split
from sparse_control.records.given import CONTROLS, is_control, is_given
from sparse_control.records.paths import ModelPaths
from sparse_control.records.read import ModelRecords
from sparse_control.records.six_axis_files import read_measurements, read_model_measurements
from sparse_control.settings import load_settings
from sparse_control.tables.registry import TABLES
from sparse_control.tables.six_numbers import HEADINGS, number_rows, numbers
from sparse_control.verify.given import equal_size
from sparse_control.verify.six_axis import six_axis_checks
from tests.support.pairs import make_pairs, plain_margin
from tests.support.tiny import N_LAYERS, WIDTH, tiny_model
from tests.support.tiny_study import PARAMS, small_settings, tiny_studies

VECTORS = np.random.default_rng(0).standard_normal((N_LAYERS, WIDTH)).astype(np.float32)
LM = tiny_model()


def written(path, scale=1.0):
    """The vector of layer 1 in the format of the ending, as `layer=1` and `row` read it; also the row."""
    vector, row = VECTORS[1] * np.float32(scale), None
    if path.name.startswith("sae"):
        save_file({"W_dec": np.stack([VECTORS[0], vector, VECTORS[2]]), "b_dec": VECTORS[0]}, path)
        row = 1
    elif path.suffix == ".npz":
        np.savez(path, coef_=vector[None], intercept_=np.zeros(1))
    elif path.suffix == ".pt":
        torch.save({"layer_activations": {1: torch.tensor(vector)}}, path)
    elif path.suffix == ".json":
        content = {"support": ["L01.resid@-1"], "strengths": [1.0], "directions": [vector.astype(float).tolist()]}
        path.write_text(json.dumps({"schema": "intervention/1"} | content))
    else:
        write_directions(path, {1: vector, 2: VECTORS[2]}, model_hint="llama")
    return path, row


@pytest.fixture
def tiny(monkeypatch):
    with tiny_studies(monkeypatch):
        yield


def go(root, file, condition="F", control=None, settings=None, **more):
    """The records of one study of a file."""
    names = {"task": "ioi", "selector": file.name(control), "condition": condition}
    study.run(root=root, settings=settings or small_settings(), given=file, **names, **more)
    return read_measurements(root, root / "tiny-llama" / "six_axis" / ".".join((*names.values(), "jsonl")))


@pytest.mark.parametrize(
    "name", ["probe.npz", "sae.safetensors", "vector.gguf", "vector.safetensors", "vector.pt", "own.json"]
)
def test_every_format_is_the_same_intervention(tmp_path, name):
    path, row = written(tmp_path / name)
    layer = None if name.endswith(".json") else 1
    found = Intervention.from_file(path, LM, layer, row)
    assert found.support == (Site("resid", 1),) and found.strengths == (1.0,)
    assert np.array_equal(found.directions[0].numpy(), VECTORS[1].astype(float))


def test_a_file_of_several_layers_acts_at_all_of_them(tmp_path):
    found = Intervention.from_file(written(tmp_path / "vector.gguf")[0], LM)
    assert found.support == (Site("resid", 1), Site("resid", 2)) and found.strengths == (1.0, 1.0)


@pytest.mark.parametrize("condition", ["F", "O"])
@pytest.mark.parametrize("strength", [3.0, None])
def test_readouts_are_those_of_hooks_that_add_the_vector(tiny, tmp_path, condition, strength):
    """At every dose, reversed on the target side, and frozen and refitted on unseen pairs."""
    path, row = written(tmp_path / "sae.safetensors")
    file = GivenFile.of(path, layer=1, row=row, strength=strength)
    for record in go(tmp_path, file, condition):
        assert record.support == ["L01.resid@-1"] and record.strengths == pytest.approx(
            [strength if strength is not None else record.strengths[0]]
        )
        splits = study._fitting(study._model("", ""), small_settings().protocol.model_dump_json(), study.PanelSources())
        pairs = {name: split.pairs for name, split in splits.pairs("ioi", record.seed).splits.items()}
        readings = [
            ("evaluate", "source", dose, record.strengths, row)
            for dose, row in zip(record.evaluate.doses, record.evaluate.patched, strict=True)
        ]
        readings.append(("evaluate", "target", -1.0, record.strengths, record.reversal.reversed))
        readings.append(("reuse", "source", 1.0, record.strengths, record.reuse.frozen))
        readings.append(("reuse", "source", 1.0, record.reuse.refit_strengths, record.reuse.refit))
        for split, side, dose, strengths, row in readings:
            for pair, value in zip(pairs[split], row, strict=True):
                sign = pair.sign if condition == "O" else 1
                applied = Intervention((Site("resid", 1),), strengths, (sign * torch.tensor(VECTORS[1]),))
                with patched(LM, applied, dose=dose, pair=pair):
                    assert value == pytest.approx(plain_margin(LM, pair, side), abs=2e-4)


def test_a_fitted_factor_is_the_best_of_all_that_are_tried():
    split = Split.read(LM, make_pairs(4), [Site("resid", 1)])
    own = Intervention((Site("resid", 1),), (2.0,), (torch.tensor(VECTORS[1]),))
    size = split.source.activations[Site("resid", 1)].double().square().sum(-1).mean().sqrt()
    unit = float(size / (2 * own.directions[0].norm()))
    errors = {}
    for factor in (sign * unit * share for share in SHARES for sign in (1, -1)):
        errors[factor] = 0.0
        for pair, wanted in zip(split.pairs, split.y_target, strict=True):
            with patched(LM, own, dose=factor):
                errors[factor] += (plain_margin(LM, pair) - wanted) ** 2
    assert fitted_factor(split, own) == pytest.approx(min(errors, key=errors.get))
    assert fitted_factor(split, replace(own, strengths=(5.0,))) == pytest.approx(min(errors, key=errors.get) * 2 / 5)


def test_controls_are_of_equal_size_and_verify_holds_them_to_it(tiny, tmp_path):
    file = GivenFile.of(written(tmp_path / "vector.gguf")[0], strength=2.0)
    records = [record for control in (None, *CONTROLS) for record in go(tmp_path, file, control=control)]
    assert {record.selector for record in records} == set(file.names)
    own = {record.seed: record for record in records if is_given(record.selector)}
    for record in records:
        assert record.origin.control == next((c for c in CONTROLS if record.selector.endswith(c)), None)
        assert record.strengths == [2.0, 2.0] and record.effects is None and record.candidates is None
        assert record.norms.direction == pytest.approx(own[record.seed].norms.direction)
        if not is_control(record.selector):
            assert record.draws is None
            continue
        assert len(record.draws) == 3
        supports = {tuple(draw.support) for draw in record.draws}
        assert all(len(set(support)) == 2 and all(".resid@-1" in site for site in support) for support in supports)
        assert (supports == {("L01.resid@-1", "L02.resid@-1")}) or record.origin.control == "random_support"
        assert len({tuple(draw.patched) for draw in record.draws}) > 1, "draws differ"
    assert equal_size(records) == ("ok", "")
    statuses = {check.status for check in six_axis_checks(ModelPaths(tmp_path, "tiny-llama"), records)}
    assert statuses == {"ok"}

    control = next(record for record in records if is_control(record.selector))
    others = [record for record in records if record is not control]
    norms = control.norms.model_copy(update={"direction": [1.5 * norm for norm in control.norms.direction]})
    for changed, words in (
        ({"norms": norms}, "norms.direction are other"),
        ({"strengths": [2.0, 4.0]}, "strengths are other"),
        ({"origin": control.origin.model_copy(update={"sha256": "0" * 64})}, "origin is another"),
    ):
        status, detail = equal_size([*others, control.model_copy(update=changed)])
        assert status == "FAIL" and words in detail
    assert equal_size([control])[0] == "FAIL"


def test_the_six_numbers_of_a_run_are_those_of_the_metrics(tiny, tmp_path):
    """And tables show the intervention beside the selectors, its controls in the table of controls alone."""
    file = GivenFile.of(written(tmp_path / "vector.gguf")[0], strength=2.0)
    records = go(tmp_path, file)
    go(tmp_path, file, control="random_direction")
    names = [path.relative_to(tmp_path).as_posix() for path in (tmp_path / "tiny-llama").rglob("*.jsonl")]
    rows = {row["selector"]: row for row in numbers(tmp_path, sorted(names))}
    assert list(rows) == [file.name(), file.name("random_direction")]
    reached, pushes = [], []
    for record in records:
        reached.append(rel_tar(record.evaluate.source, record.evaluate.target, record.evaluate.at_dose(1.0)))
        norms = zip(record.norms.direction, record.norms.activation, strict=True)
        pushes += [2.0 * added / there for added, there in norms]
    row = rows[file.name()]
    assert (row["n_seeds"], row["condition"]) == (2, "F")
    assert row["rel_tar_mean"] == pytest.approx(sum(reached) / 2)
    assert row["push"] == pytest.approx(sum(pushes) / 4)
    assert all(len(cells) == len(HEADINGS) for cells in number_rows(list(rows.values())))

    model = ModelRecords(name="tiny-llama", six_axis=read_model_measurements(ModelPaths(tmp_path, "tiny-llama")))
    shown = {name: [row["selector"] for row in TABLES[name].rows(model)] for name in ("summary", "controls")}
    assert shown == {"summary": [file.name()], "controls": list(rows)}
    assert [row["selector"] for row in TABLES["reuse"].printed(list(TABLES["reuse"].rows(model)))] == [file.name()]


def test_a_changed_file_of_the_same_name_is_refused_until_it_is_to_be_replaced(tiny, tmp_path):
    path, _ = written(tmp_path / "probe.npz")
    go(tmp_path, GivenFile.of(path, layer=1))
    study_file = tmp_path / "tiny-llama" / "six_axis" / "ioi.probe.npz-layer1.F.jsonl"
    first = study_file.read_bytes()
    go(tmp_path, GivenFile.of(path, layer=1))
    assert study_file.read_bytes() == first
    go(tmp_path, GivenFile.of(path, layer=2))  # has a name of its own
    with pytest.raises(InputError, match="2 of 2 records .* other intervention file or strength.*--replace"):
        go(tmp_path, GivenFile.of(path, layer=1, strength=2.0))
    written(path, scale=3)
    with pytest.raises(InputError, match="other intervention file or strength"):
        go(tmp_path, GivenFile.of(path, layer=1))
    assert study_file.read_bytes() == first
    go(tmp_path, GivenFile.of(path, layer=1), replace=True)
    (old,) = (tmp_path / "replaced").rglob("*.jsonl")
    assert old.read_bytes() == first
    assert {row["origin"]["sha256"] for row in read_json_lines(study_file)} == {GivenFile.of(path).sha256}


def test_a_key_of_prefect_has_the_bytes_of_the_file_and_how_it_is_read(tmp_path):
    from tasks.six_axis import record, study

    path, _ = written(tmp_path / "probe.npz")

    def keys(**read):
        given = asdict(GivenFile.of(path, **read))
        return tuple(task.cache_key_fn(None, {"intervention": given}) for task in (record, study))

    seen = [keys(), keys(layer=1), keys(layer=2), keys(strength=None), keys(row=1)]
    assert keys(layer=1) == seen[1]
    written(path, scale=2)
    assert len({*seen, keys()}) == 6


def test_given_files_stand_in_place_of_selectors_or_beside_those_asked_for(tmp_path):
    settings, file = load_settings(PARAMS, "paper"), GivenFile.of(written(tmp_path / "probe.npz")[0], layer=1)

    def asked(**which):
        return studies(restricted(settings, tasks=["ioi", "sentiment"], given=[file], **which).protocol)

    alone = asked()
    assert {selector for _, selector, _ in alone} == set(file.names)
    assert {(task, rule) for task, _, rule in alone} == {("ioi", "F"), ("ioi", "O"), ("sentiment", "F")}
    beside = asked(selectors=["driver_omp"])
    assert ("ioi", "driver_omp", "P") in beside and ("ioi", file.name(), "F") in beside
    assert not any(rule == "P" for _, selector, rule in beside if selector != "driver_omp")
    with pytest.raises(InputError, match="condition P: .* vectors of its own"):
        asked(conditions=["P"])
    with pytest.raises(InputError, match="two interventions are called probe.npz-layer1"):
        restricted(settings, given=[file, file])


@pytest.mark.parametrize(
    "name, read, words",
    [
        ("absent.npz", {}, "no such file"),
        ("probe.bin", {}, r"\.bin: is not read; use \.gguf"),
        ("a probe.npz", {}, "records are called after its file"),
        ("-probe.npz", {}, "records are called after its file"),
        ("x-random_support.npz", {}, "is the name of a control"),
        ("probe.npz", {"strength": 0.0}, "strength must be a number other than 0"),
        ("probe.npz", {"strength": float("nan")}, "strength must be a number other than 0"),
        ("bad.json", {}, "not valid JSON"),
    ],
)
def test_refused_before_a_model_is_loaded(tmp_path, name, read, words):
    path = tmp_path / name
    if name != "absent.npz":
        path.write_text("{" if name == "bad.json" else "")
    with pytest.raises(InputError, match=words):
        GivenFile.of(path, **read)


@pytest.mark.parametrize(
    "name, read, words",
    [
        ("probe.npz", {}, "coef_: is one vector; .*--layer"),
        ("probe.npz", {"layer": N_LAYERS}, "layer 3 is outside 0..2"),
        ("own.json", {"layer": 1}, "has its sites itself; leave out layer"),
        ("own.json", {"row": 1}, "has its sites itself; leave out row"),
        ("vector.gguf", {"layer": 0}, "has no layer 0; there are: 1, 2"),
        ("vector.gguf", {"layer": -1}, "layer must be an integer at least 0"),
        ("sae.safetensors", {"row": 1}, "needs its layer"),
    ],
)
def test_what_does_not_fit_the_model_is_one_line(tmp_path, name, read, words):
    with pytest.raises(ValueError, match=words):
        Intervention.from_file(written(tmp_path / name)[0], LM, **read)
