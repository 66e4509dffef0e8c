"""Panels: split hygiene, balance, and the checks that stop a broken pair."""

import re
from dataclasses import replace

import pytest

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.protocol.panels import (
    OFF_TARGET,
    SPLITS,
    TASKS,
    Draft,
    Pair,
    PanelSources,
    build_pair,
    build_pairs,
    check_pairs,
    check_splits,
    cue,
    draw_pairs,
    drawn_from,
    ioi,
    off_target_panel,
    panel_source,
    refusal,
    sentiment,
)
from sparse_control.protocol.panels.draw import Plan, check_disjoint, draw
from sparse_control.protocol.panels.pair import fill
from sparse_control.protocol.panels.sources import field_questions
from tests.support.words import ChatTokenizer, MergingTokenizer, WordTokenizer


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_pairs_are_minimal_edits(task, split):
    pairs = build_pairs(task, ChatTokenizer(bos=True), split, 24, 3)
    assert len({pair.id for pair in pairs}) == 24
    for pair in pairs:
        assert len(pair.source_ids) == len(pair.target_ids)
        edits = {"ioi": [1], "refusal": [1], "sentiment": [2], "mcqa_cue": [2]}.get(pair.task, [2, 4])
        assert len(pair.positions) in edits
        assert (pair.task, pair.split) == drawn_from(task, split)
        assert max(pair.positions) < len(pair.source_ids) - 1
        assert not set(pair.source_answer_ids) & set(pair.target_answer_ids)


@pytest.mark.parametrize("task", TASKS)
def test_splits_share_nothing(task):
    check_splits(task)


def test_the_same_panel_is_evaluated_on_the_fitting_pairs_and_reused_on_unseen_ones():
    ids = {
        (task, split): [pair.id for pair in build_pairs(task, WordTokenizer(), split, 12, 5)]
        for task in ("ioi", "ioi_same_panel")
        for split in SPLITS
    }
    assert ids["ioi_same_panel", "fit"] == ids["ioi_same_panel", "evaluate"] == ids["ioi", "fit"]
    assert ids["ioi_same_panel", "reuse"] == ids["ioi", "reuse"]
    assert all(name.startswith("ioi/fit/") for name in ids["ioi_same_panel", "evaluate"])


@pytest.mark.parametrize("panel", [ioi, sentiment, refusal, cue])
def test_no_template_holds_a_word_that_is_edited(panel):
    every = [panel.units(split) for split in SPLITS]
    edited = {word for units in every for kind in ("word", "name") for word in units.get(kind, ())}
    templates = [template for units in every for template in units["template"]]
    assert len(edited) >= 40 and len(templates) >= 6
    for template in templates:
        assert not words(template) & edited


def test_eight_templates_of_indirect_objects():
    assert all(len(ioi.TEMPLATES[split]) >= 8 for split in SPLITS)


def test_a_shared_template_is_found(monkeypatch):
    shared = ioi.TEMPLATES["reuse"][0]
    monkeypatch.setitem(ioi.TEMPLATES, "fit", (*ioi.TEMPLATES["fit"], shared.upper()))
    with pytest.raises(InputError, match="ioi: template 'At the party .*' stands in splits fit and reuse"):
        check_splits("ioi")


@pytest.mark.parametrize("shared", ["a  Question\n", "A question"])
def test_units_are_compared_without_case_and_spaces(shared):
    with pytest.raises(InputError, match="t: question .* stands in splits fit and off_target"):
        check_disjoint("t", {"fit": {"question": ["a question"]}, "off_target": {"question": [shared]}})
    with pytest.raises(InputError, match="stands in splits fit and fit"):
        check_disjoint("t", {"fit": {"question": ["a question", shared]}})
    check_disjoint("t", {"fit": {"question": ["a question"]}, "reuse": {"name": [shared]}})


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
    for task in TASKS:
        pairs = build_pairs(task, ChatTokenizer(), "fit", 24, seed)
        check_pairs(pairs)
        texts = {(pair.source, pair.target) for pair in pairs}
        assert len(texts) == 24 and not texts & {(target, source) for source, target in texts}


def test_repeats_and_mirrors_are_refused():
    first, second = build_pairs("ioi", WordTokenizer(), "fit", 2, 0)
    swapped = {"source_ids": first.target_ids, "target_ids": first.source_ids, "id": "mirror"}
    with pytest.raises(InputError, match=f"pair mirror: is the mirror of {first.id}"):
        check_pairs([first, second, replace(first, **swapped)])
    with pytest.raises(InputError, match="stands twice in a split"):
        check_pairs([first, second, replace(first, id="other")])
    with pytest.raises(InputError, match="stands twice in a split"):
        check_pairs([first, replace(second, id=first.id)])


