"""Query-end states: each prompt's own, whatever it is batched with, and a tokenizer that is only asked."""

import torch

from sparse_control.models import load_model
from sparse_control.models.stream import residual_stream
from sparse_control.stages.calibration import calibration_queries
from sparse_control.stages.states import query_states


def test_states_are_those_of_each_prompt_alone(small_model, small_settings):
    lm, queries = load_model(str(small_model)), calibration_queries(small_settings)
    found = query_states(lm, queries, [0, 3], "states")
    assert len({len(lm.encode(query.text)) for query in queries}) > 3, "lengths must differ"
    for index, query in enumerate(queries):
        alone = residual_stream(lm, lm.encode(query.text)[None])[0]
        for layer in (0, 3):
            assert torch.allclose(found.states[layer][index], alone[layer], rtol=1e-4, atol=1e-5)
        logits = lm.model(input_ids=lm.encode(query.text)[None]).logits[0, -1]
        assert found.answered[index] == (logits.argmax().item() == lm.encode(" " + query.answers[0])[0])


def test_the_tokenizer_is_left_as_it_was(small_model, small_settings):
    lm = load_model(str(small_model))

    def state():
        sides = lm.tokenizer.padding_side, lm.tokenizer.truncation_side
        return *sides, lm.tokenizer.special_tokens_map, lm.tokenizer.backend_tokenizer.to_str()

    before = state()
    lm.tokenizer.padding_side = "left"
    assert state() != before
    before = state()
    query_states(lm, calibration_queries(small_settings), [0], "states")
    assert state() == before
