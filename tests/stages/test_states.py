"""Query-end states: each prompt's own, whatever it is batched with, and a tokenizer that is only asked."""

import torch

from sparse_control.iss.benchmark import Query
from sparse_control.models import LanguageModel, load_model
from sparse_control.models.stream import residual_stream
from sparse_control.stages.calibration import calibration_queries
from sparse_control.stages.states import query_states
from tests.support.tiny import tiny_model, words_tokenizer


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


def test_any_of_several_right_answers_is_right():
    """Whichever of them begins with the model's next token, in whatever order they are given."""
    lm = LanguageModel.wrap(tiny_model().model, words_tokenizer())
    following = {}
    for n in range(20, 60):
        text = f"w{n} w{n + 1} w{n + 2}"
        token = lm.model(input_ids=lm.encode(text)[None]).logits[0, -1].argmax().item()
        if 20 <= token < 90:  # the tokenizer finds its w1 in w10 to w19, too
            following[text] = f"w{token}"
    assert len(set(following.values())) > 3

    def answered(*answers):
        queries = [
            Query(fact=f"r/{text}", relation="r", family="f", template=0, text=text,
                  answers=tuple(answer or word for answer in answers))
            for text, word in following.items()
        ]  # fmt: skip
        return query_states(lm, queries, [0], "states").answered

    for answers in ((None,), ("w90", None), (None, "w90"), ("w90", "w91", None)):
        assert answered(*answers).all()
    assert not answered("w90", "w91").any()
