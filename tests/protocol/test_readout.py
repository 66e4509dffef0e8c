"""The readout of token sets: bit-equal to a logit difference with one token each, and its derivative."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sparse_control.models.sites import all_sites
from sparse_control.protocol.effects import first_order_effects
from sparse_control.protocol.splits import Split, margin_gradients, margins
from tests.support.pairs import make_pairs
from tests.support.tiny import VOCABULARY, tiny_model


def sets(pairs, sizes=((1, 1), (3, 2), (2, 4), (1, 3))):
    """The pairs with answer sets of the given (source, target) sizes."""
    return [
        replace(pair, source_answer_ids=tuple(range(10, 10 + a)), target_answer_ids=tuple(range(50, 50 + b)))
        for pair, (a, b) in zip(pairs, sizes)
    ]


def logits(n, r, scale=10.0):
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(n, r, VOCABULARY, generator=generator)


def test_one_token_is_the_logit_difference_bit_for_bit():
    pairs, values = make_pairs(), logits(4, 3)
    plain = [
        [float(row[p.target_answer_ids[0]].double() - row[p.source_answer_ids[0]].double()) for row in rows]
        for p, rows in zip(pairs, values)
    ]
    assert np.array_equal(margins(values, pairs), np.array(plain))
    assert np.array_equal(margins(values, sets(pairs))[0], margins(values, sets(pairs)[:1] + list(pairs[1:]))[0])


def test_token_sets_are_log_odds():
    pairs, values = sets(make_pairs()), logits(4, 3)
    for pair, rows, got in zip(pairs, values, margins(values, pairs)):
        shares = rows.double().softmax(-1).numpy()
        for share, margin in zip(shares, got):
            odds = sum(share[i] for i in pair.target_answer_ids) / sum(share[i] for i in pair.source_answer_ids)
            assert margin == pytest.approx(np.log(odds), abs=1e-10)


def test_gradients_are_the_derivative():
    pairs, values = sets(make_pairs()), logits(4, 1)[:, 0].double().requires_grad_()
    plain = torch.stack([
        row[list(p.target_answer_ids)].logsumexp(0) - row[list(p.source_answer_ids)].logsumexp(0)
        for p, row in zip(pairs, values)
    ])  # fmt: skip
    (expected,) = torch.autograd.grad(plain.sum(), values)
    assert torch.allclose(margin_gradients(values.detach(), pairs), expected, atol=1e-14)
    ones = margin_gradients(values.detach().float(), make_pairs())
    assert ones.dtype == torch.float32 and sorted(ones.unique().tolist()) == [-1.0, 0.0, 1.0]


def test_first_order_effects_of_token_sets():
    lm = tiny_model(dtype=torch.float64)
    split = Split.read(lm, sets(make_pairs()), all_sites(lm))
    sites = all_sites(lm)[:4]
    step = 1e-2  # the norms of the model round to float32
    columns = []
    for site in sites:
        moves = torch.tensor([step, -step], dtype=torch.float64)[:, None] * split.contrasts[site][:, None]
        ahead, behind = margins(split.source.patched_logits({site: moves}), split.pairs).T
        columns.append((ahead - behind) / (2 * step))
    assert np.allclose(first_order_effects(split, sites), np.stack(columns, axis=1), rtol=1e-2, atol=1e-4)
