"""Transported states of the benchmark: official ISS follows from them, and what does not follow is noticed."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sparse_control.project import project_folder
from sparse_control.records.benchmark_states import layer_files, read_benchmark_states
from sparse_control.records.jacobian_iss import read_iss
from sparse_control.records.manifest import write_manifest
from sparse_control.stages import d_official
from sparse_control.verify import verify
from sparse_control.verify.states import SCORES, recomputed


@pytest.fixture(scope="module")
def measured_root(frozen, tmp_path_factory, small_settings, small_corpus):
    root = shutil.copytree(frozen, tmp_path_factory.mktemp("states") / "root")
    receipt = d_official.run(corpus=small_corpus, root=root, settings=small_settings)
    write_manifest(root, [name for name, _ in receipt.files])
    return root


@pytest.fixture
def measured(measured_root, tmp_path):
    return shutil.copytree(measured_root, tmp_path / "root")


def state_checks_of(root):
    found = verify(root, project_folder(), from_states=True)
    return [check for check in found if check.name.startswith("ISS")]


def test_official_scores_follow_from_the_states(measured, paths_of):
    paths = paths_of(measured)
    iss = read_iss(paths)
    files = layer_files(paths)
    assert sorted(files) == iss.summary.validated_layers
    for layer, path in files.items():
        scores = recomputed(read_benchmark_states(path), iss.freeze.lam_rel[str(layer)].iss)
        saved = [row for row in iss.fact_layers if (row.layer, row.metric) == (layer, "ISS")]
        assert saved and len(saved) == len(scores)
        for row in saved:
            np.testing.assert_allclose(scores[row.fact], [getattr(row, name) for name in SCORES], atol=2e-5)
    checks = state_checks_of(measured)
    assert [check.status for check in checks] == ["ok"] * len(files)
    assert not [check for check in verify(measured, project_folder()) if check.name.startswith("ISS")]


def edited(path, change):
    """The file with other tensors or another header, as a forger leaves it."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        header = file.metadata()
    tensors, header = change(load_file(path), header)
    save_file(tensors, path, header)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors, header: ({name: np.roll(z, 1, axis=0) for name, z in tensors.items()}, header), "from states"),
        (lambda tensors, header: ({name: z[1:] for name, z in tensors.items()}, header), "expected finite numbers of"),
        (
            lambda tensors, header: ({name: z * np.nan for name, z in tensors.items()}, header),
            "expected finite numbers",
        ),
        (
            lambda tensors, header: ({f"other {name}": z for name, z in tensors.items()}, header),
            "expected states named seed_0",
        ),
        (lambda tensors, header: (tensors, {}), "labels: not valid JSON"),
        (lambda tensors, header: (tensors, {"labels": '{"facts": ["a"]}'}), "labels: relations"),
    ],
)
def test_states_that_say_something_else_fail(measured, paths_of, change, words):
    path = list(layer_files(paths_of(measured)).values())[-1]  # at layer 0 a family's prompts end alike
    edited(path, change)
    (failed,) = [check for check in state_checks_of(measured) if check.status == "FAIL"]
    assert words in failed.detail and path.name in str(failed)


def test_a_file_that_is_cut_off_fails_and_absent_ones_are_told(measured, paths_of):
    first, *others = layer_files(paths_of(measured)).values()
    first.write_bytes(first.read_bytes()[:100])
    (failed,) = [check for check in state_checks_of(measured) if check.status == "FAIL"]
    assert "cannot be read" in failed.detail
    for path in (first, *others):
        path.unlink()
    (skipped,) = state_checks_of(measured)
    assert skipped.status == "skip" and "no states of layers" in skipped.detail


def test_states_of_a_layer_that_is_no_longer_validated_are_removed(measured, paths_of, small_settings, small_corpus):
    path = next(iter(layer_files(paths_of(measured)).values()))
    other = path.with_name("1.safetensors")
    shutil.copy(path, other)
    d_official.run(corpus=small_corpus, root=measured, settings=small_settings)
    assert path.is_file() and not other.exists()
