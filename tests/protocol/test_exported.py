"""An intervention as vectors per layer: exact where it can be, the mean change of a block's output for heads."""

import pytest
import torch

from sparse_control import cli
from sparse_control.commands import recorded
from sparse_control.errors import InputError
from sparse_control.models.sites import Site
from sparse_control.protocol import Intervention, patched
from sparse_control.protocol.direction_files import read_directions
from sparse_control.protocol.exported import exported
from sparse_control.protocol.splits import margins
from tests.support.measured_root import build_root
from tests.support.pairs import make_pairs
from tests.support.tiny import WIDTH, tiny_model

HEAD, MLP, RESID = Site("head", 1, 0), Site("mlp", 1), Site("resid", 1)
PAIRS = make_pairs(3)


def vector(width, seed):
    return torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


def readouts(lm, intervention):
    """Margins of the source prompts, each by a full forward."""
    values = []
    for pair in PAIRS:
        with torch.no_grad(), patched(lm, intervention, pair=pair):
            logits = lm.model(torch.tensor([pair.source_ids])).logits[:, -1]
        values.append(margins(logits[:, None], [pair])[0, 0])
    return torch.tensor(values)


def test_what_is_added_to_the_stream_is_exported_as_it_is(lm):
    """MLP and block output of one layer add up; another layer has a vector of its own."""
    one, two, three = (vector(WIDTH, seed) for seed in (1, 2, 3))
    given = Intervention((MLP, Site("resid", 0), RESID), (0.5, 2.0, -1.0), (one, two, three))
    found = exported(lm, given, PAIRS)
    assert list(found.by_layer) == [0, 1] and found.measured == ()
    assert torch.equal(torch.tensor(found.by_layer[0]), 2.0 * two)
    assert torch.equal(torch.tensor(found.by_layer[1]), 0.5 * one - three)
    none = Intervention((), (), ())
    moved = float((readouts(lm, given) - readouts(lm, none)).mean())
    assert abs(moved) > 1e-3 and found.moved == pytest.approx(moved, abs=1e-5)
    assert found.moved_by_vectors == pytest.approx(moved, abs=1e-4)


def test_a_head_is_the_mean_change_at_the_output_of_its_block_alone(lm):
    """Of each layer by itself: a patch below does not count again in the layers above."""
    given = Intervention((HEAD, Site("head", 0, 1)), (1.5, -1.0), (vector(lm.head_dim, 1), vector(lm.head_dim, 2)))
    found = exported(lm, given, PAIRS)
    assert list(found.by_layer) == [0, 1] == list(found.measured)
    for index, site in enumerate(given.support):
        alone = Intervention((site,), (given.strengths[index],), (given.directions[index],))
        changes = []
        for pair in PAIRS:
            ids, states = torch.tensor([pair.source_ids]), []
            for each in (Intervention((), (), ()), alone):
                with torch.no_grad(), patched(lm, each, pair=pair):
                    states.append(lm.model(ids, output_hidden_states=True).hidden_states[site.layer + 1][0, -1])
            changes.append(states[1] - states[0])
        expected = torch.stack(changes).mean(0)
        assert expected.norm() > 1e-3
        torch.testing.assert_close(torch.tensor(found.by_layer[site.layer]).float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Intervention((Site("resid", 1, position=-2),), (1.0,), (vector(WIDTH, 1),)), "L01.resid@-2: other tools know"),
        (Intervention((RESID,), (1.0,)), "differ by pair"),
        (Intervention((RESID,), (1.0,), (vector(WIDTH, 1),), oriented=True), "differ by pair"),
    ],
)
def test_what_other_tools_cannot_say_is_refused(lm, given, words):
    with pytest.raises(InputError, match=words):
        exported(lm, given, PAIRS)


@pytest.fixture
def command(lm, monkeypatch, tmp_path, capsys):
    root = build_root(tmp_path / "root")
    applied = Intervention((RESID, HEAD), (2.0, 1.0), (vector(WIDTH, 1), vector(lm.head_dim, 2)))
    monkeypatch.setattr(recorded, "loaded", lambda *_: lm)
    monkeypatch.setattr(recorded, "recorded_intervention", lambda *_: (applied, PAIRS))
    file = next(root.glob("*/six_axis/*.driver_omp.F.jsonl"))
    options = {"task": file.name.split(".")[0], "selector": "driver_omp", "seed": 0, "condition": "F",
               "model": file.parent.parent.name}  # fmt: skip

    def call(out, **change):
        named = [part for name, value in (options | change).items() for part in (f"--{name}", str(value))]
        code = cli.main(["export", *named, "--root", str(root), "--out", str(out)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    call.applied = applied
    return call


@pytest.mark.parametrize("suffix", [".gguf", ".safetensors", ".npz", ".pt"])
def test_what_the_command_writes_is_read_back(command, lm, tmp_path, suffix):
    out = tmp_path / f"v{suffix}"
    code, said, _ = command(out)
    assert code == 0 and "2 sites as vectors of layers 1, in" in said and "heads" in said
    back, found = read_directions(out, lm).by_layer, exported(lm, command.applied, PAIRS)
    assert list(back) == [1]
    torch.testing.assert_close(torch.tensor(back[1]), torch.tensor(found.by_layer[1]), rtol=1e-6, atol=1e-7)
    assert f"{found.moved:+.3f} logits by the sites" in said
    assert command(out)[0] == 2, "what is there is not written over"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"condition": "P"}, "only F can be exported"),
        ({"selector": "random_direction"}, "drawn at random"),
        ({"selector": "mine"}, "selector must be one of"),
        ({"seed": 99}, "has no seed 99"),
        ({"model": "absent/model"}, "no such file; measure it with run six-axis"),
    ],
)
def test_the_command_refuses_before_a_model_is_loaded(command, monkeypatch, tmp_path, change, words):
    monkeypatch.setattr(recorded, "loaded", lambda *_: pytest.fail("a model was loaded"))
    out = tmp_path / "v.gguf"
    code, said, error = command(out, **change)
    assert (code, said) == (2, "") and words in error and not out.exists()


def test_another_ending_is_refused(command, tmp_path):
    code, _, error = command(tmp_path / "v.bin")
    assert code == 2 and "write .gguf for repeng" in error
