"""Work, not time: forwards, tokens, flops and the largest tensors of the costly routines, counted on small models.

An accidental forward per cotangent, per dose or per probe, or a copy of the cache per row, fails here.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import counted_flops
from sparse_control.iss.benchmark import Query
from sparse_control.jacobian import corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.operator import CorpusOperator, nested_actions
from sparse_control.models.sites import Site
from sparse_control.protocol.feedback import FeedbackPlan
from sparse_control.protocol.intervention import Intervention
from sparse_control.protocol.measurement import measure
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import read_prompts
from sparse_control.protocol.splits import Split
from sparse_control.stages.states import query_states
from tests.support.pairs import make_pairs
from tests.support.tiny import N_LAYERS, WIDTH, prompt, tiny_model

T = 48
PROMPTS = [prompt(T, shift) for shift in range(5)]


@dataclass
class Forwards:
    """Shapes (B, T) of the base model's forwards and how many rows each block's MLP saw."""

    shapes: list[tuple[int, int]] = field(default_factory=list)
    block_rows: list[int] = field(default_factory=lambda: [0] * N_LAYERS)

    @property
    def tokens(self) -> int:
        return sum(batch * length for batch, length in self.shapes)


@contextmanager
def counted(lm):
    """Count the forwards made inside; no hook is set, as Jacobians look closer at a model with hooks of others."""
    found = Forwards()
    base, mlps = lm.model.base_model, lm.layout.mlps

    def whole(*args, **kwargs):
        found.shapes.append(tuple(kwargs["input_ids"].shape))
        return type(base).forward(base, *args, **kwargs)

    def block(layer, mlp):
        def forward(hidden, *args, **kwargs):
            found.block_rows[layer] += hidden.shape[0] * hidden.shape[1]
            return type(mlp).forward(mlp, hidden, *args, **kwargs)

        return forward

    base.forward = whole
    for layer, mlp in enumerate(mlps):
        mlp.forward = block(layer, mlp)
    try:
        yield found
    finally:
        for module in (base, *mlps):
            del module.forward


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that is made inside."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and not leaf._is_view():
                self.elements = max(self.elements, leaf.numel())
        return output


def block_parameters(lm) -> int:
    return sum(parameter.numel() for block in lm.layout.blocks for parameter in block.parameters())


# --- Jacobians ------------------------------------------------------------------------------------------------------


def test_an_exact_jacobian_is_two_forwards_at_batch_one():
    lm = tiny_model()
    with counted(lm) as forwards:
        exact_jacobian(lm, prompt(T))
    assert forwards.shapes == [(1, T - 1), (1, 1)]


def test_flops_of_an_exact_jacobian():
    """At most 2 d P for the sweep and 2 T P for the forwards; a forward per cotangent alone is 2 d P more."""
    lm = tiny_model()
    flops = counted_flops(lambda: exact_jacobian(lm, prompt(T)))
    attention = 4 * WIDTH * T * T * N_LAYERS  # scores and mixing of the prefix
    bound = 2 * block_parameters(lm) * (WIDTH + T) + attention
    assert 0.3 * bound < flops < 1.05 * bound


def test_no_copies_of_the_cache_or_of_the_prefix_per_cotangent():
    lm = tiny_model()
    with LargestTensor() as largest:
        exact_jacobian(lm, prompt(T))
    cache_per_layer = T * lm.model.config.num_key_value_heads * lm.head_dim
    assert largest.elements <= max(N_LAYERS * WIDTH**2, WIDTH * 2 * 64)  # the result, or rows of hidden units
    assert largest.elements < WIDTH * cache_per_layer


def test_a_qb_pass_is_one_forward_per_prompt():
    lm = tiny_model()
    with counted(lm) as forwards:
        randomized_qb(corpus_operator(lm, PROMPTS, 1), 8, 4, power_iterations=1)
    passes = 4
    assert forwards.shapes.count((1, 1)) == passes * len(PROMPTS)
    assert forwards.tokens == len(PROMPTS) * (T - 1) + passes * len(PROMPTS)  # keys and values are read once


def test_prompts_that_are_not_kept_are_read_once_per_pass_and_together():
    lm = tiny_model()
    operator = CorpusOperator(lm, PROMPTS, 0, kept_bytes=0)
    with counted(lm) as forwards:
        for _ in range(2):
            operator.matmat(torch.ones(WIDTH, 1))
    assert sorted(forwards.shapes) == sorted(2 * ([(4, T - 1), (1, T - 1)] + 5 * [(1, 1)]))


def test_flops_of_a_qb_follow_the_layer_and_the_rank():
    """Blocks below the layer and the width are no part of the cost of a product."""
    lm = tiny_model()

    def flops(layer, rank):
        operator = corpus_operator(lm, PROMPTS[:1], layer)
        operator.matmat(torch.ones(WIDTH, 1))  # reads the keys and values
        return counted_flops(lambda: operator.matmat(torch.ones(WIDTH, rank)))

    per_column = [(flops(layer, 24) - flops(layer, 8)) / 16 for layer in range(N_LAYERS)]
    expected = [2 * block_parameters(lm) * (N_LAYERS - layer) / N_LAYERS for layer in range(N_LAYERS)]
    assert per_column == pytest.approx(expected, rel=0.3)


def test_nested_corpora_push_each_prompt_once():
    lm = tiny_model()
    with counted(lm) as forwards:
        nested_actions(lm, PROMPTS, 1, torch.ones(3, WIDTH), [1, 2, 5])
    assert forwards.shapes.count((1, 1)) == 5 and forwards.tokens == 5 * T


# --- six axes -------------------------------------------------------------------------------------------------------


PAIRS, UNSEEN = make_pairs(4), make_pairs(3, first=20)
DOSES = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
PLAN = FeedbackPlan(targets=(0.1, -0.4), gain=0.3, tolerance=0.0, readouts=4)
LAST = (Site("head", 1, 2), Site("mlp", 2))


def test_patches_cost_one_token_each_from_their_block_on():
    lm = tiny_model()
    with counted(lm) as reading:
        split, unseen = Split.read(lm, PAIRS, LAST), Split.read(lm, UNSEEN, LAST)
        panel = OffTargetPanel(("a", "b"), read_prompts(lm, [prompt(8).tolist(), prompt(9, 1).tolist()]))
    lengths = [len(pair.source_ids) for pair in (*PAIRS, *UNSEEN)]
    assert reading.tokens == 2 * sum(lengths) + 8 + 9  # every token of every prompt once
    with counted(lm) as patching:
        measure(lm, Intervention(LAST, (1.0, 1.0)), split, unseen, doses=DOSES, feedback=PLAN, off_target=panel)
    curve, reversal, feedback, preservation, reuse = 9 * 4, 4, 3 * 2 * 4, 9 * 2, 2 * 3
    rows = curve + reversal + feedback + preservation + reuse
    assert patching.tokens == rows
    assert patching.block_rows == [0, rows, rows]  # block 0 stands below every site
    assert len(patching.shapes) == 1 + 1 + 3 + 1 + 2  # doses and targets share forwards


def test_an_earlier_site_reruns_the_tokens_from_it_on():
    lm = tiny_model()
    ids, site = [prompt(12).tolist(), prompt(7, 5).tolist()], Site("mlp", 1, position=-3)
    with counted(lm) as reading:
        prompts = read_prompts(lm, ids, (site,))
    with counted(lm) as patching:
        prompts.patched_logits({site: torch.ones(2, 5, WIDTH)})
    assert reading.tokens == 12 + 7
    assert patching.shapes == [(2 * 5, 3)] and patching.block_rows == [0, 30, 30]


def test_patches_share_the_keys_and_values_before_them():
    lm = tiny_model()
    prompts = read_prompts(lm, [prompt(60).tolist()], LAST)
    additions = {LAST[1]: torch.ones(1, 40, WIDTH)}
    with LargestTensor() as largest:
        prompts.patched_logits(additions)
    assert largest.elements < 40 * 60 * lm.head_dim  # keys of one head, copied per row


def test_gradients_are_one_forward():
    lm = tiny_model()
    prompts = read_prompts(lm, [prompt(12).tolist(), prompt(7, 5).tolist()], LAST)
    with counted(lm) as forwards:
        prompts.gradients(LAST, torch.ones_like(prompts.logits))
    assert forwards.shapes == [(2, 1)]


# --- states ---------------------------------------------------------------------------------------------------------


class _Letters:
    """Tokens of a text: its letters."""

    def __call__(self, text, **_settings):
        return {"input_ids": [ord(letter) % 97 for letter in text]}


def test_states_run_each_prompt_once_and_equal_lengths_together():
    plain = tiny_model()
    lm = type(plain)(plain.model, _Letters(), plain.provenance, plain.layout)
    texts = ["one two", "three four", "five six", "seven eight", "nine ten"]
    queries = [
        Query(fact=str(i), relation="r", family="f", template=0, text=text, answers=("x",))
        for i, text in enumerate(texts)
    ]
    with counted(lm) as forwards:
        states = query_states(lm, queries, [0, 2], "states")
    assert forwards.tokens == sum(map(len, texts))
    assert len(forwards.shapes) == len({len(text) for text in texts})
    assert np.isfinite(states.states[2].numpy()).all()
