"""Pairs and off-target prompts of one's own as a task of the six axes: records, counts, and what is refused."""

import json

import numpy as np
import pytest
import torch

from sparse_control.commands.given_files import given_reports
from sparse_control.errors import InputError
from sparse_control.models import load_model
from sparse_control.models.sites import Site, add_at_sites, capture_sites
from sparse_control.protocol import Intervention, patched, study
from sparse_control.protocol.grid import TARGETS, TOLERANCE, restricted, studies
from sparse_control.protocol.panels import PairFile, PanelSources, draw_pairs, off_target_panel
from sparse_control.protocol.panels.prompt_files import read_prompts_file
from sparse_control.protocol.splits import Split
from sparse_control.records.six_axis_files import read_measurements
from tests.support.pairs import plain_margin
from tests.support.tiny import save_tiny
from tests.support.tiny_study import small_settings
from tests.support.words import WordTokenizer


def row(number, source_tail="", **fields):
    """A pair of words of the tiny tokenizer, that differs in its second word."""
    words = [f"w{20 + (number * step) % 67}" for step in (3, 7, 11, 13)]
    target = [words[0], f"w{20 + (number * 7 + 29) % 67}", *words[2:]]
    own = {"source": " ".join(words) + source_tail, "target": " ".join(target)}
    return own | {"source_answer": " w5", "target_answer": " w6"} | fields


