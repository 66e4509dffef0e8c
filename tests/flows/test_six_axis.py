"""No order of runs, change of settings or damage loses a record that was measured."""

import numpy as np
import pytest
from prefect import flow

import tasks  # noqa: F401  settles the environment before Prefect reads it
from flows import six_axis
from flows.parameters import Run
from sparse_control.errors import InputError
from sparse_control.files import read_json_lines
from sparse_control.protocol import stored
from sparse_control.protocol.given import GivenFile
from sparse_control.protocol.grid import restricted
from tasks import exclusive
from tests.support.tiny import WIDTH
from tests.support.tiny_study import small_settings, tiny_studies

ONE = {"tasks": ["ioi"], "selectors": ["driver_omp"], "conditions": ["P"]}


@pytest.fixture
def measure(prefect_server, monkeypatch):
    """The flow, of the model of `tiny_studies`."""
    monkeypatch.setattr(six_axis, "tables_artifact", lambda *_: None)
    for module in (six_axis, exclusive):
        monkeypatch.setattr(module, "model_identity", lambda *names: stored.model_identity(*names))
    return flow(six_axis.measure, name="six-axis-test", persist_result=False, validate_parameters=False)


@pytest.fixture
def go(measure, tmp_path, monkeypatch):
    """Measures some seeds into one folder; gives the seeds of the file, how many were measured, and the steps."""
    with tiny_studies(monkeypatch) as measured:

        def run(*seeds, replace=False, **changes):
            before = len(measured)
            settings = small_settings(**ONE, seeds=list(seeds), **changes)
            summary = measure(Run("six-axis", settings, tmp_path), replace=replace)
            file = tmp_path / "tiny-llama" / "six_axis" / "ioi.driver_omp.P.jsonl"
            skipped = [step["skipped"] for step in summary["steps"]]
            return [row["seed"] for row in read_json_lines(file)], len(measured) - before, skipped

        yield run


@pytest.mark.slow
def test_a_narrower_run_keeps_what_a_wider_one_measured(go, tmp_path):
    assert go(0) == ([0], 1, [False])
    assert go(0, 1) == ([0, 1], 1, [False])
    assert go(0)[:2] == ([0, 1], 0)
    assert go(1)[:2] == ([0, 1], 0)
    assert go(0, 1) == ([0, 1], 0, [True])
    assert not (tmp_path / "replaced").exists()


@pytest.mark.slow
def test_ten_records_stay_ten_when_one_is_asked_for_with_other_settings(go, tmp_path, capfd):
    assert go(*range(10))[:2] == (list(range(10)), 10)
    with pytest.raises(InputError, match="1 of 1 records .* other settings.*--replace"):
        go(3, support_size=2)
    assert go(3)[:2] == (list(range(10)), 0)
    assert go(3, support_size=2, replace=True)[:2] == (list(range(10)), 1)
    told = f"six-axis: 1 record will be measured again; the old ones go to {tmp_path / 'replaced'}"
    assert told in capfd.readouterr().err
    (old,) = (tmp_path / "replaced").rglob("*.jsonl")
    assert [row["seed"] for row in read_json_lines(old)] == [3]
    with pytest.raises(InputError, match="1 of 10 records"):
        go(*range(10))


@pytest.mark.slow
def test_a_given_file_is_measured_with_its_controls_and_then_stands(measure, tmp_path, monkeypatch):
    np.savez(tmp_path / "probe.npz", coef_=np.ones(WIDTH))

    def go(**read):
        file = GivenFile.of(tmp_path / "probe.npz", layer=1, **read)
        settings = restricted(small_settings(seeds=[0]), tasks=["ioi"], given=[file])
        steps = measure(Run("six-axis", settings, tmp_path), given=(file,))["steps"]
        return [(list(step["files"]), step["skipped"]) for step in steps]

    with tiny_studies(monkeypatch):
        names = [
            [f"tiny-llama/six_axis/ioi.probe.npz-layer1{control}.{rule}.jsonl"]
            for control in ("", "-random_direction", "-random_support")
            for rule in "FO"
        ]
        assert go() == [(name, False) for name in names]
        assert go() == [(name, True) for name in names]
        with pytest.raises(InputError, match="6 of 6 records .* other intervention file or strength"):
            go(strength=2.0)
        np.savez(tmp_path / "probe.npz", coef_=np.arange(WIDTH))
        with pytest.raises(InputError, match="6 of 6 records .* other intervention file or strength"):
            go()
