"""One study end to end on a tiny model: schema, gate, resume, and the default model's figures."""

from itertools import product

import numpy as np
import pytest
import torch

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.files import read_json, read_json_lines, write_json
from sparse_control.models.sites import all_sites, parse_site
from sparse_control.protocol import fitting, gate, stored, study
from sparse_control.protocol.directions import CONDITIONS
from sparse_control.protocol.gate import kept_pairs
from sparse_control.protocol.grid import restricted, studies
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.panels import PanelSources
from sparse_control.protocol.patching import patched
from sparse_control.protocol.selectors.table import SELECTORS
from sparse_control.protocol.splits import Split
from sparse_control.records.paths import ModelPaths
from sparse_control.records.six_axis_files import read_all_measurements, read_measurements
from sparse_control.settings import load_settings
from sparse_control.verify.six_axis import broken_numbers, six_axis_checks
from tests.support.pairs import make_pairs, plain_margin
from tests.support.tiny import save_tiny, tiny_model
from tests.support.tiny_study import PARAMS, tiny_studies
from tests.support.tiny_study import small_settings as settings


@pytest.fixture
def tiny(monkeypatch):
    with tiny_studies(monkeypatch) as measured:
        yield measured


@pytest.fixture
def computed(monkeypatch):
    """As `tiny`, with nothing taken from the tests before."""
    with tiny_studies(monkeypatch, computed=True) as measured:
        yield measured


def run(root, **changes):
    arguments = {"task": "ioi", "selector": "driver_omp", "condition": "P", "settings": settings()}
    return study.run(root=root, **arguments | changes)


def path(root, selector="driver_omp", condition="P", model="tiny-llama"):
    return root / model / "six_axis" / f"ioi.{selector}.{condition}.jsonl"


@pytest.mark.parametrize(
    ("selector", "condition", "effects"),
    [
        *(
            (name, c, "first_order")
            for name, c in product(SELECTORS, CONDITIONS)
            if c == "F" or not SELECTORS[name].baseline
        ),
        *(("driver_omp_remeasured", condition, "measured") for condition in CONDITIONS),
    ],
)
def test_records_follow_the_schema(tiny, tmp_path, selector, condition, effects):
    receipt = run(tmp_path, selector=selector, condition=condition, settings=settings(effects=effects))
    assert list(receipt.as_json()) == [f"tiny-llama/six_axis/ioi.{selector}.{condition}.jsonl"]
    records = read_measurements(tmp_path, path(tmp_path, selector, condition))
    assert [record.seed for record in records] == [0, 1]
    for record in records:
        assert record.supported and record.effects.kind == effects
        assert len(record.feedback.endpoints) == 8
        assert len(record.support) <= (SELECTORS[selector].support_size or 4) or selector == "all_sites"
        spared = record.preservation
        assert spared.kl_by_dose[record.evaluate.doses.index(0.0)] == [0.0] * len(spared.prompts)
        for row, dose in zip(spared.kl_by_dose, record.evaluate.doses, strict=True):
            assert all((value > 0) == bool(dose and record.support) for value in row)
        if condition == "P":
            assert record.norms.contrast == record.norms.direction


def test_a_rerun_is_byte_identical_and_keeps_what_is_there(computed, tmp_path):
    run(tmp_path)
    first = path(tmp_path).read_bytes()
    assert len(computed) == 2
    run(tmp_path)
    assert path(tmp_path).read_bytes() == first and len(computed) == 2
    study._fitting.cache_clear()
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


def test_a_model_that_became_another_is_loaded_again_in_the_same_process(tmp_path):
    folder = save_tiny(tmp_path / "model")
    first = study._model(str(folder), "float32")
    assert study._model(str(folder), "float32") is first
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"rms_norm_eps": 0.5})
    second = study._model(str(folder), "float32")
    assert second.identity != first.identity and second.model.config.rms_norm_eps == 0.5


