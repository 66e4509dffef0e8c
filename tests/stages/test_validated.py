"""What stage B left is frozen with the settings it was made with, and with no others."""

import shutil

import pytest

pytest.importorskip("torch")

from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.records.jacobian_iss import read_iss_file
from sparse_control.settings import Settings
from sparse_control.stages import a_reference, b_validate, c_freeze
from sparse_control.stages.validated import check_validated


@pytest.fixture
def check(small_corpus, paths_of):
    def call(root, settings, changes=None, corpus_sha256=load_corpus(small_corpus).sha256):
        content = settings.model_dump()
        for field, value in (changes or {}).items():
            section, _, name = field.rpartition(".")
            (content[section] if section else content)[name] = value
        check_validated(paths_of(root), Settings.model_validate(content), corpus_sha256)

    return call


@pytest.mark.parametrize("changes", [{}, {"validation.iss_seed_deviation": 0.6}, {"protocol": None}])
def test_the_settings_of_stage_b_pass(validated, small_settings, check, changes):
    changes = {place: value or small_settings.protocol for place, value in changes.items()}
    check(validated, small_settings, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float64"}, "metadata.json: dtype: 'float32', but the settings give 'float64'"),
        ({"estimator.probe": "rademacher"}, "layer 0, rademacher: k, oversampling, power_iterations"),
        ({"corpus.sequence_length": 8}, "metadata.json: calibration_sequence_length: 16"),
        ({"estimator.corpus_sizes": [2, 4]}, "full_comparison.json: corpus_size: 8"),
        ({"estimator.corpus_sizes": [4, 8]}, r"corpus_convergence.jsonl: layer 0: n: \[2, 4, 8\]"),
        ({"estimator.ranks": [4, 8]}, "full_comparison.json: layer 0, gaussian: k, oversampling, power_iterations"),
        ({"estimator.oversampling": [2]}, "full_comparison.json: layer 0, gaussian: k, oversampling, power_iterations"),
        ({"estimator.reference": False}, "per_model_action_validation.jsonl: layer 0: direct_action"),
        ({"estimator.sketch_seeds": [0, 1, 3]}, r"seed_stability.jsonl: seeds: \[0, 1, 2\]"),
        ({"iss.layers": [0]}, r"whitening.json: layers of lam_rel: \['0', '2'\]"),
        ({"iss.layers": [0, 1, 2]}, "whitening.json: layers of lam_rel"),
        ({"iss.facts_per_relation": 3}, "calibration.safetensors: states of layer 0"),
        ({"validation.median_cosine": 1.0}, "per_model_action_validation.jsonl: layer 0: "),
        ({"validation.negligible_seed_deviation": 1.0}, "metadata.json: reporting: 'mean of seeds'"),
    ],
)
def test_other_settings_are_refused(validated, small_settings, check, changes, message):
    changes |= {"alternatives.layers": [0]} if changes.get("iss.layers") == [0] else {}
    with pytest.raises(InputError, match=message) as caught:
        check(validated, small_settings, changes)
    assert str(caught.value).endswith("; run experiment-c first")


def test_another_corpus_is_refused(validated, small_settings, check):
    with pytest.raises(InputError, match="metadata.json: corpus_sha256"):
        check(validated, small_settings, corpus_sha256="0" * 64)


@pytest.mark.parametrize("change", [{"reference": False}, {"matrix_free": True}], ids=["alone", "beside references"])
def test_ladders_of_products_are_climbed_again(tmp_path, small_settings, small_corpus, check, change, paths_of):
    changes = {"estimator": small_settings.estimator.model_copy(update=change)}
    settings = small_settings.model_copy(update=changes)
    for stage in (a_reference, b_validate):
        stage.run(corpus=small_corpus, root=tmp_path, settings=settings)
    check(tmp_path, settings)
    paths = paths_of(tmp_path)
    assert {row.direct_action for row in read_iss_file(paths, "actions")} == {"jvp"}
    assert paths.iss_file("comparison").is_file() == ("matrix_free" in change)
    with pytest.raises(InputError, match="layer 0.*: k, oversampling, power_iterations"):
        check(tmp_path, settings, {"estimator.ranks": [3, 4, 8, 16]})


@pytest.mark.parametrize(
    "pattern", ["whitening.json", "seed_stability.jsonl", "*_comparison.json", "calibration.safetensors", "Q.pt"]
)
def test_missing_files_are_named(validated, tmp_path, small_settings, check, pattern, paths_of):
    root = shutil.copytree(validated, tmp_path / "root")
    path = next(paths_of(root).base.rglob(pattern))
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name}: is missing; run experiment-c first"):
        check(root, small_settings)


def test_nothing_is_frozen_where_they_differ(validated, tmp_path, small_settings, small_corpus, paths_of):
    """Stage C holds what stage B left against the settings by itself, whoever calls it."""
    root = shutil.copytree(validated, tmp_path / "root")
    other = small_settings.model_copy(update={"dtype": "float64"})
    with pytest.raises(InputError, match="run experiment-c first"):
        c_freeze.run(corpus=small_corpus, root=root, settings=other)
    assert not paths_of(root).manifest.exists() and not paths_of(root).configs.exists()
    c_freeze.run(corpus=small_corpus, root=root, settings=small_settings)
    assert paths_of(root).manifest.exists()
