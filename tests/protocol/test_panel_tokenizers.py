"""Every panel under the tokenizers of the models that can be fetched; skipped where their files are not here."""

import pytest

from sparse_control.files import read_json
from sparse_control.models import LanguageModel
from sparse_control.models.chat import chat_ids, chat_text
from sparse_control.models.fetch import model_path
from sparse_control.project import cache_folder
from sparse_control.protocol.panels import SPLITS, TASKS, build_pairs, draw_pairs, refusal
from sparse_control.registry import registry
from tests.support.tiny import tiny_model

MODELS = ("smollm2-135m-instruct", pytest.param("qwen2.5-coder-0.5b-instruct", marks=pytest.mark.slow))


@pytest.fixture(scope="module", params=MODELS)
def tokenizer(request):
    transformers = pytest.importorskip("transformers")
    path = model_path(registry()[request.param])
    if not path.is_file():
        pytest.skip(f"{path.name} has not been fetched")
    for source in (cache_folder() / "models").glob("*/source.json"):  # converted already: much faster to read
        if read_json(source)["file"] == path.name:
            return transformers.AutoTokenizer.from_pretrained(str(source.parent))
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_panel_fills_its_splits(tokenizer, task, split):
    drawn = draw_pairs(task, tokenizer, split, 24, 0)
    assert len(drawn.pairs) == 24
    for pair in drawn.pairs:
        words = [
            (tokenizer.decode([pair.source_ids[i]]), tokenizer.decode([pair.target_ids[i]])) for i in pair.positions
        ]
        assert all(a != b for a, b in words)
        if task == "refusal":
            continue
        assert tokenizer.decode(pair.source_ids + pair.source_answer_ids).endswith(pair.source + pair.source_answers[0])
        assert tokenizer.decode(pair.target_ids + pair.target_answer_ids).endswith(pair.target + pair.target_answers[0])


def test_refusal_openings(tokenizer):
    for pair in build_pairs("refusal", tokenizer, "fit", 24, 0):
        opened = {tokenizer.decode([token]) for token in pair.target_answer_ids}
        assert {"I", "Sorry", "No"} <= opened <= set(refusal.REFUSING)
        assert {"Sure", "Here", "To"} <= {tokenizer.decode([token]) for token in pair.source_answer_ids}


def test_chat_ids_are_those_of_the_template(tokenizer):
    user, system = "Name three rivers.", "You are terse."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    ids = chat_ids(tokenizer, user, system)
    assert list(ids) == expected["input_ids"]
    assert tokenizer.decode(ids) == chat_text(tokenizer, user, system)
    wrapped = LanguageModel.wrap(tiny_model().model, tokenizer)
    assert wrapped.encode_chat(user, system=system).tolist() == list(ids)
    pair = build_pairs("refusal", wrapped, "fit", 1, 0)[0]
    assert pair == build_pairs("refusal", tokenizer, "fit", 1, 0)[0]