def test_sentiment_goes_from_negative_to_positive_under_several_labels():
    assert len({label for labels in sentiment.LABELS.values() for label in labels}) >= 4
    assert not set(sentiment.LABELS["fit"]) & set(sentiment.LABELS["reuse"])
    for split in SPLITS:
        seen = set()
        for pair in build_pairs("sentiment", WordTokenizer(), split, 24, 1):
            (source,), (target,) = pair.source_answers, pair.target_answers
            template = pair.id.split("/")[2]
            seen.add((template, source.removeprefix(" "), target.removeprefix(" ")))
            assert pair.orientation == "negative-positive" and pair.sign == 1
        wanted = {(str(template), *label) for template in range(6) for label in sentiment.LABELS[split]}
        assert seen == wanted, "every template with every label"


@pytest.mark.parametrize("task", TASKS)
def test_draws_depend_on_the_seed_alone(task):
    first = build_pairs(task, ChatTokenizer(), "fit", 12, 0)
    build_pairs(task, ChatTokenizer(), "evaluate", 5, 0)
    again = build_pairs(task, ChatTokenizer(), "fit", 12, 0)
    assert [(p.id, p.source, p.target) for p in first] == [(p.id, p.source, p.target) for p in again]
    assert [p.id for p in first] != [p.id for p in build_pairs(task, ChatTokenizer(), "fit", 12, 1)]


def test_names_and_orders_vary_over_templates():
    pairs = build_pairs("ioi", WordTokenizer(), "evaluate", 12, 0)
    assert len({pair.id.split("/")[2] for pair in pairs}) == len(ioi.TEMPLATES["evaluate"])


@pytest.mark.parametrize(
    ("task", "split", "n", "message"),
    [
        ("mcqa", "fit", 4, "unknown task 'mcqa'"),
        ("ioi", "test", 4, "unknown split 'test'"),
        ("ioi", "fit", 0, "number of pairs must be a whole number from 1, got 0"),
        ("ioi", "fit", True, "number of pairs must be a whole number from 1, got True"),
        ("ioi", "fit", 92, r"ioi: split fit has 91 pairs \(own\), 92 were asked for$"),
        ("sentiment", "fit", 57, r"split fit has 56 pairs \(own\), 57 were asked for"),
        ("refusal", "reuse", 33, r"split reuse has 32 pairs \(own\), 33 were asked for"),
        ("mcqa_stem", "reuse", 31, r"split reuse has 30 pairs \(own\), 31 were asked for"),
    ],
)
def test_impossible_requests(task, split, n, message):
    with pytest.raises(InputError, match=message):
        build_pairs(task, ChatTokenizer(), split, n, 0)


def draft():
    pieces = fill(ioi.TEMPLATES["fit"][0], first="James", second="Mary", again=("Mary", "James"))
    return Draft("ioi/fit/0", "ioi", "fit", "ABBA", pieces, (" James",), (" Mary",))


def sentiment_draft():
    pieces = fill(sentiment.TEMPLATES["fit"][0], one=("dull", "brilliant"), two=("sad", "happy"))
    return Draft("sentiment/fit/0", "sentiment", "fit", "", pieces, (" negative",), (" positive",))


def test_fill_declares_edits_with_their_space():
    assert draft().pieces == ("When James and Mary went to the store,", (" Mary", " James"), " gave a drink to")
    assert draft().source == "When James and Mary went to the store, Mary gave a drink to"
    assert draft().target == "When James and Mary went to the store, James gave a drink to"
    assert fill("{one}{two} end", one=("a", "b"), two="c") == (("a", "b"), "c end")
    with pytest.raises(KeyError, match="two"):
        fill("{one} {two}", one="a")


def test_unequal_token_lengths():
    (repeated,) = draft().target_answers
    with pytest.raises(InputError, match=f"pair {draft().id}: source has .* tokens and target"):
        build_pair(WordTokenizer(long=(repeated.strip(),)), draft())


def test_two_token_answer():
    with pytest.raises(InputError, match="answer ' positive' is 2 tokens after its prompt, not one"):
        build_pair(WordTokenizer(long=("positive",)), sentiment_draft())


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