def replaced(root, number, selector="driver_omp", condition="P"):
    return root / "replaced" / "tiny-llama" / "six_axis" / f"ioi.{selector}.{condition}.{number}.jsonl"


def seeds_of(file):
    return [row["seed"] for row in read_json_lines(file)]


@pytest.mark.parametrize("narrower", [[0], [1], [0, 2]])
def test_any_order_of_asking_for_seeds_keeps_every_record(tiny, tmp_path, narrower):
    """`--seed 0`, then `--seed 0 --seed 1`, then fewer of them again."""
    run(tmp_path, settings=settings(seeds=[0]))
    run(tmp_path, settings=settings(seeds=[0, 1]))
    whole = path(tmp_path).read_bytes()
    run(tmp_path, settings=settings(seeds=narrower))
    assert seeds_of(path(tmp_path)) == sorted({0, 1, *narrower}) and len(tiny) == len({0, 1, *narrower})
    assert path(tmp_path).read_bytes().startswith(whole) and not (tmp_path / "replaced").exists()


def use_other_settings(_):
    return settings(support_size=2, seeds=[0])


def use_other_code(patch):
    patch.setattr(stored, "code_sha256", lambda *_: "f" * 64)
    return settings(seeds=[0])


def use_other_prompts(patch):
    patch.setattr(stored, "panel_source", lambda *_: "other")
    return settings(seeds=[0])


def use_other_model_files(patch):
    """Two folders of one name."""
    lm = tiny_model(seed=1)
    lm.provenance.update(lm.identity.as_provenance())
    patch.setattr(study, "_model", lambda *_: lm)
    patch.setattr(stored, "model_identity", lambda *_: lm.identity)
    return settings(seeds=[0])


CHANGES = {
    "settings": use_other_settings,
    "code": use_other_code,
    "prompts": use_other_prompts,
    "model files": use_other_model_files,
}


@pytest.mark.parametrize("changed", CHANGES)
def test_what_was_measured_with_something_else_is_kept_until_it_is_replaced(tiny, tmp_path, monkeypatch, changed):
    run(tmp_path)
    before = path(tmp_path).read_bytes()
    other = {"settings": CHANGES[changed](monkeypatch)}
    with pytest.raises(InputError, match=f"1 of 1 records .* with other {changed}.*such as ioi.driver_omp.P seed 0 of"):
        run(tmp_path, **other)
    with pytest.raises(InputError, match="add --replace, which moves them to replaced/"):
        study.run_seed(root=tmp_path, task="ioi", selector="driver_omp", condition="P", seed=0, **other)
    assert path(tmp_path).read_bytes() == before and len(tiny) == 2 and not (tmp_path / "replaced").exists()

    run(tmp_path, **other, replace=True)
    first, second = before.splitlines(keepends=True)
    assert replaced(tmp_path, 1).read_bytes() == first, "the old record, byte for byte"
    new = path(tmp_path).read_bytes().splitlines(keepends=True)
    assert new[0] != first and new[1] == second, "seed 1 was not asked for"
    assert len(tiny) == 3 and [r.seed for r in read_all_measurements(tmp_path)] == [0, 1]
    run(tmp_path, **other, replace=True)
    assert len(tiny) == 3 and not replaced(tmp_path, 2).exists(), "nothing is left to replace"


def test_other_seeds_are_measured_beside_records_of_other_settings(tiny, tmp_path):
    run(tmp_path)
    before = path(tmp_path).read_bytes()
    run(tmp_path, settings=settings(support_size=2, seeds=[3]))
    assert path(tmp_path).read_bytes().startswith(before) and seeds_of(path(tmp_path)) == [0, 1, 3]
    run(tmp_path, settings=settings(support_size=2, seeds=[0, 1, 3]), replace=True)
    assert replaced(tmp_path, 1).read_bytes() == before and len(tiny) == 5
    run(tmp_path, replace=True)
    assert seeds_of(replaced(tmp_path, 2)) == [0, 1] and seeds_of(path(tmp_path)) == [0, 1, 3]


