"""Panels: split hygiene, balance, and the checks that stop a broken pair."""

import re
from dataclasses import replace

import pytest

from sparse_control.errors import InputError
from sparse_control.protocol.panels import OFF_TARGET, SPLITS, TASKS, Draft, Pair, build_pair, build_pairs, ioi, sentiment
from sparse_control.seeds import stream


class WordTokenizer:
    """One token per word with its leading space; words in `long` are two tokens."""

    def __init__(self, long: tuple[str, ...] = (), bos: bool = False) -> None:
        self.long, self.bos_token_id, self.bos = long, 0, bos
        self.vocabulary = {"<bos>": 0}

    def encode(self, text: str) -> list[int]:
        pieces = []
        for word in re.findall(r"<bos>| ?\w+| ?[^\w\s]", text):
            pieces += [word[:2], word[2:]] if word.strip() in self.long else [word]
        ids = [self.vocabulary.setdefault(piece, len(self.vocabulary)) for piece in pieces]
        return [0, *ids] if self.bos else ids


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_pairs_are_minimal_edits(task, split):
    pairs = build_pairs(task, WordTokenizer(bos=True), split, 24, 3)
    assert len({pair.id for pair in pairs}) == 24
    for pair in pairs:
        assert len(pair.source_ids) == len(pair.target_ids)
        assert len(pair.positions) == {"ioi": 1, "sentiment": 2}[task]
        assert max(pair.positions) < len(pair.source_ids) - 1
        assert pair.source_answer_id != pair.target_answer_id


@pytest.mark.parametrize("panel", [ioi, sentiment])
def test_splits_share_no_template_and_no_word(panel):
    templates = [template for split in SPLITS for template in panel.TEMPLATES[split]]
    assert len(set(templates)) == len(templates) >= 12
    edited = getattr(panel, "NAMES", None) or panel.ADJECTIVES
    flat = [word for split in SPLITS for item in edited[split] for word in ([item] if isinstance(item, str) else item)]
    assert len(set(flat)) == len(flat) >= 40
    for template in templates:
        assert not words(template) & set(flat)


def test_ioi_answer_is_the_other_name_and_orders_balance():
    pairs = build_pairs("ioi", WordTokenizer(), "fit", 12, 0)
    for pair in pairs:
        (source_answer,), (target_answer,) = pair.source_answers, pair.target_answers
        assert pair.source.count(source_answer) + pair.source.startswith(source_answer[1:]) == 1
        assert pair.source.count(target_answer) == 2
        assert pair.target.count(source_answer) == 2
    assert sorted(pair.orientation for pair in pairs) == ["ABBA"] * 6 + ["BABA"] * 6


@pytest.mark.parametrize("seed", range(5))
def test_no_mirror_in_a_split(seed):
    pairs = build_pairs("ioi", WordTokenizer(), "fit", 24, seed)
    couples = [frozenset(pair.source_answers + pair.target_answers) for pair in pairs]
    assert len(set(couples)) == len(couples)
    texts = {(pair.source, pair.target) for pair in build_pairs("sentiment", WordTokenizer(), "fit", 24, seed)}
    assert not texts & {(target, source) for source, target in texts}


def test_sentiment_goes_from_negative_to_positive():
    for pair in build_pairs("sentiment", WordTokenizer(), "reuse", 12, 1):
        assert (pair.source_answers, pair.target_answers) == ((" negative",), (" positive",))


def test_draws_depend_on_the_seed_alone():
    first = build_pairs("ioi", WordTokenizer(), "fit", 12, 0)
    build_pairs("ioi", WordTokenizer(), "evaluate", 5, 0)
    assert first == build_pairs("ioi", WordTokenizer(), "fit", 12, 0)
    assert [p.id for p in first] != [p.id for p in build_pairs("ioi", WordTokenizer(), "fit", 12, 1)]


def test_names_and_orders_vary_over_templates():
    pairs = build_pairs("ioi", WordTokenizer(), "evaluate", 12, 0)
    assert len({pair.id.split("/")[2] for pair in pairs}) == len(ioi.TEMPLATES["evaluate"])


@pytest.mark.parametrize(
    ("task", "split", "n", "message"),
    [
        ("mcqa", "fit", 4, "unknown task 'mcqa'"),
        ("ioi", "test", 4, "unknown split 'test'"),
        ("ioi", "fit", 92, "91 couples of names, 92 pairs"),
        ("sentiment", "fit", 57, "56 couples of adjectives, 57 pairs"),
    ],
)
def test_impossible_requests(task, split, n, message):
    with pytest.raises(InputError, match=message):
        build_pairs(task, WordTokenizer(), split, n, 0)


