"""`run generate`: what it refuses before and after a model is loaded, and what it prints."""

import json
from pathlib import Path

import pytest

from sparse_control import cli
from tests.support.measured_root import build_root

pytest.importorskip("torch")

import torch

from sparse_control.commands import generate as command
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.protocol.generation import generate
from sparse_control.protocol.intervention import Intervention
from tests.support.tiny import VOCABULARY, WIDTH, tiny_model, words_tokenizer

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "intervention_example.json"
TEXT = "a few of the words to begin with"


class Words:
    """A tokenizer of words: their lengths are their ids."""

    def __call__(self, text):
        return {"input_ids": [20 + len(word) % 40 for word in text.split(" ")]}

    def decode(self, ids, skip_special_tokens):
        return " ".join(f"w{token}" for token in ids)


@pytest.fixture
def tiny(monkeypatch):
    lm = tiny_model()
    lm = LanguageModel(lm.model, Words(), lm.provenance | {"weights_sha256": "f" * 64}, lm.layout)
    monkeypatch.setattr(command, "loaded", lambda model, measured: lm)
    return lm


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = cli.main(["run", "generate", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def refused(result, *words):
    code, out, err = result
    assert code == 2 and out == "" and "Traceback" not in err
    for word in words:
        assert word in err


FILE = {"schema": "intervention/1", "support": ["L02.resid@-1"], "strengths": [1.0], "directions": [[4.0] * WIDTH]}


@pytest.fixture
def own(tmp_path):
    def write(**change):
        path = tmp_path / "own.json"
        path.write_text(json.dumps(FILE | change))
        return path

    return write


def test_doses_as_blocks_and_as_json(run, tiny, own):
    options = ["--intervention", own(), "--prompt", TEXT, "--tokens", 5]
    code, out, err = run(*options)
    assert code == 0 and err == ""
    headings = [line for line in out.splitlines() if not line.startswith("  ")]
    assert headings == ["dose -1", "dose 0 (unpatched)", "dose 1"]

    code, out, _ = run(*options, "--dose", "2", "--dose", "-0.5", "--phases", "prompt", "--json")
    report = json.loads(out)
    applied = Intervention((Site("resid", 2),), (1.0,), (torch.full((WIDTH,), 4.0),))
    expected = generate(tiny, applied, TEXT, [2.0, -0.5], phases="prompt", max_tokens=5)
    assert code == 0 and report["support"] == ["L02.resid@-1"] and report["phases"] == "prompt"
    assert [tuple(one["token_ids"]) for one in report["generations"]] == [one.token_ids for one in expected]
    assert [one["dose"] for one in report["generations"]] == [2.0, -0.5]


@pytest.mark.parametrize(
    "options, words",
    [
        ([], ["either --prompt TEXT or --chat TEXT"]),
        (["--prompt", "a b", "--chat", "a b"], ["either --prompt TEXT or --chat TEXT"]),
        (["--prompt", "a b"], ["either --record FILE or --intervention FILE"]),
        (["--prompt", "a b", "--record", "x", "--intervention", "y"], ["either --record FILE or --intervention FILE"]),
        (["--prompt", "a b", "--intervention", "absent.json"], ["absent.json"]),
        (["--prompt", "a b", "--record", "absent.jsonl"], ["absent.jsonl"]),
        (["--prompt", "a b", "--intervention", str(EXAMPLE), "--seed", "1"], ["--seed says which seed of --record"]),
        (["--prompt", "a b", "--intervention", str(EXAMPLE), "--template", "think=1"], ["--template is of the chat"]),
        (["--chat", "a b", "--intervention", str(EXAMPLE), "--template", "think"], ["'think' is no argument"]),
        (
            ["--chat", "a b", "--intervention", str(EXAMPLE), "--template", "a=1", "--template", "a=2"],
            ["a is given twi"],
        ),
        (["--prompt", "a b", "--intervention", str(EXAMPLE), "--dose", "much"], ["'much' is not a valid float"]),
        (["--prompt", "a b", "--intervention", str(EXAMPLE), "--phases", "all"], ["'all' is not one of"]),
        (["--prompt", "a b", "--intervention", str(EXAMPLE), "--model", "smollm2"], ["'smollm2'", "known names"]),
    ],
)
def test_refused_before_a_model_is_loaded(run, monkeypatch, options, words):
    def loading(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("sparse_control.models.load.load_model", loading)
    refused(run(*options), *words)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"schema": "intervention/2"}, ["own.json: schema"]),
        ({"support": []}, ["own.json: support"]),
        ({"support": ["L2.resid"]}, ["own.json: support.0"]),
        ({"strengths": [1.0, 2.0]}, ["strengths must have one entry for each of support (1), got 2"]),
        ({"strengths": ["1"]}, ["own.json: strengths.0"]),
        ({"strengths": [float("nan")]}, ["own.json: not valid JSON"]),
        ({"directions": [[]]}, ["own.json: directions.0"]),
        ({"directions": [[1.0]]}, ["own.json: site L02.resid@-1: direction has width 1, the site has 32"]),
        ({"support": ["L07.resid@-1"]}, ["own.json: site L07.resid@-1: layer 7 is outside 0..2"]),
        (
            {"model": "a/b/c"},
            ["own.json: model: is no field here; there are: schema, name, support, strengths, direct"],
        ),
        ({"support": ["L02.resid@-1"] * 2, "strengths": [1.0] * 2, "directions": [[1.0] * WIDTH] * 2}, ["twice"]),
        ({"support": ["L02.resid@60"]}, ["position 60 is outside a prompt of 8 tokens"]),
    ],
)
def test_intervention_files_are_refused_by_field(run, tiny, own, change, words):
    refused(run("--prompt", TEXT, "--intervention", own(**change)), *words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--tokens", "0"], ["max_tokens must be an integer at least 1, got 0"]),
        (["--tokens", "100"], ["more than the 64 positions"]),
        (["--dose", "nan"], ["doses[0] must be a finite number"]),
        (["--temperature", "-1"], ["temperature must not be negative"]),
        (["--prompt", "alone"], ["prompt must be token ids (T,) with T >= 2"]),
    ],
)
def test_wrong_numbers(run, tiny, own, options, words):
    refused(run("--prompt", TEXT, "--intervention", own(), *options), *words)