@pytest.mark.parametrize("change", [{"support_size": 2}, {"doses": [0.0, 1.0]}, {"minimum_gap": 0.01}])
def test_any_setting_makes_other_records(tiny, tmp_path, change):
    run(tmp_path)
    with pytest.raises(InputError, match="2 of 2 records that are asked for are there .* with other settings"):
        run(tmp_path, settings=settings(**change))


DAMAGES = {
    "cut short": lambda content: content[: len(content) // 3],
    "edited": lambda content: content.replace(b'"readouts": ', b'"readouts": 1', 1),
    "no JSON": lambda content: b"{" + content,
    "of another study": lambda content: content.replace(b'"selector": "driver_omp"', b'"selector": "top_k"', 1),
    "a seed twice": lambda content: content + content.splitlines(keepends=True)[0],
    "not UTF-8": lambda content: content.replace(b'"ioi"', b'"\xff"', 1),
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_whole_and_kept_as_it_was(tiny, tmp_path, damage):
    run(tmp_path)
    whole = path(tmp_path).read_bytes()
    broken = DAMAGES[damage](whole)
    assert broken != whole
    path(tmp_path).write_bytes(broken)
    run(tmp_path)
    assert path(tmp_path).read_bytes() == whole and len(tiny) <= 4
    if broken:
        assert replaced(tmp_path, 1).read_bytes() == broken


def test_damage_elsewhere_in_a_file_removes_no_record(tiny, tmp_path):
    """Ten records and one line that is none, one seed asked for."""
    run(tmp_path, settings=settings(seeds=list(range(5))))
    whole = path(tmp_path).read_bytes()
    path(tmp_path).write_bytes(whole + b"not a record\n")
    run(tmp_path, settings=settings(seeds=[2]))
    assert path(tmp_path).read_bytes() == whole and len(tiny) == 5
    assert replaced(tmp_path, 1).read_bytes() == whole + b"not a record\n"


def test_the_survey_says_what_a_run_would_meet(tiny, tmp_path):
    assert stored.survey(tmp_path, settings()).others == {}
    run(tmp_path)
    found = stored.survey(tmp_path, settings())
    assert (found.others, found.damaged) == ({}, {}) and stored.said(found, tmp_path) == []
    path(tmp_path).write_bytes(path(tmp_path).read_bytes() + b"x\n")
    found = stored.survey(tmp_path, settings(support_size=2, tasks=["ioi"], selectors=["driver_omp", "top_k"]))
    assert found.asked == 8 and [key.seed for key in found.others] == [0, 1]
    assert set(found.others.values()) == {"settings"} and list(found.damaged) == [path(tmp_path)]
    told = stored.said(found, tmp_path)
    assert told[0] == f"2 records will be measured again; the old ones go to {tmp_path / 'replaced'}"
    assert "damaged (line 3: a record: not valid JSON" in told[1]


def test_unfinished_records_of_other_settings_stay_for_them(tiny, tmp_path):
    """A part is a measured record, too."""
    arguments = {"root": tmp_path, "task": "ioi", "selector": "driver_omp", "condition": "P", "seed": 0}
    (first,) = study.run_seed(settings=settings(), **arguments).as_json()
    before = (tmp_path / first).read_bytes()
    (second,) = study.run_seed(settings=settings(support_size=2), **arguments).as_json()
    assert first != second and (tmp_path / first).read_bytes() == before
    run(tmp_path, settings=settings(support_size=2, seeds=[0]))
    assert (tmp_path / first).read_bytes() == before and not (tmp_path / second).exists()


def test_an_interrupted_run_keeps_its_finished_seeds(tiny, tmp_path, monkeypatch):
    inner = study.record_sections

    def fail_on_second(*args):
        if len(tiny) == 1:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(study, "record_sections", fail_on_second)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert not path(tmp_path).exists() and read_all_measurements(tmp_path) == []
    monkeypatch.setattr(study, "record_sections", inner)
    run(tmp_path)
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [0, 1] and len(tiny) == 2
    assert not (path(tmp_path).parent / ".parts").exists()
    run(tmp_path / "at_once")
    assert path(tmp_path).read_bytes() == path(tmp_path / "at_once").read_bytes()


@pytest.mark.parametrize(("module", "name"), [(study, "write_json"), (stored, "write_bytes")])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_around_any_write_it_goes_on_with_what_was_written(tiny, tmp_path, monkeypatch, module, name, after):
    inner = getattr(module, name)
    broken = []

    def breaking(*args):
        if after or broken:
            inner(*args)
        if not broken:
            broken.append(args)
            raise KeyboardInterrupt

    monkeypatch.setattr(module, name, breaking)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    run(tmp_path)
    assert len(tiny) == (3 if name == "write_json" and not after else 2), "at most the record in hand is lost"
    assert not (path(tmp_path).parent / ".parts").exists()
    run(tmp_path / "at_once")
    assert path(tmp_path).read_bytes() == path(tmp_path / "at_once").read_bytes()


def test_one_record_at_a_time_in_any_order_gives_the_same_file(computed, tmp_path):
    for seed in (1, 0):
        arguments = {"task": "ioi", "selector": "driver_omp", "condition": "P", "settings": settings(), "seed": seed}
        first = study.run_seed(root=tmp_path, **arguments)
        assert study.run_seed(root=tmp_path, **arguments) == first and first.broken(tmp_path) == []
    assert len(computed) == 2 and read_all_measurements(tmp_path) == []
    run(tmp_path)
    assert len(computed) == 2
    study._fitting.cache_clear()
    run(tmp_path / "at_once")
    assert path(tmp_path).read_bytes() == path(tmp_path / "at_once").read_bytes()
    again = study.run_seed(root=tmp_path, **arguments)
    assert list(again.as_json()) == [path(tmp_path).relative_to(tmp_path).as_posix()] and len(computed) == 4
    assert not (path(tmp_path).parent / ".parts").exists(), "a record of the assembled file is not measured again"


def test_a_record_asked_for_again_when_its_study_is_whole_leaves_no_part(tiny, tmp_path, monkeypatch):
    """As a cluster does that lost the worker on which the record had been measured."""
    arguments = {"task": "ioi", "selector": "driver_omp", "condition": "P", "settings": settings()}
    write, meanwhile = study.write_json, []

    def written_late(file, record):
        if not meanwhile:
            meanwhile.append(file)
            run(tmp_path)
        write(file, record)

    monkeypatch.setattr(study, "write_json", written_late)
    (name,) = study.run_seed(root=tmp_path, **arguments, seed=0).as_json()
    assert meanwhile and tmp_path / name == path(tmp_path)
    assert not (path(tmp_path).parent / ".parts").exists()


def test_a_broken_or_foreign_part_is_measured_again(tiny, tmp_path):
    arguments = {"task": "ioi", "selector": "driver_omp", "condition": "P", "settings": settings(), "root": tmp_path}
    (name,) = study.run_seed(**arguments, seed=0).as_json()
    part = tmp_path / name
    whole = part.read_bytes()
    edits = ((b'"seed": 0', b'"seed": 1'), (b'"readouts": ', b'"readouts": 1'))
    for broken in (whole[:-40], *(whole.replace(*edit) for edit in edits)):
        assert broken != whole
        part.write_bytes(broken)
        study.run_seed(**arguments, seed=0)
        assert part.read_bytes() == whole
    assert len(tiny) == 4


def test_selectors_and_conditions_of_a_seed_share_its_work(computed, tmp_path, monkeypatch):
    calls = []
    inner = fitting.gated_pairs
    monkeypatch.setattr(fitting, "gated_pairs", lambda *args: calls.append(args[2:4]) or inner(*args))
    for selector in ("driver_omp", "random_direction", "coverage_driver"):
        for condition in ("P", "F"):
            run(tmp_path, selector=selector, condition=condition)
    assert calls == [("ioi", 0), ("ioi", 1)]


def test_the_same_panel_has_the_choice_of_the_task_and_its_own_readouts(computed, tmp_path, monkeypatch):
    """Chosen once for both tasks; evaluated on the fitting pairs, which the record says and `verify` holds it to."""
    effects = []
    inner = fitting.effect_columns
    monkeypatch.setattr(fitting, "effect_columns", lambda *args: effects.append(args) or inner(*args))
    asked = settings(seeds=[0], tasks=["ioi", "ioi_same_panel"])
    for task, condition in product(asked.protocol.tasks, ("P", "F")):
        run(tmp_path, task=task, condition=condition, settings=asked)
    assert len(effects) == 1
    records = read_all_measurements(tmp_path)
    held_out, same = (record for record in records if record.condition == "P")
    fit = [pair for pair in make_pairs(4, first=0) if pair.id in same.evaluate.pairs]  # the gate drops the others
    assert same.task == "ioi_same_panel" and same.panels.same_panel == "ioi" and held_out.panels.same_panel is None
    assert len(fit) == same.gate.fit.kept and not set(same.evaluate.pairs) & set(held_out.evaluate.pairs)
    plain = [plain_margin(tiny_model(), pair) for pair in fit]
    assert same.evaluate.source == pytest.approx(plain, rel=1e-5) and same.gate.evaluate == same.gate.fit
    assert (same.support, same.strengths, same.selection) == (held_out.support, held_out.strengths, held_out.selection)
    assert same.reuse.refit == held_out.reuse.refit and same.evaluate.patched != held_out.evaluate.patched
    checked = ModelPaths(tmp_path, "tiny-llama")
    assert {check.status for check in six_axis_checks(checked, records)} == {"ok"}
    other = same.model_copy(update={"strengths": [2 * strength for strength in same.strengths]})
    (failed,) = [c for c in six_axis_checks(checked, [held_out, other]) if c.status == "FAIL"]
    assert failed.detail.startswith("strengths differs between ioi.driver_omp.P seed 0")
    counts = other.gate.model_copy(update={"fit": held_out.gate.fit.model_copy(update={"built": 5})})
    assert any("evaluation pairs are those of gate.fit" in text for text in broken_numbers(
        same.model_copy(update={"gate": counts})))  # fmt: skip


def test_contexts_beyond_the_memory_allowed_are_read_again(computed, tmp_path, monkeypatch):
    calls = []
    inner = fitting.gated_pairs
    monkeypatch.setattr(fitting, "gated_pairs", lambda *args: calls.append(args[2:4]) or inner(*args))
    monkeypatch.setattr(fitting, "MAXIMUM_BYTES", 0)
    for condition in ("P", "F"):
        run(tmp_path, condition=condition)
    assert calls == [("ioi", 0), ("ioi", 1)] * 2


def test_records_name_the_sources_of_their_prompts(tiny, tmp_path, monkeypatch):
    named = {"off_target": "mmlu sha256:ab", "ioi": "own"}
    monkeypatch.setattr(stored, "panel_source", lambda name, sources: named[name])
    run(tmp_path)
    (record, _) = read_measurements(tmp_path, path(tmp_path))
    assert (record.panels.pairs, record.panels.off_target) == ("own", "mmlu sha256:ab")
    assert record.gate.fit.passed_over == 1


def test_a_task_may_have_seeds_of_its_own(tiny, tmp_path):
    run(tmp_path, settings=settings(task_seeds={"ioi": [4], "sentiment": [0]}))
    assert [row["seed"] for row in read_json_lines(path(tmp_path))] == [4]


def test_any_declared_position_and_component(tiny, tmp_path):
    chosen = settings(components=["resid", "mlp"], positions=[4, -1], effects="measured")
    run(tmp_path, settings=chosen)
    for record in read_measurements(tmp_path, path(tmp_path)):
        assert record.candidates.positions == [4, -1] and record.candidates.sites == 12
        assert {name.rsplit("@")[1] for name in record.support} <= {"4", "-1"}


def test_sites_before_every_difference_are_no_candidates(tiny, tmp_path):
    run(tmp_path, settings=settings(positions=[1, -1]))
    for record in read_measurements(tmp_path, path(tmp_path)):
        assert record.candidates.sites == 15 and record.candidates.without_contrast == 15


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([9], "protocol.positions: site L00.head.0@9: position 9 is outside a prompt of 7 tokens"),
        ([-1, 8], "protocol.positions: .*position 8 is outside a prompt of 7 tokens"),
        ([-1, 6], "protocol.positions: sites L00.head.0@-1 and L00.head.0@6 are the same in a prompt of 7 tokens"),
        ([1], r"protocol.positions: \[1\]: the prompts of every ioi pair agree up to there"),
    ],
)
def test_positions_that_do_not_fit(tiny, tmp_path, positions, message):
    with pytest.raises(InputError, match=message):
        run(tmp_path, settings=settings(positions=positions))
    assert not path(tmp_path).parent.exists()


