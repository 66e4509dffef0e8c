"""What reference and factors say of themselves, beyond the keys that the source document asks for."""

from sparse_control.corpus import load_corpus
from sparse_control.files import read_json
from sparse_control.models import load_model


def test_which_map_it_is_and_of_what(validated, paths_of, small_settings, small_corpus):
    """Target, norm, positions, dtype, BOS, weights, tokenizer, corpus and library versions."""
    measured = paths_of(validated)
    lm, windows = load_model(small_settings.model), load_corpus(small_corpus)
    paths = sorted(measured.all_factors.glob("*/metadata.json"))
    assert paths, "the settings must leave a validated layer"
    reference = read_json(measured.reference_metadata)
    for content, model in [(read_json(path), None) for path in paths] + [(reference, reference["model"])]:
        model = content if model is None else model
        assert content["target_layer"] == lm.n_layers and content["position"] == "final"
        assert content["norm"] == "before the final norm"
        assert content["calibration_sequence_length"] == windows.input_ids.shape[1]
        assert content["corpus_sha256"] == windows.sha256 and content["null"] == "none"
        for name in ("dtype", "bos", "weights_sha256", "tokenizer_sha256", "versions"):
            assert model[name] == lm.provenance[name]
        assert {"torch", "transformers"} <= set(model["versions"])
    assert {read_json(path)["probe"] for path in paths} == {small_settings.estimator.probe}