def draft():
    return ioi.drafts("fit", 1, stream(0, "ioi", "fit", "pairs"))[0]


def test_unequal_token_lengths():
    (repeated,) = draft().target_answers
    with pytest.raises(InputError, match=f"pair {draft().id}: source has .* tokens and target"):
        build_pair(WordTokenizer(long=(repeated.strip(),)), draft())


def test_two_token_answer():
    sentiment_draft = sentiment.drafts("fit", 1, stream(0, "sentiment", "fit", "pairs"))[0]
    with pytest.raises(InputError, match="answer ' positive' is 2 tokens after its prompt, not one"):
        build_pair(WordTokenizer(long=("positive",)), sentiment_draft)


class MergingTokenizer(WordTokenizer):
    """Also makes one token of the word "red" and the word that follows it."""

    def encode(self, text: str) -> list[int]:
        return super().encode(re.sub(r"red (\w+)", r"red\1", text))


def colours(*pieces):
    return Draft("colours", "t", "fit", "", pieces, (" one",), (" two",))


def test_a_difference_outside_the_declared_edits():
    merged = colours("The", (" red", " big"), " house", (" is", " was"), " here")
    with pytest.raises(InputError, match="source has 4 tokens and target 5"):
        build_pair(MergingTokenizer(), merged)
    shifted = colours("The", (" red", " old"), " house is", (" very big", " big"), " now")
    with pytest.raises(InputError, match=r"edit \(' very big', ' big'\) are not of equal token length"):
        build_pair(MergingTokenizer(), shifted)
    built = build_pair(WordTokenizer(), colours("The", (" red", " big"), " house", (" is", " was"), " here"))
    assert built.positions == (1, 3)


def test_edits_of_several_tokens():
    built = build_pair(WordTokenizer(), colours("I", (" see red", " like green"), " here"))
    assert built.positions == (1, 2)


def test_a_draft_without_an_edit():
    with pytest.raises(InputError, match="pair colours: no edit is declared"):
        build_pair(WordTokenizer(), colours("The house"))
    with pytest.raises(InputError, match="source and target are the same prompt"):
        build_pair(WordTokenizer(), colours("The", (" red", " red"), " house"))


def test_doubled_bos():
    doubled = replace(draft(), pieces=("<bos>", *draft().pieces))
    with pytest.raises(InputError, match="source begins with two BOS tokens"):
        build_pair(WordTokenizer(bos=True), doubled)
    assert build_pair(WordTokenizer(bos=True), draft()).source_ids[0] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_ids": (1, 2)}, "source has 3 tokens and target 2"),
        ({"target_ids": (1, 2, 3)}, "differ at positions ()"),
        ({"positions": ()}, "differ at positions"),
        ({"source_answer_ids": (8,)}, "both answers are token 8"),
        ({"source_answer_ids": (7, 8)}, "both answers are token 8"),
        ({"source_answer_ids": ()}, "source_answer_ids must be distinct tokens, at least one, got ()"),
        ({"target_answer_ids": (8, 8)}, "target_answer_ids must be distinct tokens, at least one, got (8, 8)"),
        ({"source_ids": (1,), "target_ids": (2,), "positions": (0,)}, "at least two tokens"),
    ],
)
def test_pair_checks_itself(change, message):
    good = {
        "id": "x", "task": "t", "split": "fit", "orientation": "", "source": "", "target": "", "source_answers": (),
        "target_answers": (), "source_ids": (1, 2, 3), "target_ids": (1, 4, 3), "source_answer_ids": (7,),
        "target_answer_ids": (8,), "positions": (1,),
    }  # fmt: skip
    Pair(**good)
    with pytest.raises(InputError, match=re.escape(message)):
        Pair(**good | change)


def test_off_target_panel():
    assert [prompt.field for prompt in OFF_TARGET] == ["humanities"] * 16 + ["stem"] * 16
    assert len({prompt.id for prompt in OFF_TARGET}) == len({prompt.text for prompt in OFF_TARGET}) == 32
    for prompt in OFF_TARGET:
        assert [line[:2] for line in prompt.text.split("\n")[1:5]] == ["A.", "B.", "C.", "D."]
        assert prompt.text.endswith("Answer:")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_default_model_tells_sources_from_targets(default_model, task, split):
    from sparse_control.protocol.splits import Split

    split = Split.read(default_model, build_pairs(task, default_model, split, 24, 0), ())
    assert (split.gap >= 1.0).mean() > 0.9
    assert split.gap.mean() > 3.0