def pair_file(folder, rows, name="mine.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def measured(root, folder, sources, **protocol):
    """The records of one study of a file of pairs on a tiny model."""
    settings = small_settings(seeds=[0], **protocol).model_copy(update={"model": str(folder)})
    settings = restricted(settings, selectors=["driver_omp"], conditions=["P"], pairs=sources.pairs)
    names = {"task": sources.pairs.name, "selector": "driver_omp", "condition": "P"}
    receipt = study.run(root=root, settings=settings, sources=sources, **names)
    (path,) = (root / name for name, _ in receipt.files)
    return read_measurements(root, path)


def test_a_file_of_pairs_is_measured_as_any_task_and_says_what_it_is(tmp_path, folder):
    path = pair_file(tmp_path, [row(number) for number in range(1, 25)])
    off = tmp_path / "quiet.txt"
    off.write_text("w2 w3 w4\n\nw9 w8 w7 w6\nw2  w3 w4\n" + row(1)["source"] + "\n")
    sources = PanelSources(pairs=PairFile.of(path), off_target=off)
    (record,) = measured(tmp_path / "root", folder, sources)
    assert record.task == "mine" and record.panels.pairs == sources.pairs.source
    assert record.panels.off_target == f"quiet.txt sha256:{sources.off_target_sha256}"
    assert record.panels.last_token_only is None
    assert len(record.preservation.prompts) == 2 and record.preservation.prompts[0].startswith("quiet/1 sha256:")
    assert sum(getattr(record.gate, split).built for split in ("fit", "evaluate", "reuse")) == 12  # four a split asked
    lm = load_model(str(folder))
    pairs = {pair.id: pair for split in ("fit", "evaluate", "reuse")
             for pair in draw_pairs("mine", lm, split, 8, 0, sources).pairs}  # fmt: skip
    for name, source, target in zip(record.evaluate.pairs, record.evaluate.source, record.evaluate.target, strict=True):
        assert source == pytest.approx(plain_margin(lm, pairs[name]), abs=1e-4)
        assert target == pytest.approx(plain_margin(lm, pairs[name], "target"), abs=1e-4)
    path.write_text(path.read_text() + json.dumps(row(30)) + "\n")
    with pytest.raises(InputError, match="measured with other prompts"):
        measured(tmp_path / "root", folder, PanelSources(pairs=PairFile.of(path), off_target=off))


def test_pairs_of_unequal_length_are_compared_and_patched_at_their_last_tokens(tmp_path, folder):
    rows = [row(number, " w3" * (number % 3)) for number in range(1, 25)]
    path = pair_file(tmp_path, rows, "loose.jsonl")
    strict = PanelSources(pairs=PairFile.of(path))
    loose = PanelSources(pairs=PairFile.of(path, last_token_only=True))
    lm = load_model(str(folder))
    assert sum(draw_pairs("loose", lm, split, 8, 0, strict).dropped for split in ("fit", "evaluate", "reuse")) == 16
    (record,) = measured(tmp_path / "root", folder, loose)
    assert record.panels.last_token_only is True
    pairs = draw_pairs("loose", lm, "fit", 8, 0, loose).pairs
    assert {len(pair.source_ids) - len(pair.target_ids) for pair in pairs} == {0, 1, 2}
    site = Site("mlp", 1, None, -1)
    split = Split.read(lm, pairs, [site])
    for number, pair in enumerate(pairs):
        ends = [
            capture_sites(lm, torch.tensor([ids]), [site])[site][0].double()
            for ids in (pair.target_ids, pair.source_ids)
        ]
        assert torch.allclose(split.contrasts[site][number].double(), ends[0] - ends[1], atol=1e-4)
        with patched(lm, Intervention((site,), (1.0,)), pair=pair):
            moved = plain_margin(lm, pair)
        with add_at_sites(lm, {site: split.contrasts[site][number]}, length=len(pair.source_ids)):
            assert moved == pytest.approx(plain_margin(lm, pair), abs=1e-4)
    with pytest.raises(ValueError, match="so its last token alone is patched; use -1"):
        Split.read(lm, pairs, [Site("mlp", 1, None, -2)])
    with pytest.raises(InputError, match=r"protocol.positions: must be \[-1\] with --last-token-only, got \[-2\]"):
        restricted(small_settings(positions=[-2]), pairs=loose.pairs)


def test_the_grid_has_the_file_beside_what_is_asked_for(tmp_path):
    rows = [row(number, orientation="up" if number % 2 else "down") for number in range(1, 25)]
    turned, plain = (PairFile.of(pair_file(tmp_path, found, name)) for found, name in (
        (rows, "turned.jsonl"), ([row(number) for number in range(1, 25)], "plain.jsonl")))  # fmt: skip
    which = {"selectors": ["top_k"], "conditions": ["F", "O"]}
    alone = restricted(small_settings(), **which, pairs=turned).protocol
    assert studies(alone, turned) == [("turned", "top_k", "F"), ("turned", "top_k", "O")]
    both = restricted(small_settings(), tasks=["sentiment"], **which, pairs=plain).protocol
    assert studies(both, plain) == [("sentiment", "top_k", "F"), ("plain", "top_k", "F")]
    assert both.feedback.targets["plain"] == TARGETS and both.feedback.tolerance["plain"] == TOLERANCE
    feedback = small_settings().protocol.feedback
    asked = feedback.model_copy(update={"targets": feedback.targets | {"plain": 3}})
    set_by_hand = restricted(small_settings(feedback=asked), **which, pairs=plain)
    assert set_by_hand.protocol.feedback.targets["plain"] == 3
    hashes = [study.Origin.of(each, PanelSources(pairs=plain)).provenance["params_sha256"]
              for each in (set_by_hand, restricted(small_settings(), **which, pairs=plain))]  # fmt: skip
    assert hashes[0] != hashes[1]
    settings = small_settings()
    own = study.Origin.of(settings).provenance
    beside = restricted(settings, tasks=["sentiment"], pairs=plain)
    assert study.Origin.of(beside, PanelSources(pairs=plain)).provenance == own  # records of other tasks are the same


def test_every_pair_is_used_once_or_counted_once(tmp_path):
    rows = [row(number) for number in range(1, 20)] + [row(1), row(2)]
    sources = PanelSources(pairs=PairFile.of(pair_file(tmp_path, rows)))
    draws = [draw_pairs("mine", WordTokenizer(), split, 100, 5, sources) for split in ("fit", "evaluate", "reuse")]
    ids = [pair.id for draw in draws for pair in draw.pairs]
    assert len(ids) == len(set(ids)) == 19 and sum(draw.dropped for draw in draws) == 2
    split = [dict(each, split="fit") for each in rows]
    given = PanelSources(pairs=PairFile.of(pair_file(tmp_path, split, "given.jsonl")))
    assert draw_pairs("given", WordTokenizer(), "fit", 100, 5, given).dropped == 2
    with pytest.raises(InputError, match="given.jsonl: no pair is left for split reuse"):
        draw_pairs("given", WordTokenizer(), "reuse", 100, 5, given)


@pytest.mark.parametrize(
    ("rows", "name", "message"),
    [
        ([row(1)], None, "split evaluate has 0 pairs; each of fit, evaluate and reuse needs 6"),
        ([row(n) for n in range(1, 25)], "IOI", "IOI is a name of the project's own; give another --name"),
        ([row(n) for n in range(1, 25)], "off_target", "off_target is a name of the project's own"),
        ([row(n) for n in range(1, 25)], "a.b", "'a.b': is no name for a task"),
        ([], None, "holds no pairs"),
        ([row(1, split="fit"), row(2)], None, ":2: split: must be in every line or in none"),
    ],
)
def test_what_cannot_be_a_task_is_refused_in_one_line(tmp_path, rows, name, message):
    path = pair_file(tmp_path, rows)
    with pytest.raises(InputError) as caught:
        restricted(small_settings(minimum_pairs=6), pairs=PairFile.of(path, name))
    assert str(caught.value).startswith(f"{path}") and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_changes_while_it_is_measured_is_refused(tmp_path):
    path = pair_file(tmp_path, [row(number) for number in range(1, 25)])
    sources = PanelSources(pairs=PairFile.of(path))
    draw_pairs("mine", WordTokenizer(), "fit", 4, 0, sources)
    path.write_text(path.read_text() + json.dumps(row(40)) + "\n")
    with pytest.raises(InputError, match="became another file while it was measured"):
        draw_pairs("mine", WordTokenizer(), "fit", 4, 0, sources)


def test_a_person_is_told_what_becomes_of_the_files(tmp_path, folder):
    path = pair_file(tmp_path, [row(number, " w3" * (number > 20)) for number in range(1, 25)])
    off = tmp_path / "quiet.jsonl"
    off.write_text('{"prompt": "w2 w3"}\n{"prompt": "w2 w3"}\n')
    sources = PanelSources(pairs=PairFile.of(path), off_target=off)
    settings = small_settings(minimum_pairs=4).model_copy(update={"model": str(folder)})
    told = list(given_reports(restricted(settings, pairs=sources.pairs), sources))
    assert "20 of 24 pairs used; dropped: 4 no minimal edit" in told[0]
    assert told[1] == "quiet.jsonl: 1 of 2 off-target prompts used; dropped: 1 repeated"
    few = PairFile.of(pair_file(tmp_path, [row(number, " w3" * (number > 10)) for number in range(1, 25)], "few.jsonl"))
    with pytest.raises(InputError, match="split evaluate is left with 3 pairs, each of fit, evaluate, reuse needs 4"):
        list(given_reports(restricted(settings, pairs=few), PanelSources(pairs=few)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "w1", "off-target prompts are read from .txt, a prompt a line, or .jsonl"),
        ("a.jsonl", '{"text": "w1"}\n', ":1: expected an object with prompt and nothing else"),
        ("a.jsonl", '{"prompt": "w1 "}\n', ":1: prompt: 'w1 ' must be text that does not end with white space"),
        ("a.txt", "\n\n", "0 of 0 off-target prompts used; give at least one prompt"),
    ],
)
def test_a_file_of_prompts_of_another_form_is_refused_in_one_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_prompts_file(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_own_panel_is_as_it_was_where_no_file_is_given():
    assert len(off_target_panel()) == 32 and np.unique([prompt.field for prompt in off_target_panel()]).size == 2