def test_random_controls_keep_their_draws(tiny, tmp_path):
    for selector, condition in product(("random_support", "random_direction", "driver_omp"), ("P", "F")):
        run(tmp_path, selector=selector, condition=condition)
    for record in read_all_measurements(tmp_path):
        if record.selector == "driver_omp":
            assert record.draws is None
            continue
        assert len(record.draws) == 3
        first = record.draws[0]
        assert first.support == record.support and first.strengths == record.strengths
        assert first.patched == record.evaluate.at_dose(1.0) and first.reversed == record.reversal.reversed
        assert record.draws[1].patched != first.patched


@pytest.mark.parametrize("condition", ["P", "F"])
def test_random_directions_have_the_norms_of_the_true_ones(tiny, tmp_path, condition):
    for selector in ("driver_omp", "random_direction"):
        run(tmp_path, selector=selector, condition=condition)
    true, random = (
        read_measurements(tmp_path, path(tmp_path, selector, condition))[0]
        for selector in ("driver_omp", "random_direction")
    )
    assert random.support == true.support and random.strengths == true.strengths
    assert random.norms.direction == pytest.approx(true.norms.direction, rel=1e-5)
    assert random.evaluate.patched != true.evaluate.patched
    assert random.feedback.gain == true.feedback.gain


def test_remeasured_omp_measures_what_it_predicts_from(tiny, tmp_path):
    """R^2 of the path is that of the joint patch on the fitting split, not that of added single effects."""
    run(tmp_path, selector="driver_omp_remeasured", settings=settings(effects="measured", seeds=[0]))
    (record,) = read_measurements(tmp_path, path(tmp_path, "driver_omp_remeasured"))
    protocol = settings(effects="measured", seeds=[0]).protocol
    shared = study._fitting(study._model("", ""), protocol.model_dump_json(), PanelSources())
    fit = shared.pairs("ioi", 0).splits["fit"]
    left = fit.gap - shared.choice("ioi", 0, "driver_omp_remeasured").joint
    assert record.selection.path[-1] == pytest.approx(1 - left @ left / (fit.gap @ fit.gap), abs=1e-5)


