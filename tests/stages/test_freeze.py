"""Stage D takes what stage C froze and nothing else: no edit of the manifest, of what it names, or of both, passes."""

import json
import shutil

import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.files import read_json, write_json
from sparse_control.jacobian.store import load_factors, save_factors
from sparse_control.settings import Settings
from sparse_control.stages import c_freeze, d_official
from tests.stages.conftest import changed
from tests.support.measured_root import refreeze


@pytest.fixture
def official(root, small_settings, small_corpus, monkeypatch):
    """Stage D on a copy of the frozen root, which must refuse before the first state."""
    monkeypatch.setattr(d_official, "query_states", lambda *_: pytest.fail("states were measured"))

    def run(settings: Settings = small_settings, **options):
        d_official.run(corpus=small_corpus, root=root, settings=settings, **options)

    return run


def test_the_manifest_is_needed(official, root, paths_of):
    paths_of(root).manifest.unlink()
    with pytest.raises(InputError, match="no freeze manifest; official ISS needs stage C first"):
        official()
    assert not paths_of(root).iss_file("summary").exists()


@pytest.mark.parametrize(
    "pattern",
    ["configs/*.yaml", "validation/*.jsonl", "low_rank_factors/*/*/Q.pt", "low_rank_factors/*/*/metadata.json"],
)
def test_any_changed_byte_is_refused(official, root, pattern, paths_of):
    path = sorted(paths_of(root).base.glob(pattern))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=f"{path.name}: changed after the freeze"):
        official()
    path.unlink()
    with pytest.raises(InputError, match=f"{path.name}: is missing but frozen"):
        official()


def test_other_settings_and_other_code_are_refused(official, small_settings, monkeypatch):
    with pytest.raises(InputError, match="settings.iss: was frozen with other settings"):
        official(changed(small_settings, iss={"facts_per_relation": 5}))
    monkeypatch.setattr(c_freeze, "stages_code_sha256", lambda: "0" * 64)
    with pytest.raises(InputError, match="made by another version of the code"):
        official()


def test_other_code_is_taken_with_a_reason(root, small_settings, small_corpus, monkeypatch, paths_of):
    for module in (c_freeze, d_official):
        monkeypatch.setattr(module, "stages_code_sha256", lambda: "0" * 64)
    reason = "a comment was reworded"
    d_official.run(corpus=small_corpus, root=root, settings=small_settings, accept_code=reason)
    provenance = read_json(paths_of(root).iss_file("summary"))["provenance"]
    assert provenance["accepted_code"] == reason
    assert provenance["frozen_code_sha256"] != provenance["code_sha256"] == "0" * 64


def validated_layer(content):
    return next(layer for layer, frozen in content["layers"].items() if frozen["status"] == "validated")


def unresolve(content):
    content["layers"][validated_layer(content)] = {"status": "unresolved", "step": None}


def resolve(content):
    kept = content["layers"][validated_layer(content)]
    content["layers"] = dict.fromkeys(content["layers"], kept)