def test_off_target_panel_by_default():
    assert off_target_panel(3) == OFF_TARGET
    assert panel_source("off_target") == panel_source("mcqa_stem") == "own"


def test_prompts_hold_neither_padding_nor_an_end_of_text():
    for token, kind in (("<pad>", "PAD"), ("<eos>", "EOS")):
        broken = replace(draft(), pieces=(*draft().pieces, token))
        with pytest.raises(InputError, match=f"source holds the {kind} token"):
            build_pair(WordTokenizer(), broken)


class Closing(ChatTokenizer):
    def apply_chat_template(self, messages, **options):
        return super().apply_chat_template(messages, **options) + "<eos>"


def test_chat_prompts():
    tokenizer = ChatTokenizer(bos=True)
    pairs = build_pairs("refusal", tokenizer, "fit", 24, 0)
    for pair in pairs:
        assert pair.source.startswith(f"<bos><system>{refusal.SYSTEM}<eos><user>")
        assert pair.source.endswith("<eos><assistant>")
        assert pair.source_ids.count(tokenizer.bos_token_id) == 1, "the template's alone"
        # the template ends without a space, so that each word counts with and without one
        assert len(pair.source_answer_ids) == 2 * len(refusal.COMPLYING)
        assert len(pair.target_answer_ids) == 2 * len(refusal.REFUSING)
    with pytest.raises(InputError, match="source holds the EOS token"):
        build_pairs("refusal", Closing(), "fit", 1, 0)


def test_broken_openings_are_left_out():
    (pair,) = build_pairs("refusal", ChatTokenizer(long=("Sorry", "Sure")), "fit", 1, 0)
    assert len(pair.target_answer_ids) == 2 * (len(refusal.REFUSING) - 1)
    assert len(pair.source_answer_ids) == 2 * (len(refusal.COMPLYING) - 1)
    every = "split fit: the tokenizer breaks all 32 pairs .*none of the answers .* is one token after its prompt"
    with pytest.raises(InputError, match=every):
        build_pairs("refusal", ChatTokenizer(long=refusal.REFUSING), "fit", 1, 0)


class Twice(ChatTokenizer):
    def apply_chat_template(self, messages, **options):
        return super().apply_chat_template([*messages, messages[-1]], **options)


def test_a_template_that_repeats_the_prompt():
    with pytest.raises(InputError, match="the chat template holds the prompt 2 times, not once"):
        build_pairs("refusal", Twice(), "fit", 1, 0)


class NoSystem(ChatTokenizer):
    def apply_chat_template(self, messages, **options):
        if messages[0]["role"] == "system":
            raise TypeError("System role not\nsupported")
        return super().apply_chat_template(messages, **options)


class Dropping(ChatTokenizer):
    def apply_chat_template(self, messages, **options):
        return super().apply_chat_template(messages[1:], **options)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (WordTokenizer(), "no chat template"),
        (NoSystem(), "takes no system prompt with a user turn \\(System role not supported\\)"),
        (Dropping(), "drops or alters the system prompt 'You are"),
    ],
)
def test_models_without_a_fitting_chat_template(tokenizer, message):
    with pytest.raises(UnsupportedModel, match=message):
        build_pairs("refusal", tokenizer, "fit", 4, 0)


def own_questions(field):
    return [question for split in SPLITS for question in field_questions(field, split, PanelSources())]


@pytest.mark.parametrize("field", ["humanities", "stem"])
@pytest.mark.parametrize("seed", range(3))
def test_the_right_option_moves_between_two_letters(field, seed):
    pairs = build_pairs(f"mcqa_{field}", WordTokenizer(), "evaluate", 24, seed)
    known = {question.text: question for question in own_questions(field)}
    own_is_source = []
    for pair in pairs:
        question, *source = pair.source.split("\n")
        same, *target = pair.target.split("\n")
        assert question == same and source[4] == target[4] == "Answer:"
        (first,), (second,) = pair.source_answers, pair.target_answers
        here, there = ("ABCD".index(answer.strip()) for answer in (first, second))
        options, moved = ([line[3:] for line in lines[:4]] for lines in (source, target))
        assert options[here] == moved[there] and options[there] == moved[here]
        assert [options[i] for i in range(4) if i not in (here, there)] == [
            moved[i] for i in range(4) if i not in (here, there)
        ]
        assert options[here] == known[question].options[known[question].answer]
        assert pair.orientation == f"{first.strip()}-{second.strip()}"
        own_is_source.append(options == list(known[question].options))
    assert sum(own_is_source) == 12


