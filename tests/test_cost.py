"""The cost model against counted flops, on shapes of different proportions."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.common import counted_flops
from benchmarks.cost import SHAPES, exact_cost, qb_cost, shape_of, six_axis_cost, states_cost, weights_bytes
from sparse_control.jacobian import corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.store import tensor_bytes
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site
from sparse_control.models.stream import residual_stream
from sparse_control.protocol.prompts import read_prompts

CONFIGS = {
    "deep": LlamaConfig(
        vocab_size=200, hidden_size=96, intermediate_size=256, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    ),
    "wide": LlamaConfig(
        vocab_size=300, hidden_size=160, intermediate_size=320, num_hidden_layers=3, num_attention_heads=5,
        num_key_value_heads=5, max_position_embeddings=64, tie_word_embeddings=False,
    ),
}  # fmt: skip
T = 40


@pytest.fixture(params=CONFIGS)
def lm(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[request.param])
    return LanguageModel.wrap(model.eval().requires_grad_(False), provenance={"name": request.param})


def ids(n: int = 1) -> list[torch.Tensor]:
    return [(torch.arange(T) * 37 + shift) % 200 for shift in range(n)]


def test_parameters(lm):
    exact = sum(parameter.numel() for parameter in lm.model.parameters())
    assert weights_bytes(shape_of(lm.name, lm.model.config)) == pytest.approx(4 * exact, rel=0.01)


def test_flops_within_a_quarter(lm):
    shape, middle = shape_of(lm.name, lm.model.config), lm.n_layers // 2
    site = Site("mlp", middle)
    prompts = read_prompts(lm, ids(3), (site,))
    rows = {site: torch.ones(3, 7, lm.width)}
    patching = six_axis_cost(shape, tokens=T, pairs=0, readouts=21, first=middle, off_target=0)
    cases = [
        (exact_cost(shape, tokens=T, prompts=1), lambda: exact_jacobian(lm, ids()[0])),
        (
            qb_cost(shape, tokens=T, prompts=2, layers=(middle,), columns=24),
            lambda: randomized_qb(corpus_operator(lm, ids(2), middle), 16, 8),
        ),
        (states_cost(shape, tokens=T, prompts=3, layers=1), lambda: residual_stream(lm, torch.stack(ids(3)))),
        (patching, lambda: prompts.patched_logits(rows)),
    ]
    for cost, run in cases:
        assert cost.flops == pytest.approx(counted_flops(run), rel=0.25)


def test_disk(lm):
    shape = shape_of(lm.name, lm.model.config)
    cost = qb_cost(shape, tokens=T, prompts=1, layers=(0,), columns=24)
    assert cost.disk == pytest.approx(2 * len(tensor_bytes(torch.zeros(lm.width, 24))), rel=0.25)


def test_costs_grow_as_stated():
    small, large = SHAPES[0], SHAPES[-1]
    assert exact_cost(small, tokens=128, prompts=8).flops == 8 * exact_cost(small, tokens=128, prompts=1).flops
    one, all_layers = (exact_cost(large, tokens=128, prompts=1, layers=count) for count in (1, None))
    assert one.flops == all_layers.flops and one.disk * large.layers == all_layers.disk
    assert 65e9 < large.parameters < 72e9 and 0.12e9 < small.parameters < 0.14e9


def test_the_published_default_is_the_default_models_shape():
    assert shape_of("SmolLM2-135M", LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )) == SHAPES[0]  # fmt: skip