def test_directions_whose_norm_overflows(run, tiny, own):
    path = own(directions=[[1e200] * WIDTH])
    code, out, _ = run("--prompt", TEXT, "--intervention", path, "--dose", 0, "--tokens", 2, "--json")
    assert code == 0 and json.loads(out)["direction_norms"] == [None]
    refused(run("--prompt", TEXT, "--intervention", path, "--dose", 1), "dose 1: the logits of new token 0 are not")


def test_a_chat_template_is_needed_for_chat(run, tiny, own):
    refused(run("--chat", "a b", "--intervention", own()), "no chat template")


def test_arguments_reach_the_chat_template_and_are_told(run, tiny, own, monkeypatch):
    tokenizer = words_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }} {% endfor %}{% if think is sameas true %}w9{% endif %}"
    )
    lm = LanguageModel(tiny.model, tokenizer, tiny.provenance, tiny.layout)
    monkeypatch.setattr(command, "loaded", lambda model, measured: lm)
    call = ["--chat", "w5", "--system", "w6", "--intervention", own(), "--tokens", 5, "--dose", 0, "--json"]
    code, out, _ = run(*call, "--template", "think=true", "--template", "date=2031-12-24")
    report = json.loads(out)
    applied = Intervention((Site("resid", 2),), (1.0,), (torch.full((WIDTH,), 4.0, dtype=torch.float64),))
    expected = generate(lm, applied, torch.tensor([6, 5, 9]), [0.0], max_tokens=5)
    assert code == 0 and report["model"]["template_arguments"] == {"date": "2031-12-24", "think": True}
    assert tuple(report["generations"][0]["token_ids"]) == expected[0].token_ids
    refused(run(*call, "--template", "thinking=true"), "'thinking': is not read by the model's chat template", "think")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return build_root(tmp_path_factory.mktemp("generate"), tables=False) / "toy-model" / "six_axis"


def test_records_are_refused_by_seed_and_support(run, tiny, records, tmp_path, monkeypatch):
    path = records / "ioi.coverage_driver.P.jsonl"
    refused(run("--prompt", TEXT, "--record", path, "--seed", 99), "has no seed 99; there are: 0, 1")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    refused(run("--prompt", TEXT, "--record", empty), "holds no record")
    monkeypatch.undo()  # the model is looked up by the record's name again
    refused(run("--prompt", TEXT, "--record", path), "measured on toy-model, which is no registry name")
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(rows[0] | {"support": ["L2"]}) + "\n")
    refused(run("--prompt", TEXT, "--record", broken), "broken.jsonl:1: support.0")
    firsts = {path: json.loads(path.read_text().split("\n")[0]) for path in sorted(records.glob("*.jsonl"))}
    unsupported = next(path for path, first in firsts.items() if not first["supported"])
    refused(run("--prompt", TEXT, "--record", unsupported), "is not supported by toy-model")


def test_logits_stay_within_the_vocabulary(tiny):
    assert all(0 <= token < VOCABULARY for token in tiny.tokenizer(TEXT)["input_ids"])


@pytest.mark.slow
def test_the_default_model(run, default_model):
    record = PROJECT / "measurements" / "smollm2-135m-instruct" / "six_axis" / "sentiment.driver_omp.F.jsonl"
    prompt = "The food at the hotel was"
    code, out, _ = run("--record", record, "--prompt", prompt, "--tokens", 12, "--json")
    report = json.loads(out)
    ids = default_model.encode(prompt)[None]
    plain = default_model.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, pad_token_id=0
    )[0, ids.shape[1] :].tolist()
    assert code == 0
    by_dose = {one["dose"]: one["token_ids"] for one in report["generations"]}
    assert by_dose[0.0] == plain and by_dose[1.0] != plain and by_dose[-1.0] != plain

    code, out, _ = run("--intervention", EXAMPLE, "--chat", "Say something about the film.", "--tokens", 4, "--dose", 1)
    assert code == 0 and out.startswith("dose 1\n  ")