def test_wrong_way_is_the_share_of_pairs_that_move_away(tiny, tmp_path):
    run(tmp_path)
    for record in read_measurements(tmp_path, path(tmp_path)):
        evaluated = record.evaluate
        for row, share in zip(evaluated.patched, evaluated.wrong_way, strict=True):
            away = [(y - s) * (t - s) < 0 for y, s, t in zip(row, evaluated.source, evaluated.target)]
            assert share == sum(away) / len(away)
        assert evaluated.wrong_way[evaluated.doses.index(0.0)] == 0.0


def test_a_model_that_cannot_take_the_prompts_is_a_result(computed, tmp_path, monkeypatch):
    def refuse(*_):
        raise UnsupportedModel("the model's tokenizer has no chat template")

    monkeypatch.setattr(gate, "draw_pairs", refuse)
    run(tmp_path)
    for record in read_measurements(tmp_path, path(tmp_path)):
        assert not record.supported and record.gate is None
        assert record.reason == "the model's tokenizer has no chat template"


def test_the_oriented_mean_is_the_mean_of_turned_contrasts_turned_back(tiny, tmp_path):
    """Rule O, written out pair by pair."""
    run(tmp_path, condition="O", settings=settings(seeds=[0]))
    (record,) = read_measurements(tmp_path, path(tmp_path, condition="O"))
    lm = study._model("", "")
    shared = study._fitting(lm, settings(seeds=[0]).protocol.model_dump_json(), PanelSources())
    splits = shared.pairs("ioi", 0).splits
    support = tuple(parse_site(name) for name in record.support)
    fit, evaluate, reuse = (splits[name] for name in ("fit", "evaluate", "reuse"))
    assert set(fit.signs) == {1, -1}
    means = []
    for site in support:
        turned = [pair.sign * contrast.double() for pair, contrast in zip(fit.pairs, fit.contrasts[site], strict=True)]
        means.append(sum(turned) / len(turned))
    for pairs, rows in ((evaluate.pairs, record.evaluate.at_dose(1.0)), (reuse.pairs, record.reuse.frozen)):
        for pair, value in zip(pairs, rows, strict=True):
            own = Intervention(support, record.strengths, tuple(pair.sign * mean for mean in means))
            with patched(lm, own, pair=pair):
                assert value == pytest.approx(plain_margin(lm, pair), abs=1e-4)
            oriented = Intervention(support, record.strengths, tuple(means), oriented=True)
            with patched(lm, oriented, pair=pair):
                assert value == pytest.approx(plain_margin(lm, pair), abs=1e-4)
    with pytest.raises(ValueError, match="pair is missing: this intervention turns its directions by the pair"):
        with patched(lm, oriented):
            pass
    assert record.norms.direction == pytest.approx([float(mean.norm()) for mean in means])


