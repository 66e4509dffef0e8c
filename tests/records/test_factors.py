"""What makes factors the frozen ones is said once, and every difference is one line."""

import json

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.files import write_json
from sparse_control.records.factors import (
    check_hashes,
    freeze_configs,
    frozen_files,
    frozen_layer,
    reported_factors,
)
from sparse_control.records.jacobian_iss import read_iss
from sparse_control.records.paths import ModelPaths
from tests.support.measured_iss import iss_files
from tests.support.measured_root import MODEL, write_iss

WEIGHTS = {"identity": None, "weights_sha256": "a" * 64, "tokenizer_sha256": None}


@pytest.fixture
def paths(tmp_path):
    paths = ModelPaths(tmp_path, MODEL)
    write_iss(paths, iss_files(MODEL))
    for path in frozen_files(paths, read_iss(paths).freeze.layers, reference=True):
        if not path.is_file():
            path.write_bytes(b"d")
    for factors in factors_of(paths):
        write_json(factors.folder / "metadata.json", dict(factors.expected))
    return paths


def factors_of(paths, **arguments):
    iss = read_iss(paths)
    freeze = iss.freeze
    arguments = {"attempts": iss.actions, "measured_on": WEIGHTS} | arguments
    return reported_factors(paths, freeze.layers, freeze.settings, freeze.corpus_sha256, **arguments)


def test_a_folder_for_every_validated_layer_and_reported_seed(paths):
    found = factors_of(paths)
    names = [(one.layer, one.seed, one.folder.relative_to(paths.base).as_posix()) for one in found]
    base = f"low_rank_factors/{MODEL}"
    assert names == [
        (2, 0, f"{base}/2"), (5, 0, f"{base}/5"), (5, 1, f"{base}/5/seed_1"), (5, 2, f"{base}/5/seed_2"),
    ]  # fmt: skip
    for one in found:
        one.check()


FIELDS = {
    "model": "other", "layer": 3, "rank": 63, "oversampling": 31, "power_iterations": 1, "random_seed": 7,
    "calibration_corpus_size": 16, "calibration_sequence_length": 64, "corpus_sha256": "e" * 64, "probe": "rademacher",
    "dtype": "bfloat16", "null": "shuffled_tokens", "reporting": "preregistered seed", "validated": False,
    "estimator": "svd", "identity": "b" * 64, "weights_sha256": "b" * 64,
    "tokenizer_sha256": "b" * 64, "validation_cosine_median": 0.99,
    "validation_relative_error_median": 0.01, "iss_rank_difference": 0.0, "iss_seed_deviation": 0.0,
    "ladder_step": "oversampling", "products": "jvp",
    "facts": "0" * 64,
}  # fmt: skip


def test_every_field_of_the_metadata_counts(paths):
    factors = factors_of(paths)[3]
    path, good = factors.folder / "metadata.json", json.loads((factors.folder / "metadata.json").read_text())
    assert set(FIELDS) == set(factors.expected)
    for field, value in FIELDS.items():
        write_json(path, good | {field: value})
        with pytest.raises(InputError, match=f"metadata.json: {field}: {value!r}, expected {good.get(field)!r}"):
            factors.check()
    write_json(path, [])
    with pytest.raises(InputError, match="expected an object"):
        factors.check()


def test_what_is_not_known_is_not_asked(paths):
    (first, *_) = factors_of(paths, attempts=(), measured_on=None)
    assert not {"weights_sha256", "validation_cosine_median"} & set(first.expected)


def test_frozen_layers_are_what_the_attempts_and_the_rule_give(paths):
    iss = read_iss(paths)
    chosen = {row.layer: row for row in iss.actions if row.chosen}
    for number, layer in iss.freeze.layers.items():
        made = frozen_layer(chosen.get(int(number)), layer.reporting, [0, 1, 2])
        assert made.model_dump(exclude_none=True) == layer.model_dump(exclude_none=True)


def test_configs_are_the_parts_of_the_freeze(paths):
    freeze = read_iss(paths).freeze
    for name, content in freeze_configs(freeze).items():
        assert yaml.safe_load(paths.config(name).read_text()) == content


def edit(paths, change, *, content_hash=True):
    content = json.loads(paths.manifest.read_text())
    change(content)
    if not content_hash:
        del content["content_sha256"]
    paths.manifest.write_text(json.dumps(content))


def test_a_freeze_must_name_every_file(paths, tmp_path):
    with pytest.raises(InputError, match="Q.pt: changed after the freeze"):
        check_hashes(paths, read_iss(paths).freeze)
    for name in ("configs/layer_windows.yaml", "validation/whitening.json", f"low_rank_factors/{MODEL}/5/seed_2/B.pt"):
        edit(paths, lambda content: content["files"].pop(name), content_hash=False)
        with pytest.raises(InputError, match=f"freeze_manifest.json: files: lacks .*{name}"):
            check_hashes(paths, read_iss(paths).freeze)
        write_iss(paths, iss_files(MODEL))
    (paths.base / "configs/corpus_config.yaml").unlink()
    with pytest.raises(InputError, match="corpus_config.yaml: is missing but frozen"):
        check_hashes(paths, read_iss(paths).freeze)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["lam_rel"]["2"].update(iss=5.0),
        lambda content: content["layers"].update({"2": {"status": "unresolved", "step": None}}),
        lambda content: content["settings"].update(extra=1),
        lambda content: content["files"].update({"configs/corpus_config.yaml": "0" * 64}),
    ],
)
def test_an_edited_freeze_is_refused_by_every_reader(paths, change):
    edit(paths, change)
    with pytest.raises(InputError, match="freeze_manifest.json: content_sha256: '[0-9a-f]{64}', but the content has"):
        read_iss(paths)


def test_a_freeze_of_older_code_has_no_hash_of_its_content(paths):
    edit(paths, lambda content: None, content_hash=False)
    assert read_iss(paths).freeze.content_sha256 is None