@pytest.mark.parametrize("field", ["humanities", "stem"])
def test_own_questions(field):
    questions = own_questions(field)
    assert len(questions) == len({question.id + question.text for question in questions}) == 90
    for question in questions:
        assert len(set(question.options)) == 4
        assert question.text == question.text.strip()
    letters = [question.answer for question in questions]
    assert max(map(letters.count, range(4))) - min(map(letters.count, range(4))) <= 6


def test_a_question_takes_the_partner_of_equal_length():
    questions = {q.text: q for q in own_questions("stem")}
    question = questions["Which metal is liquid at room temperature?"]
    wrong = [option for option in question.options if option not in ("mercury", "zinc")]
    draws = build_pairs("mcqa_stem", WordTokenizer(long=tuple(wrong)), "fit", 24, 0)
    for pair in draws:
        if pair.source.startswith(question.text):
            assert {pair.source_answers[0].strip(), pair.target_answers[0].strip()} == {
                "ABCD"[question.options.index(option)] for option in ("mercury", "zinc")
            }
            break
    else:
        pytest.fail("the question is not in this draw")


def test_dropped_questions_are_counted_and_explained():
    (question,) = [q for q in own_questions("stem") if q.text.startswith("Which metal is liquid")]
    broken = WordTokenizer(long=(question.options[question.answer],))
    whole = draw_pairs("mcqa_stem", broken, "fit", 29, 0)
    assert len(whole.pairs) == 29 and whole.dropped <= 1 and whole.source == "own"
    fewer = draw_pairs("mcqa_stem", broken, "fit", 30, 0)
    assert (len(fewer.pairs), fewer.dropped) == (29, 1)


def test_words_a_tokenizer_breaks_are_passed_over_and_balance_stays():
    drawn = draw_pairs("ioi", WordTokenizer(long=("James", "Mary")), "fit", 24, 0)
    assert drawn.dropped > 0
    assert sorted(pair.orientation for pair in drawn.pairs) == ["ABBA"] * 12 + ["BABA"] * 12
    assert {pair.id.split("/")[2] for pair in drawn.pairs} == set("01234567")


def test_a_plan_that_may_end_early():
    drafts = lambda pairs, candidate: (replace(draft(), id=candidate),)  # noqa: E731
    drawn = draw(WordTokenizer(), "t", "fit", 5, Plan(["a"], drafts, fewer=True, passed_over=3), "file")
    assert (len(drawn.pairs), drawn.dropped, drawn.source) == (1, 3, "file")
    with pytest.raises(InputError, match=r"t: split fit has 0 pairs \(file\), 5 were asked for"):
        draw(WordTokenizer(), "t", "fit", 5, Plan([], drafts, fewer=True), "file")


@pytest.mark.parametrize("split", SPLITS)
def test_cued_pairs(split):
    pairs = build_pairs("mcqa_cue", WordTokenizer(), split, 24, 0)
    for pair in pairs:
        for text, (answer,) in ((pair.source, pair.source_answers), (pair.target, pair.target_answers)):
            *_, block = text.split("\n\n")
            named = block.split("Answer: ")[1]
            assert f"- {named}{answer}\n" in block
    upward = [pair.orientation[0] < pair.orientation[2] for pair in pairs]
    assert sum(upward) == 12
    assert len({pair.id.split("/")[2].split("-")[0] for pair in pairs}) == 24


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ioi", "sentiment", "mcqa_cue"])
@pytest.mark.parametrize("split", SPLITS)
def test_default_model_tells_sources_from_targets(default_model, task, split):
    from sparse_control.protocol.splits import Split

    split = Split.read(default_model, build_pairs(task, default_model, split, 24, 0), ())
    assert (split.gap >= 1.0).mean() > 0.9
    assert split.gap.mean() > 3.0


@pytest.mark.parametrize("task", TASKS)
def test_signs_are_those_of_the_orientation(task):
    """One sign for every orientation, both where it is drawn, one alone where it is fixed."""
    pairs = build_pairs(task, ChatTokenizer(), "fit", 12, 0)
    by_orientation = {}
    for pair in pairs:
        by_orientation.setdefault(pair.orientation, set()).add(pair.sign)
    assert all(len(signs) == 1 for signs in by_orientation.values())
    assert {pair.sign for pair in pairs} == ({1, -1} if TASKS[task].oriented else {1})
