"""The two nulls take away what they say and nothing else."""

import numpy as np
import pytest
import torch

from sparse_control.corpus import load_corpus
from sparse_control.errors import UnsupportedModel
from sparse_control.files import read_json
from sparse_control.models import load_model
from sparse_control.stages import a_reference, b_validate, c_freeze, d_official
from sparse_control.stages.nulls import redraw_weights, shuffled_tokens


def test_shuffled_windows_hold_the_same_tokens_in_another_order(small_corpus):
    corpus = load_corpus(small_corpus)
    shuffled = shuffled_tokens(corpus, seed=0)
    assert np.array_equal(np.sort(shuffled.input_ids, axis=1), np.sort(corpus.input_ids, axis=1))
    assert all((a != b).any() for a, b in zip(shuffled.input_ids, corpus.input_ids, strict=True))
    assert np.array_equal(shuffled.input_ids, shuffled_tokens(corpus, seed=0).input_ids)
    assert not np.array_equal(shuffled.input_ids, shuffled_tokens(corpus, seed=1).input_ids)


def test_every_matrix_is_redrawn_at_its_scale(small_model):
    lm, before = load_model(str(small_model)), load_model(str(small_model))
    drawn = redraw_weights(lm, seed=0)
    old = dict(before.model.named_parameters())
    for name, parameter in drawn.model.named_parameters():
        if parameter.ndim < 2:
            assert torch.equal(parameter, old[name])
            continue
        assert not torch.equal(parameter, old[name])
        correlation = torch.corrcoef(torch.stack([parameter.flatten(), old[name].flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.2, "nothing of the trained weights is left"
        assert float(parameter.square().mean().sqrt()) == pytest.approx(
            float(old[name].square().mean().sqrt()), rel=0.1
        )
    assert drawn.provenance["redrawn_weights"]["seed"] == 0
    again = redraw_weights(load_model(str(small_model)), seed=0)
    assert again.provenance == drawn.provenance


def test_weights_that_stay_are_refused(small_model):
    lm = load_model(str(small_model))
    with torch.no_grad():
        lm.layout.blocks[0].mlp.down_proj.weight.zero_()
    with pytest.raises(UnsupportedModel, match="did not change when redrawn"):
        redraw_weights(lm, seed=0)


@pytest.mark.parametrize("null", ["shuffled_tokens", "redrawn_weights"])
def test_the_stages_run_on_a_null_and_say_so(tmp_path, small_settings, small_corpus, null, paths_of):
    settings = small_settings.as_null(null)
    for stage in (a_reference, b_validate, c_freeze, d_official):
        stage.run(corpus=small_corpus, root=tmp_path, settings=settings)
    paths = paths_of(tmp_path, null)
    summary = read_json(paths.result("iss_model_summary.json"))
    assert summary["null"] == null and summary["window"] == settings.nulls.layers
    assert read_json(paths.reference_metadata)["null"] == null
    assert ("redrawn_weights" in summary["provenance"]["model"]) == (null == "redrawn_weights")
