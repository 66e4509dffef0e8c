"""Jacobian lenses beside the pipeline: fitted, shown and scored through the command line, never as official ISS."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparse_control.commands.entry import exit_code
from sparse_control.commands.lens import lens
from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.iss import internal_state_stability
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.jacobian.lens import RECORDED, read_lens, write_lens
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.identity import model_identity, model_label
from sparse_control.models.stream import residual_stream
from sparse_control.project import project_folder
from sparse_control.stages.calibration import calibration_queries
from sparse_control.stages.lens_iss import fit_lens, lens_iss
from tests.support.tiny import tiny_model

WIDTH = 32
METADATA = dict.fromkeys(RECORDED, "x")


@pytest.fixture(scope="module")
def lm(small_model):
    return load_model(str(small_model))


@pytest.fixture
def write(tmp_path):
    def to_file(matrices, name="lens.pt", **metadata):
        return write_lens(tmp_path / name, matrices, n_prompts=1, metadata=METADATA | metadata)

    return to_file


@pytest.fixture
def command(monkeypatch, capsys, small_settings, small_corpus):
    """Run `lens ...` on the small study: (exit code, stdout, stderr)."""
    monkeypatch.setattr("sparse_control.settings.load_settings", lambda *_: small_settings)
    monkeypatch.setattr("sparse_control.corpus.build", lambda *_, **__: small_corpus)

    def call(*arguments):
        code = exit_code(lens, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def orthogonal():
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))).Q


def test_an_orthogonal_lens_scores_as_raw(lm, write, small_settings):
    """Rotations leave every cosine and the penalty as they are."""
    result = lens_iss(lm, read_lens(write({0: torch.eye(WIDTH), 1: 3 * orthogonal()})), small_settings)
    assert result["n_facts"] > 0
    assert np.isclose(result["lens_iss"], result["raw_iss"], rtol=1e-5)
    for row in result["per_layer"]:
        assert np.isclose(row["lam_rel_lens"], row["lam_rel_raw"], rtol=1e-5)
        assert np.isclose(row["raw_iss_matched_lam"], row["raw_iss"], rtol=1e-5)


def test_scores_are_those_of_the_transported_states(lm, write, small_settings):
    """By hand: h^2 at the last token of every calibration prompt, one at a time, through the lens of layer 1."""
    matrix = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)) * torch.logspace(0, -2, WIDTH)
    result = lens_iss(lm, read_lens(write({1: matrix})), small_settings, facts="calibration")
    queries = calibration_queries(small_settings)
    states = np.array([residual_stream(lm, lm.encode(query.text)[None])[0, 2].double().numpy() for query in queries])
    labels = [[getattr(query, name) for query in queries] for name in ("fact", "relation", "family")]
    (row,) = result["per_layer"]
    assert row["layer"] == 1 and row["state"] == "h^2"
    expected = internal_state_stability(states @ matrix.double().numpy().T, *labels, lam_rel=row["lam_rel_lens"]).iss
    raw = internal_state_stability(states, *labels, lam_rel=row["lam_rel_raw"]).iss
    matched = internal_state_stability(states, *labels, lam_rel=row["lam_rel_lens"]).iss
    assert np.isclose(result["lens_iss"], expected.mean(), atol=1e-5)
    assert np.isclose(result["raw_iss"], raw.mean(), atol=1e-5)
    assert np.isclose(row["raw_iss_matched_lam"], matched.mean(), atol=1e-5)
    assert abs(expected.mean() - raw.mean()) > 1e-3, "a transport that changes nothing proves nothing"
    assert [entry["lam_rel"] for entry in result["sweep"]] == small_settings.iss.lam_rel_sweep


def test_a_fitted_lens_says_what_it_is(lm, small_corpus, tmp_path):
    windows = load_corpus(small_corpus).first(3)
    path = fit_lens(lm, windows, [1], tmp_path / "lens.pt", skip_first=4)
    fitted = read_lens(path)
    expected = sum(future_sum_jacobian(lm, ids, [2], skip_first=4)[0].double() for ids in windows.input_ids) / 3
    assert torch.equal(fitted.operator(1).matrix, expected.float().double())
    recorded = fitted.metadata
    assert recorded["target_layer"] == 2 and recorded["skip_first"] == 4 and recorded["sequence_length"] == 16
    assert recorded["weights_sha256"] == lm.provenance["weights_sha256"] and recorded["corpus_sha256"] == windows.sha256
    assert recorded["versions"]["transformers"] and recorded["fitted_in"]["dtype"] == "float32"
    assert fitted.n_prompts == 3 and all(key in recorded for key in RECORDED)


class Ended(Exception):
    pass


def test_a_fit_that_was_ended_goes_on_to_the_same_bytes(lm, small_corpus, tmp_path):
    """Ended after every number of windows in turn; each is then read once in all."""
    windows, whole = load_corpus(small_corpus).first(4), tmp_path / "whole.pt"
    fit_lens(lm, windows, [0, 1], whole, skip_first=4)
    for end in range(4):
        path, told = tmp_path / f"{end}.pt", []

        def stop(prompts, told=told, end=end):
            told.append(prompts)
            if sum(told) == end:
                raise Ended

        with pytest.raises(Ended):
            fit_lens(lm, windows, [0, 1], path, skip_first=4, checkpoint_seconds=0.0, progress=stop)
        assert not path.exists() and [entry.name for entry in path.with_name(f"{end}.pt.unfinished").iterdir()]
        told = []
        fit_lens(lm, windows, [0, 1], path, skip_first=4, progress=told.append)
        assert told == [end] + [1] * (4 - end)
        assert path.read_bytes() == whole.read_bytes()
    assert sorted(entry.suffix for entry in tmp_path.iterdir()) == [".pt"] * 5


@pytest.mark.parametrize("change", ["layers", "skip_first", "prompts", "model"])
def test_an_unfinished_fit_of_something_else_is_refused(lm, small_corpus, tmp_path, change):
    windows, path = load_corpus(small_corpus).first(3), tmp_path / "lens.pt"

    def stop(prompts):
        if prompts:
            raise Ended

    with pytest.raises(Ended):
        fit_lens(lm, windows, [0], path, skip_first=4, checkpoint_seconds=0.0, progress=stop)
    call = {"lm": lm, "windows": windows, "layers": [0], "path": path, "skip_first": 4}
    if change == "model":
        call["lm"] = LanguageModel.wrap(tiny_model(seed=5).model)
    else:
        call |= {"layers": {"layers": [1]}, "skip_first": {"skip_first": 5}, "prompts": {"windows": windows.first(2)}}[
            change
        ]
    with pytest.raises(InputError, match=f"unfinished work with another {change}"):
        fit_lens(**call)


def test_a_lens_that_cannot_be_written_costs_no_fit(lm, small_corpus, tmp_path, monkeypatch):
    """Refused before the first Jacobian; the mode of a folder says nothing to a superuser, so writing is tried, too."""
    monkeypatch.setattr("sparse_control.stages.lens_iss.jacobian_sum", lambda *_, **__: pytest.fail("fitted"))
    windows = load_corpus(small_corpus).first(2)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="lens.pt: cannot be written, .*file is no folder"):
        fit_lens(lm, windows, [0], tmp_path / "file" / "lens.pt", skip_first=4)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError, match="cannot be written, .* is no folder that you may write to"):
        fit_lens(lm, windows, [0], tmp_path / "deep" / "lens.pt", skip_first=4)
    monkeypatch.undo()
    monkeypatch.setattr("sparse_control.stages.lens_iss.jacobian_sum", lambda *_, **__: pytest.fail("fitted"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="cannot be written .No space left on device"):
        fit_lens(lm, windows, [0], tmp_path / "lens.pt", skip_first=4)


@pytest.mark.parametrize("layer", [-1, 2, 9])
def test_layers_outside_the_model(lm, small_corpus, tmp_path, layer):
    with pytest.raises(InputError, match=f"layers: {layer} is not a lens layer of {lm.name}; use 0..1"):
        fit_lens(lm, load_corpus(small_corpus), [layer], tmp_path / "lens.pt", skip_first=4)


def test_lenses_of_other_models(lm, write, small_settings):
    with pytest.raises(InputError, match="width 8 and layers up to 0 do not fit small"):
        lens_iss(lm, read_lens(write({0: torch.eye(8)})), small_settings)
    with pytest.raises(InputError, match="layers up to 3 do not fit small"):
        lens_iss(lm, read_lens(write({3: torch.eye(WIDTH)})), small_settings)
    with pytest.raises(InputError, match="layer 1: not in the lens; there are: 0"):
        lens_iss(lm, read_lens(write({0: torch.eye(WIDTH)})), small_settings, layers=[1])


def test_write_show_and_score(command, tmp_path, small_model):
    path = tmp_path / "out" / "lens.pt"
    code, out, err = command("write", "--prompts", 2, "--layers", "0,1", "--skip-first", 4, "--out", path)
    assert code == 0 and out == f"{path}\n" and "MB on disk" in err
    assert read_lens(path).layers == (0, 1)

    code, out, err = command("show", path)
    assert code == 0 and err == "" and "position: future_sum" in out and "target_layer: 2" in out
    shown = json.loads(command("show", path, "--json")[1])
    assert shown["source_layers"] == [0, 1] and shown["skip_first"] == 4 and shown["n_prompts"] == 2

    code, out, err = command("score", path)
    assert code == 0 and "warning" not in err
    assert out.startswith(
        f"Lens-ISS (future_sum; not official ISS): {model_label(str(small_model))}, lens of 2 prompts, "
    )
    scored = json.loads(command("score", path, "--layers", "1", "--facts", "calibration", "--json")[1])
    assert scored["official"] is False and scored["layers"] == [1] and scored["facts"] == "calibration"
    assert scored["lens_iss"] is not None and len(scored["lens_sha256"]) == 64
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["lens.pt"], "scoring writes nothing"


def test_other_weights_are_noted(command, write, small_settings):
    code, out, err = command("score", write({0: torch.eye(WIDTH)}, weights_sha256="0" * 64), "--facts", "calibration")
    assert code == 0 and "warning: the lens was fitted on another model than small" in err
    assert f"its weights have SHA-256 {'0' * 64}" in err


def test_the_whole_identity_is_held_against_the_lens(command, write, small_settings, small_model):
    """The same weights in another dtype, with another tokenizer or other libraries are another model."""
    identity = model_identity(str(small_model))
    other = replace(identity, dtype="bfloat16", versions=identity.versions | {"torch": "1.0"})
    for found, told in (
        (identity.as_provenance(), None),
        (other.as_provenance(), f"dtype is bfloat16 and float32; torch is 1.0 and {identity.versions['torch']}"),
        ({"identity": "0" * 64}, "its model_identity is not readable"),
    ):
        path = write({0: torch.eye(WIDTH)}, weights_sha256=identity.weights_sha256, model_identity=found)
        code, _, err = command("score", path, "--facts", "calibration")
        assert code == 0 and (told in err if told else "warning" not in err)


def test_files_without_metadata_say_so(command, tmp_path):
    path = tmp_path / "bare.pt"
    torch.save({"J": {0: torch.eye(WIDTH)}, "n_prompts": 1, "source_layers": [0], "d_model": WIDTH}, path)
    code, out, _ = command("show", path)
    assert code == 0 and out.endswith("target layer, model and corpus: not recorded in the file\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "--prompts", "2", "--layers", "0", "--out", "jacobian_iss/lens.pt"], "official results alone"),
        (["write", "--prompts", "2", "--layers", "0", "--out", "."], "is a folder"),
        (["write", "--prompts", "99", "--layers", "0", "--out", "lens.pt"], "--prompts: 99 asked for"),
        (["write", "--prompts", "2", "--layers", "7", "--out", "lens.pt"], "layers: 7 is not a lens layer"),
        (["write", "--prompts", "2", "--layers", "0", "--out", "lens.pt"], "skip_first: 16 leaves no positions"),
        (["write", "--prompts", "2", "--layers", "0,x", "--out", "lens.pt"], "'0,x' is not a list of layers"),
        (["write", "--prompts", "2", "--layers", "1,1", "--out", "lens.pt"], "names a layer twice"),
        (["write", "--prompts", "0", "--layers", "0", "--out", "lens.pt"], "--prompts"),
        (["show", "absent.pt"], "absent.pt: no such file"),
        (["score", "absent.pt"], "absent.pt: no such file"),
    ],
)
def test_bad_calls_write_nothing(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments)
    assert code == 2 and out == "" and message in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_starts_without_torch():
    code = (
        "import sys; from sparse_control.cli import main; code = main(['lens', 'write', '--help']);"
        "print(sorted({'torch', 'transformers', 'sklearn'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=project_folder())
    assert done.returncode == 0 and done.stderr == "[]\n" and "--prompts" in done.stdout