def test_where_there_is_one_orientation_the_oriented_mean_is_the_mean():
    """And is not measured twice."""
    protocol = load_settings(PARAMS, "paper").protocol.model_copy(update={"conditions": ["F", "O"]})
    assert {task for task, _, condition in studies(protocol) if condition == "O"} == {
        "ioi", "ioi_same_panel", "mcqa_humanities", "mcqa_stem", "mcqa_cue",
    }  # fmt: skip
    assert {task for task, _, condition in studies(protocol) if condition == "F"} == set(protocol.tasks)
    with pytest.raises(InputError, match="condition O of sentiment, refusal is F"):
        restricted(load_settings(PARAMS, "paper"), tasks=["sentiment", "refusal"], conditions=["O"])


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
        assert record.reason == "0 of 4 fit pairs have a gap of at least 1e+06 logits; 1 are needed"


def test_nothing_is_patched_before_the_gate(computed, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("patched")

    monkeypatch.setattr(fitting, "effect_columns", refuse)
    monkeypatch.setattr("sparse_control.protocol.record.measure", refuse)
    run(tmp_path, settings=settings(minimum_gap=1e6))


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
        ({"task": "arithmetic"}, "task must be one of ioi, .*sentiment, .*got 'arithmetic'"),
        ({"selector": "best"}, "selector must be one of .*got 'best'"),
        ({"condition": "p"}, "condition must be one of P, F, O, got 'p'"),
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
