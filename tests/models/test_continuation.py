"""Answers are the tokens that follow their prompt, by whatever tokenizer."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparse_control.iss.benchmark import Query
from sparse_control.models import LanguageModel
from sparse_control.models.continuation import continuation
from sparse_control.protocol.panels.pair import Draft, build_pair
from sparse_control.stages import states
from tests.support.tiny import tiny_model

WORDS = ("The", "capital", "of", "France", "is", "Paris", "Rome", "Italy")


def metaspace():
    """As Llama-2, Mistral and Phi-3 have it: a space is a letter, and one is written before every text."""
    pieces = ["<unk>", "▁", *(f"▁{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def pre_tokenised():
    words = {f"▁{word}": number for number, word in enumerate(WORDS, start=1)}
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "▁": 20} | words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


PROMPT = "The capital of France is"


@pytest.mark.parametrize("make", [metaspace, pre_tokenised])
def test_an_answer_is_one_token_in_its_context(make):
    tokenizer = make()
    alone = tokenizer.convert_ids_to_tokens(tokenizer(" Paris", add_special_tokens=False)["input_ids"])
    assert alone == (["▁", "▁Paris"] if make is metaspace else ["▁Paris"]), "the trap: alone it begins with a space"
    ids = tokenizer(PROMPT)["input_ids"]
    found = continuation(lambda text: tokenizer(text)["input_ids"], PROMPT, ids, " Paris")
    assert tokenizer.convert_ids_to_tokens(list(found)) == ["▁Paris"]


def test_texts_that_merge_with_the_prompt_have_no_token():
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    assert continuation(lambda text: tokenizer.encode(text).ids, "a", [0], "b") is None
    assert continuation(lambda text: tokenizer.encode(text).ids, "b", [1], "a") == (0,)


@pytest.mark.parametrize("make", [metaspace, pre_tokenised])
def test_a_model_that_is_always_right_has_accuracy_one(make, monkeypatch):
    tokenizer = make()
    lm = LanguageModel.wrap(tiny_model().model, tokenizer)
    queries = [
        Query(fact=f"f{n}", relation="capital", family="a", template=0, text=text, answers=(answer,))
        for n, (text, answer) in enumerate([(PROMPT, "Paris"), ("The capital of Italy is", "Rome")])
    ]
    right = {len(query.text): tokenizer.convert_tokens_to_ids(f"▁{query.answers[0]}") for query in queries}
    order = iter([right[len(query.text)] for query in queries])
    monkeypatch.setattr(states, "_first_tokens", lambda _lm, final: [next(order) for _ in final])
    answered = states.query_states(lm, queries, [0], "states").answered
    assert answered.tolist() == [True, True]


def chat_metaspace(ending):
    """With a template that ends so: that of Llama-2 and Mistral ends without a space."""
    pieces = ["<unk>", "▁", "]", "▁]", "\n", *(f"▁{w}" for w in (*WORDS, "Sure", "Sorry")), "Sure", "Sorry"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    turns = "{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}{{ ' ' }}{% endif %}{% endfor %}"
    wrapped.chat_template = turns + f"{{{{ {ending!r} }}}}"
    return wrapped


@pytest.mark.parametrize(("ending", "forms"), [(" ]", ["Sure", "▁Sure"]), ("\n", ["Sure"])])
def test_words_of_a_reply_have_their_spaced_forms_where_the_template_ends_without_a_space(ending, forms):
    tokenizer = chat_metaspace(ending)
    draft = Draft(
        id="p", task="refusal", split="fit", orientation="o", pieces=("The capital of", (" France", " Italy")),
        source_answers=("Sure",), target_answers=("Sorry",), system="is",
    )  # fmt: skip
    pair = build_pair(tokenizer, draft)
    assert tokenizer.convert_ids_to_tokens(list(pair.source_answer_ids)) == forms
