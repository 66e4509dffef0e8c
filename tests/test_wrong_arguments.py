"""Every public function with every kind of wrong value in every argument: one ValueError that names the argument."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sparse_control.iss import internal_state_stability, read_facts, relation_bootstrap
from sparse_control.jacobian import DenseOperator, corpus_operator, exact_jacobian, randomized_qb
from sparse_control.metrics.cost import progress_at_budget
from sparse_control.metrics.dose import progress, signed_spearman
from sparse_control.metrics.feedback import endpoint_metrics
from sparse_control.metrics.preservation import kl_divergence, preservation_summary
from sparse_control.metrics.reachability import rel_tar
from sparse_control.metrics.reuse import mcqa_recovery
from sparse_control.metrics.reversal import reversal_metrics
from sparse_control.models import load_model
from sparse_control.protocol import (
    FeedbackPlan,
    Intervention,
    Pair,
    Site,
    chosen_sites,
    coverage_driver,
    driver_omp,
    generate,
    measure,
    patched,
    random_supports,
    read_pairs,
    top_k,
)
from sparse_control.seeds import stream
from tests.support.pairs import make_pairs
from tests.support.tiny import WIDTH, prompt, tiny_model

RAGGED = [[1.0], [1.0, 2.0]]
OBJECTS = np.array([object(), None], dtype=object)
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "text": lambda: "x",
    "bytes": lambda: b"x",
    "empty text": lambda: "",
    "empty list": lambda: [],
    "empty matrix": lambda: np.zeros((0, 3)),
    "nested lists": lambda: [[[1.0]], [[2.0]]],
    "ragged lists": lambda: RAGGED,
    "list of None": lambda: [None, 1.0],
    "list of text": lambda: ["a", "b"],
    "list of booleans": lambda: [True, False],
    "array of objects": lambda: OBJECTS,
    "array of text": lambda: np.array(["a", "b"]),
    "array without dimensions": lambda: np.array(object()),
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "list with NaN": lambda: [float("nan"), 1.0],
    "list with infinity": lambda: [1.0, float("inf")],
    "integer beyond float64": lambda: 10**400,
    "integer too long to print": lambda: 10**5000,
    "list of an integer beyond float64": lambda: [10**400, 1],
    "huge": lambda: 1e308,
    "list of huge": lambda: [1e308, -1e308],
    "negative": lambda: -1,
    "fraction": lambda: 0.5,
    "complex": lambda: 1j,
    "list of complex": lambda: [1j, 2.0],
    "dictionary": lambda: {"a": 1.0},
    "set": lambda: {1.0, 2.0},
    "generator": lambda: (value for value in (1.0, 2.0)),
    "function": lambda: len,
    "object": object,
    "class": lambda: int,
    "column with NaN": lambda: pd.Series([1.0, None]),
    "column with missing": lambda: pd.Series([1, None], dtype="Int64"),
    "table": lambda: pd.DataFrame({"a": ["x", "y"]}),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    "dates": lambda: np.array(["2020", "2021"], "M8[Y]"),
    "tensor on meta": lambda: torch.empty(3, device="meta"),
    "matrix on meta": lambda: torch.empty(3, 3, device="meta"),
    "number on meta": lambda: torch.empty((), device="meta"),
    "boolean tensor": lambda: torch.tensor([True, False]),
    "complex tensor": lambda: torch.ones(2, 2, dtype=torch.complex64),
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "tensor with NaN": lambda: torch.full((2, 2), float("nan")),
}


@dataclass(frozen=True)
class Case:
    """One function: a call that is right, and for each argument the wrong values that it takes, as its text says."""

    call: Callable[..., Any]
    right: Mapping[str, Any]
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def patch(lm, intervention, dose, pair, reverse):
    with patched(lm, intervention, dose=dose, pair=pair, reverse=reverse):
        return lm.model(input_ids=torch.tensor([PAIRS[0].source_ids]))


LM = tiny_model()
PAIRS = make_pairs(3)
SITE = Site("mlp", 1)
GOING = Intervention((SITE,), (1.0,), (torch.ones(WIDTH),))
ROWS = [(fact, family) for fact in range(4) for family in range(2) for _ in range(2)]
LABELS = {
    "facts": [f"f{fact}" for fact, _ in ROWS],
    "relations": [f"r{fact // 2}" for fact, _ in ROWS],
    "families": [f"t{family}" for _, family in ROWS],
}
VECTORS = {"source": [0.0, 0.0], "target": [1.0, 2.0], "patched": [1.0, 1.0]}
EFFECTS = {"effects": [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], "target": [1.0, 2.0]}
FACTORS = randomized_qb(DenseOperator(np.diag(np.arange(1.0, 7.0))), 2, 1)

NUMBER = ("huge", "negative", "fraction")  # finite real numbers all
HUGE = ("list of huge",)
TEXT = ("text", "empty text")
LISTED = ("list of text", "array of text", "list of huge", "list of an integer beyond float64")  # labels all
BOUND = ("None", "huge", "fraction")

CASES = {
    "rel_tar": Case(rel_tar, VECTORS, dict.fromkeys(VECTORS, HUGE)),
    "reversal_metrics": Case(reversal_metrics, {"source": [0.0], "target": [1.0], "reversed_out": [0.5]}),
    "progress": Case(progress, VECTORS, dict.fromkeys(VECTORS, HUGE)),
    "signed_spearman": Case(
        signed_spearman, {"doses": [0.0, 1.0], "progress": [0.0, 2.0]}, {"doses": HUGE, "progress": HUGE}
    ),
    "progress_at_budget": Case(
        progress_at_budget,
        {"doses": [0.5, 1.0], "progress": [0.0, 2.0], "kl": [0.1, 0.2], "budget": 0.15},
        {"doses": HUGE, "progress": HUGE, "kl": ("list with infinity",), "budget": ("huge", "fraction")},
    ),
    "endpoint_metrics": Case(
        endpoint_metrics,
        {"target": 1.0, "terminal_margin": 1.0, "initial_margin": 0.0, "tolerance": 0.3},
        {"target": NUMBER, "terminal_margin": NUMBER, "initial_margin": NUMBER, "tolerance": ("huge", "fraction")},
    ),
    "preservation_summary": Case(
        preservation_summary,
        {"kl_values": [0.0, 0.1], "seed_ids": [0, 1]},
        {"kl_values": ("list with infinity",), "seed_ids": LISTED},
    ),
    "kl_divergence": Case(
        kl_divergence, {"logits_p": [0.0, 1.0], "logits_q": [1.0, 0.0]}, {"logits_p": HUGE, "logits_q": HUGE}
    ),
    "mcqa_recovery": Case(mcqa_recovery, VECTORS, {"patched": HUGE}),
    "internal_state_stability": Case(
        internal_state_stability,
        {
            "z": np.random.default_rng(0).normal(size=(16, 5)), **LABELS, "lam_rel": 0.1, "model_width": 5,
            "covariance_rows": np.random.default_rng(1).normal(size=(9, 5)),
        },
        {"lam_rel": ("huge", "fraction"), "model_width": ("None",), "covariance_rows": ("None",)},
    ),
    "relation_bootstrap": Case(
        relation_bootstrap,
        {"values": [0.1, 0.5, 0.9], "relations": ["a", "b", "c"], "n_resamples": 50, "seed": 0, "confidence": 0.9},
        {"confidence": ("fraction",)},
    ),
    "read_facts": Case(
        read_facts,
        {"path": "facts.csv", "prompts": None, "facts_per_relation": None},
        {"prompts": ("None",), "facts_per_relation": ("None",)},
    ),
    "read_pairs": Case(read_pairs, {"path": "pairs.jsonl", "lm": LM, "seed": 0}),
    "exact_jacobian": Case(
        exact_jacobian, {"lm": LM, "input_ids": prompt(5), "layers": [0]}, {"layers": ("None",)}
    ),
    "corpus_operator": Case(corpus_operator, {"lm": LM, "corpus_ids": [prompt(5), prompt(4)], "layer": 0}),
    "DenseOperator.matmat": Case(DenseOperator(np.eye(3)).matmat, {"vectors": np.ones((3, 2))}),
    "CorpusOperator.rmatmat": Case(corpus_operator(LM, [prompt(5)], 2).rmatmat, {"vectors": np.ones((WIDTH, 2))}),
    "DenseOperator": Case(DenseOperator, {"matrix": np.eye(3)}),
    "randomized_qb": Case(
        randomized_qb,
        {
            "op": DenseOperator(np.eye(5)), "rank": 2, "oversampling": 1, "power_iterations": 0, "seed": 0,
            "probe": "gaussian",
        },
    ),
    "Factors.apply": Case(FACTORS.apply, {"h": np.ones((2, 6))}),
    "Factors.reduce": Case(FACTORS.reduce, {"h": np.ones(6)}),
    "Factors.truncate": Case(FACTORS.truncate, {"rank": 1, "oversampling": 1}, {"oversampling": ("None",)}),
    "load_model": Case(load_model, {"name": "nowhere.gguf", "dtype": "float32", "device": "cpu"}),
    "stream": Case(
        stream,
        {"seed": 0, "task": "t", "split": "s", "purpose": "p"},
        {"task": TEXT, "split": TEXT, "purpose": TEXT},
    ),
    "driver_omp": Case(
        driver_omp,
        {**EFFECTS, "k": 2, "min_effect": 0.0, "max_strength": 4.0},
        {"target": HUGE, "min_effect": ("fraction",), "max_strength": BOUND},
    ),
    "coverage_driver": Case(coverage_driver, {**EFFECTS, "k": 2}, {"target": HUGE}),
    "top_k": Case(top_k, {**EFFECTS, "k": 2, "max_strength": 4.0}, {"target": HUGE, "max_strength": BOUND}),
    "chosen_sites": Case(
        chosen_sites, {**EFFECTS, "support": [0, 2], "max_strength": 4.0}, {"target": HUGE, "max_strength": BOUND}
    ),
    "random_supports": Case(
        random_supports,
        {**EFFECTS, "k": 1, "draws": 2, "generator": np.random.default_rng(0), "max_strength": 4.0},
        {"target": HUGE, "max_strength": BOUND},
    ),
    "Site": Case(Site, {"component": "head", "layer": 0, "head": 1, "position": -1}, {"position": ("negative",)}),
    "Pair": Case(
        Pair,
        asdict(PAIRS[0]),
        dict.fromkeys(("id", "task", "split", "orientation", "source", "target"), TEXT)
        | dict.fromkeys(("source_answers", "target_answers"), ("list of text", "array of text", "empty list"))
        | {"sign": ("negative",)},
    ),
    "FeedbackPlan": Case(
        FeedbackPlan,
        {"targets": (0.1,), "gain": 0.2, "tolerance": 0.3, "readouts": 4, "dose_limits": (-1.0, 1.0)},
        {"targets": ("list of huge", "empty list"), "gain": NUMBER, "tolerance": ("huge", "fraction")},
    ),
    "Intervention": Case(
        Intervention,
        {
            **{"support": (SITE,), "strengths": (1.0,), "directions": (torch.ones(WIDTH),)},
            **{"oriented": False, "levels": None},
        },
        {"directions": ("None",), "oriented": ("True",), "levels": ("None",)},
    ),
    "Intervention.from_file": Case(
        Intervention.from_file,
        {"path": "vectors.npz", "lm": LM, "layer": None, "row": None},
        {"layer": ("None",), "row": ("None",)},
    ),
    "patched": Case(
        patch,
        {"lm": LM, "intervention": GOING, "dose": 1.0, "pair": PAIRS[0], "reverse": False},
        {"dose": NUMBER, "pair": ("None",), "reverse": ("True",)},
    ),
    "measure": Case(
        measure,
        {"lm": LM, "intervention": GOING, "evaluate": PAIRS, "reuse": PAIRS[:2], "doses": (0.0, 1.0), "feedback": None},
        {"reuse": ("None",), "feedback": ("None",)},
    ),
    "generate": Case(
        generate,
        {
            "lm": LM, "intervention": GOING, "prompt": prompt(5), "doses": [0.0], "phases": "both", "max_tokens": 1,
            "temperature": 0.0, "seed": 0, "stop_ids": [1], "pair": None, "together": False,
        },
        {
            "temperature": ("huge", "fraction"), "stop_ids": ("None", "empty list"), "pair": ("None",),
            "together": ("True",),
        },
    ),
}  # fmt: skip
ARGUMENTS = [(name, argument) for name, case in CASES.items() for argument in case.right]
FILES = {"path", "prompts", "name"}  # messages about a file begin with it


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name, argument", ARGUMENTS, ids=[".".join(pair) for pair in ARGUMENTS])
def test_wrong_values_are_refused_by_the_name_of_their_argument(name, argument):
    case = CASES[name]
    for kind, make in WRONG.items():
        call = dict(case.right) | {argument: make()}
        if kind in case.taken.get(argument, ()):
            if name not in ("read_facts", "Intervention.from_file"):
                case.call(**call)
            continue
        with pytest.raises(ValueError) as caught:
            pytest.fail(f"{kind}: returned {case.call(**call)!r:.200}")
        message = str(caught.value)
        names = {argument, argument.removesuffix("_ids"), argument.removesuffix("s")}  # `dose 9`, `source has 3 tokens`
        named = re.search(rf"\b({'|'.join(names)})\b", message)
        named = named or (argument in FILES and isinstance(call[argument], str))
        assert named, f"{kind}: {message}"
        assert "\n" not in message and len(message) < 400, f"{kind}: {message}"


def test_every_public_function_is_tried():
    from sparse_control import iss, jacobian, protocol

    public = {name for package in (iss, jacobian, protocol) for name in package.__all__}
    data = {"Factors", "Selection"}  # what functions return
    by_measure = {"driver_omp_remeasured"}  # its arguments are those of driver_omp and a function
    assert public - data - by_measure <= set(CASES)