EDITS = {
    "a large penalty": lambda content: content["lam_rel"]["2"].update(iss=5.0),
    "a large penalty of raw states": lambda content: content["lam_rel"]["0"].update(raw=5.0),
    "no penalty": lambda content: content["lam_rel"]["2"].update(iss=0.0),
    "a penalty of text": lambda content: content["lam_rel"]["2"].update(iss="1"),
    "a layer unresolved": unresolve,
    "every layer as one that is validated": resolve,
    "a layer less": lambda content: content["layers"].pop("0"),
    "a layer more": lambda content: content["layers"].update({"1": {"status": "unresolved", "step": None}}),
    "another rank": lambda content: content["layers"]["2"].update(k=4),
    "other seeds": lambda content: content["layers"]["2"].update(seeds=[1, 2, 0]),
    "one seed": lambda content: content["layers"]["2"].update(seeds=[0], reporting="preregistered seed"),
    "another status": lambda content: content["layers"]["0"].update(status="fine"),
    "another corpus": lambda content: content.update(corpus_sha256="0" * 64),
    "other states": lambda content: content.update(calibration_states_sha256="0" * 64),
    "another model": lambda content: content.update(model="other"),
    "another identity": lambda content: content.update(identity="0" * 64),
    "no identity": lambda content: content.pop("identity"),
    "another dtype": lambda content: content["settings"].update(dtype="float64"),
    "a looser rule": lambda content: content["settings"]["validation"].update(median_cosine=0.1),
    "other families": lambda content: content["settings"]["iss"].update(families=2),
    "another null": lambda content: content["settings"].update(null="redrawn_weights"),
    "files outside": lambda content: content["files"].update({"../../secret": "0" * 64}),
    "absolute files": lambda content: content["files"].update({"/etc/passwd": "0" * 64}),
    "no files": lambda content: content.update(files={}),
    "no layers": lambda content: content.update(layers=[]),
    "no penalties": lambda content: content.pop("lam_rel"),
    "no settings": lambda content: content.update(settings={}),
    "another schema": lambda content: content.update(schema="freeze/0"),
    "a key too many": lambda content: content.update(more=1),
    "no hash of its own": lambda content: content.pop("content_sha256"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(official, root, paths_of, name):
    """As it is, and with every hash in it renewed, as by one who knows the format."""
    paths = paths_of(root)
    original, content = paths.manifest.read_bytes(), read_json(paths.manifest)
    EDITS[name](content)
    write_json(paths.manifest, content)
    with pytest.raises(InputError, match="freeze_manifest.json") as caught:
        official()
    assert "\n" not in str(caught.value)
    try:
        refreeze(paths)
    except (ValueError, KeyError, TypeError):  # no manifest any more that hashes could be renewed in
        return
    if paths.manifest.read_bytes() != original:
        with pytest.raises(InputError) as caught:
            official()
        assert "\n" not in str(caught.value)


def swap(one, two):
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


def other_metadata(**fields):
    def edit(folder):
        write_json(folder / "metadata.json", read_json(folder / "metadata.json") | fields)

    return edit


def narrower(folder):
    factors, metadata = load_factors(folder)
    save_factors(folder, factors.truncate(metadata["rank"] - 1), metadata)


def seeds_swapped(folder):
    for name in ("Q.pt", "B.pt", "metadata.json"):
        swap(folder / name, folder / "seed_1" / name)


def layers_swapped(folder):
    for name in ("Q.pt", "B.pt"):
        shutil.copy(folder.parent / "0" / name, folder / name)


def not_orthonormal(folder):
    factors, _ = load_factors(folder)
    torch.save(2 * factors.Q, folder / "Q.pt")


FACTORS = {
    "identity": other_metadata(identity="0" * 64),
    "weights": other_metadata(weights_sha256="0" * 64),
    "tokenizer": other_metadata(tokenizer_sha256="0" * 64),
    "dtype": other_metadata(dtype="float64"),
    "corpus": other_metadata(corpus_sha256="0" * 64),
    "rank": other_metadata(rank=5),
    "layer": other_metadata(layer=0),
    "seed": other_metadata(random_seed=1),
    "null": other_metadata(null="shuffled_tokens"),
    "cosine": other_metadata(validation_cosine_median=0.999),
    "fewer columns": narrower,
    "seeds swapped": seeds_swapped,
    "columns of another length": not_orthonormal,
}


@pytest.mark.parametrize("name", FACTORS)
def test_other_factors_are_refused_though_every_hash_is_renewed(official, root, paths_of, name):
    FACTORS[name](paths_of(root).factors(2))
    refreeze(paths_of(root))
    with pytest.raises(InputError) as caught:
        official()
    assert "\n" not in str(caught.value) and "low_rank_factors" in str(caught.value)
    assert not paths_of(root).iss_file("summary").exists()


@pytest.mark.parametrize("name", sorted(FACTORS.keys() - {"weights", "tokenizer"}))  # of a model that is loaded
def test_other_factors_are_not_frozen(root, small_settings, small_corpus, paths_of, name):
    """Stage C holds what it names against what stage B chose, and against the model's files."""
    FACTORS[name](paths_of(root).factors(2))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="metadata.json: |shape is|orthonormal"):
        c_freeze.run(corpus=small_corpus, root=root, settings=small_settings)
    assert {path: path.read_bytes() for path in before} == before


def test_the_manifest_holds_the_hash_of_its_content(frozen, paths_of):
    from sparse_control.records.jacobian_iss.freeze import content_sha256

    content = json.loads(paths_of(frozen).manifest.read_text())
    assert content["content_sha256"] == content_sha256(content)
