"""Faults that other Jacobian code had, each built on purpose; tests/README.md lists them all."""

import warnings

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.jacobian import DenseOperator, corpus_operator, exact_jacobian, randomized_qb
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.jacobian.guard import check_exact_mode
from sparse_control.jacobian.lens import read_lens
from sparse_control.jacobian.preflight import check_derivatives
from sparse_control.jacobian.store import load_factors
from sparse_control.models import LanguageModel
from sparse_control.models.decode import DecodeStep
from sparse_control.models.sites import Site, capture_sites
from sparse_control.models.stream import full_stream, residual_stream, unwrap
from sparse_control.stages.checkpoint import Checkpoint
from tests.support.jacobian_reference import full_sequence_jacobian, relative
from tests.support.tiny import CONFIGS, N_LAYERS, WIDTH, prompt, tiny_model

EYE = torch.eye(WIDTH, dtype=torch.float64)


def vectors(columns: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(WIDTH, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- F2: dropout ----------------------------------------------------------------------------------------------------


def with_dropout(rate: float = 0.5) -> LanguageModel:
    lm = tiny_model("gpt2", dtype=torch.float64)
    for module in lm.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
    return lm


def test_any_submodule_in_training_mode_is_refused():
    lm = with_dropout()
    for _name, module in lm.model.named_modules():
        module.training = True
        with pytest.raises(UnsupportedModel, match="training mode"):
            check_exact_mode(lm)
        module.training = False
    check_exact_mode(lm)


def test_a_model_with_dropout_has_one_jacobian_and_any_block_size_gives_it():
    lm, plain = with_dropout(), tiny_model("gpt2", dtype=torch.float64)
    expected = exact_jacobian(plain, prompt(), [0])[0]
    assert torch.equal(exact_jacobian(lm, prompt(), [0])[0], expected)
    op = corpus_operator(lm, [prompt()], 0)
    together = op.matmat(EYE)
    for size in (1, 7):
        parts = torch.cat([op.matmat(EYE[:, start : start + size]) for start in range(0, WIDTH, size)], dim=1)
        assert relative(parts - together, together) < 1e-12
    assert relative(together - expected, expected) < 1e-12


# --- F3: which state a layer is -------------------------------------------------------------------------------------


def linear_toy() -> tuple[LanguageModel, list[torch.Tensor]]:
    """Blocks h -> h + W_l h at every position, in float64."""
    lm = tiny_model(dtype=torch.float64)
    weights = []
    for layer, block in enumerate(lm.layout.blocks):
        block.self_attn.o_proj.weight.zero_()
        block.post_attention_layernorm = nn.Identity().eval()
        block.mlp = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64).eval().requires_grad_(False)
        block.mlp.weight.copy_(0.3 * vectors(WIDTH, seed=layer))
        weights.append(block.mlp.weight)
    return LanguageModel.wrap(lm.model), weights


def test_layers_are_counted_by_what_enters_the_block():
    """One block off gives I where I + W belongs."""
    lm, weights = linear_toy()
    steps = [EYE + weight for weight in weights]
    expected = {2: steps[2], 1: steps[2] @ steps[1], 0: steps[2] @ steps[1] @ steps[0]}
    found = exact_jacobian(lm, prompt())
    summed = future_sum_jacobian(lm, prompt(), skip_first=4)
    for layer, matrix in expected.items():
        assert relative(found[layer] - matrix, matrix) < 1e-14
        assert relative(summed[layer] - matrix, matrix) < 1e-13, "without attention the conventions agree"
        op = corpus_operator(lm, [prompt()], layer)
        assert relative(op.matmat(EYE) - matrix, matrix) < 1e-14


# --- F6, F7, F8, F30: what is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_the_last_state_is_not_hidden_states_minus_one(name):
    lm = tiny_model(name)
    lm.layout.final_norm.weight.copy_(torch.linspace(0.5, 2, WIDTH))
    own = lm.model(input_ids=prompt()[None], output_hidden_states=True).hidden_states
    last = full_stream(lm, prompt()[None])[-1]
    assert relative(last - own[-1], own[-1]) > 0.1
    assert torch.allclose(lm.layout.final_norm(last), own[-1], atol=1e-5)
    assert not torch.allclose(lm.layout.final_norm(own[-1]), own[-1], atol=1e-2), "a second norm changes it again"


@pytest.mark.parametrize("form", ["tensor", "tuple"])
def test_both_forms_of_block_outputs_keep_the_batch(form):
    lm, plain = tiny_model(), tiny_model()
    batch = torch.stack([prompt(), prompt(shift=3), prompt(shift=9)])
    if form == "tuple":
        for block in lm.layout.blocks:
            block.register_forward_pre_hook(lambda _module, args: (unwrap(args[0]), *args[1:]))
            block.register_forward_hook(lambda _module, _args, output: (output, None))
        lm.layout.final_norm.register_forward_pre_hook(lambda _module, args: (unwrap(args[0]),))
    with torch.no_grad():
        states = full_stream(lm, batch)
    assert all(state.shape == (3, 24, WIDTH) for state in states) and len(states) == N_LAYERS + 1
    assert torch.equal(residual_stream(lm, batch), residual_stream(plain, batch))
    found, expected = exact_jacobian(lm, prompt()), exact_jacobian(plain, prompt())
    assert relative(found - expected, expected) < 1e-6
    vector = vectors(1)
    op, plain_op = corpus_operator(lm, [prompt()], 0), corpus_operator(plain, [prompt()], 0)
    assert torch.allclose(op.matmat(vector), plain_op.matmat(vector), rtol=1e-5, atol=1e-6)


def test_a_block_whose_hook_never_fires_is_noticed():
    """The model runs a block that is not the hooked one: nothing is captured there, and nothing is made up."""
    lm = tiny_model()
    lm.model.model.layers[1] = tiny_model(seed=3).model.model.layers[1]
    with pytest.raises(UnsupportedModel, match="3 residual states captured, expected 4"):
        full_stream(lm, prompt()[None])
    with pytest.raises(ValueError, match="LlamaMLP did not run in a forward; a hook did not act"):
        capture_sites(lm, prompt()[None], [Site("mlp", 1)])


def test_the_last_token_is_the_last_id_even_where_it_is_a_space(small_tokenizer):
    lm = LanguageModel.wrap(tiny_model().model, small_tokenizer)
    bare, spaced = lm.encode("ab"), lm.encode("ab ")
    assert len(spaced) == len(bare) + 1 and lm.tokenizer.decode(spaced[-1]) == " "
    state = residual_stream(lm, spaced[None])
    assert torch.equal(state[0, 0], lm.model.get_input_embeddings()(spaced[-1]))
    assert not torch.allclose(state, residual_stream(lm, bare[None]))


@pytest.fixture(scope="module")
def small_tokenizer():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate("~abc ")}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="~")


# --- F9, F10, F11: forward derivatives and attention kernels --------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_products_do_not_depend_on_the_models_attention_kernel(name, attention):
    """Fused kernels have no forward derivative; ours replaces them for the one token, so none is ever asked for it."""
    lm = tiny_model(name)
    lm.model.set_attn_implementation(attention)
    assert lm.model.config._attn_implementation == attention
    expected = full_sequence_jacobian(lm, prompt())[0].double()
    op = corpus_operator(lm, [prompt()], 0)
    for product, matrix in ((op.matmat, expected), (op.rmatmat, expected.T)):
        found, wanted = product(vectors()), matrix @ vectors()
        assert torch.isfinite(found).all() and relative(found - wanted, wanted) < 1e-5
    assert lm.model.config._attn_implementation == attention


# --- F12: modes -----------------------------------------------------------------------------------------------------


def test_inference_mode_gives_no_zeros_anywhere():
    lm = tiny_model()
    op = corpus_operator(lm, [prompt()], 0)
    with torch.inference_mode():
        for call in (
            lambda: exact_jacobian(lm, prompt()),
            lambda: future_sum_jacobian(lm, prompt()),
            lambda: corpus_operator(lm, [prompt()], 0),
            lambda: op.matmat(vectors()),
            lambda: op.rmatmat(vectors()),
            lambda: check_derivatives(lm, prompt(), [0]),
        ):
            with pytest.raises(UnsupportedModel, match="inference_mode"):
                call()


def test_no_grad_changes_nothing():
    lm = tiny_model()
    op = corpus_operator(lm, [prompt()], 0)

    def everything():
        yield from (exact_jacobian(lm, prompt()), future_sum_jacobian(lm, prompt()))
        yield from (op.matmat(vectors()), op.rmatmat(vectors()))

    expected = list(everything())
    with torch.no_grad():
        found = list(everything())
    for one, other in zip(found, expected):
        assert torch.equal(one, other) and one.abs().max() > 0


# --- F13 to F16: numerics -------------------------------------------------------------------------------------------


def test_float32_is_as_good_as_its_rounding_and_bfloat16_is_not():
    lm = tiny_model("gpt2")
    single = exact_jacobian(lm, prompt())
    lm.model.double()
    wide = exact_jacobian(lm, prompt())
    lm.model.bfloat16()
    with pytest.warns(UserWarning, match="coarse"):
        coarse = exact_jacobian(lm, prompt())
    assert relative(single - wide, wide) < 1e-5 < 1e-3 < relative(coarse - wide, wide)


def test_same_bits_at_a_fixed_number_of_threads_and_same_values_at_another():
    lm = tiny_model()
    op = corpus_operator(lm, [prompt(), prompt(shift=5)], 0)
    first = exact_jacobian(lm, prompt()), op.matmat(vectors()), op.rmatmat(vectors())
    again = exact_jacobian(lm, prompt()), op.matmat(vectors()), op.rmatmat(vectors())
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        other = exact_jacobian(lm, prompt()), op.matmat(vectors()), op.rmatmat(vectors())
    finally:
        torch.set_num_threads(threads)
    for one, two, three in zip(first, again, other):
        assert torch.equal(one, two) and relative(three - one, one) < 1e-5


def test_tf32_is_refused(monkeypatch):
    lm = tiny_model()
    monkeypatch.setattr(LanguageModel, "device", torch.device("cuda"))
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        check_exact_mode(lm)
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(
            UnsupportedModel, match=r"taken in tf32; set torch.backends.cuda.matmul.fp32_precision = 'i"
        ):
            check_exact_mode(lm)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


# --- F17, F18, F19: finite differences, quantised kernels -----------------------------------------------------------


def test_richardson_extrapolation_in_float64():
    """Central differences at h and h/2: the error falls by four, and extrapolated it is that of the derivative."""
    lm = tiny_model("gpt2", dtype=torch.float64)
    step = DecodeStep(lm, prompt())
    blocks, start = step.block_functions(), step.stream()[0].detach()[0]
    direction = vectors(1).T

    @torch.no_grad()
    def difference(size):
        ends = []
        for sign in (1, -1):
            hidden = start + sign * size * direction
            for block in blocks:
                hidden = block(hidden)
            ends.append(hidden)
        return (ends[0] - ends[1])[0] / (2 * size)

    true = corpus_operator(lm, [prompt()], 0).matmat(direction.T)[:, 0]
    coarse, fine = difference(1e-3), difference(5e-4)
    extrapolated = (4 * fine - coarse) / 3
    assert 3.5 < float((coarse - true).norm() / (fine - true).norm()) < 4.5
    assert relative(extrapolated - true, true) < 1e-8 < relative(fine - true, true)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_quantised_parameters_are_refused(dtype):
    lm = tiny_model()
    projection = lm.layout.blocks[1].mlp.down_proj
    projection.weight = nn.Parameter(projection.weight.to(dtype), requires_grad=False)
    for call in (lambda: exact_jacobian(lm, prompt()), lambda: corpus_operator(lm, [prompt()], 0)):
        with pytest.raises(UnsupportedModel, match="'model.layers.1.mlp.down_proj.weight' is quantised"):
            call()


# --- F20, F21, F29: wrong derivatives -------------------------------------------------------------------------------


class WrongBackward(torch.autograd.Function):
    """The identity with a backward that loses a tenth, as a kernel that drops a term would."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 0.9 * gradient

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()


class SteepBackward(WrongBackward):
    """The identity with a backward that overflows, as half precision does in deep layers."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")


@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_adjoint_at_every_layer(name):
    lm = tiny_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_derivatives(lm, prompt(), range(N_LAYERS))
    for layer in range(N_LAYERS):
        op = corpus_operator(lm, [prompt()], layer)
        u, v = vectors(1, seed=1), vectors(1, seed=2)
        forward, reverse = (v.T @ op.matmat(u)).item(), (op.rmatmat(v).T @ u).item()
        assert abs(forward - reverse) < 1e-5 * float(v.norm() * op.matmat(u).norm())


def test_a_kernel_with_a_wrong_backward_is_found_before_the_fit():
    lm = tiny_model()
    lm.layout.blocks[1].mlp.register_forward_hook(lambda _module, _args, output: WrongBackward.apply(output))
    check_derivatives(lm, prompt(), [2])
    with pytest.raises(UnsupportedModel, match="layer 1 are not adjoint"):
        check_derivatives(lm, prompt(), [2, 1])


def test_derivatives_that_overflow_are_found_before_the_fit():
    lm = tiny_model()
    lm.layout.blocks[1].mlp.register_forward_hook(lambda _module, _args, output: SteepBackward.apply(output))
    check_derivatives(lm, prompt(), [2])
    with pytest.raises(UnsupportedModel, match="layer 1 are not finite"):
        check_derivatives(lm, prompt(), [2, 1, 0])


def test_experts_are_differentiated_along_the_route_taken():
    """The map is piecewise: the derivative of the piece, never a difference across two."""
    config = MixtralConfig(
        vocab_size=100, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(5)
    lm = LanguageModel.wrap(model)
    expected = full_sequence_jacobian(lm, prompt())
    assert relative(exact_jacobian(lm, prompt()) - expected, expected) < 1e-5
    op, u, v = corpus_operator(lm, [prompt()], 0), vectors(1, seed=1), vectors(1, seed=2)
    assert abs((v.T @ op.matmat(u) - op.rmatmat(v).T @ u).item()) < 1e-5 * float(v.norm() * op.matmat(u).norm())
    with pytest.warns(UserWarning, match="forward mode cannot check the reverse derivatives"):
        check_derivatives(lm, prompt(), range(N_LAYERS))


def test_rectangular_operators():
    matrix = vectors(7)
    op = DenseOperator(matrix)
    assert op.shape == (WIDTH, 7)
    assert torch.equal(op.matmat(torch.eye(7, dtype=torch.float64)), matrix)
    assert torch.equal(op.rmatmat(EYE), matrix.T)
    with pytest.raises(ValueError, match=r"must have shape \(7, m\)"):
        op.matmat(EYE)


# --- F22: BOS -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds", [False, True])
def test_the_record_says_whether_prompts_begin_with_bos(tmp_path, adds):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    from sparse_control.models import load_model

    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(100)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds:
        tokenizer.post_processor = processors.TemplateProcessing(single="w1 $A", special_tokens=[("w1", 1)])
    tiny_model().model.save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", bos_token="w1").save_pretrained(tmp_path)
    lm = load_model(str(tmp_path))
    assert lm.provenance["bos"] is adds and (lm.encode("w5")[0] == 1) == adds


# --- F24, F25: unfinished work --------------------------------------------------------------------------------------


KEY = {"model": "m", "weights": "1", "tokenizer": "2", "dtype": "float32", "corpus": "3", "settings": "4", "code": "5"}


@pytest.mark.parametrize("name", KEY)
def test_unfinished_work_is_taken_up_only_by_the_same_work(tmp_path, name):
    layout = {"total": ((2,), torch.float32)}
    Checkpoint(tmp_path / "sum", KEY, layout, 60).save({"total": torch.ones(2)})
    assert Checkpoint(tmp_path / "sum", KEY, layout, 60).load()["total"].tolist() == [1, 1]
    with pytest.raises(InputError, match=f"unfinished work with another {name}"):
        Checkpoint(tmp_path / "sum", KEY | {name: "other"}, layout, 60).load()


def test_a_checkpoint_is_read_neither_as_a_lens_nor_as_factors(tmp_path):
    checkpoint = Checkpoint(tmp_path / "Q.pt", KEY, {"total": ((WIDTH, WIDTH), torch.float32)}, 60)
    checkpoint.save({"total": torch.eye(WIDTH)})
    with pytest.raises(InputError, match="not a readable tensor file"):
        read_lens(checkpoint.path)
    with pytest.raises(InputError, match="metadata.json"):
        load_factors(checkpoint.path.parent)


# --- F26: offload ---------------------------------------------------------------------------------------------------


def test_offloaded_parameters_are_refused_everywhere():
    lm = tiny_model()
    lm.layout.blocks[2].mlp.to("meta")
    for call in (
        lambda: exact_jacobian(lm, prompt()),
        lambda: future_sum_jacobian(lm, prompt()),
        lambda: corpus_operator(lm, [prompt()], 0),
        lambda: check_derivatives(lm, prompt(), [0]),
    ):
        with pytest.raises(UnsupportedModel, match="'model.layers.2.mlp.gate_proj.weight' is offloaded"):
            call()


# --- F28: windows ---------------------------------------------------------------------------------------------------


def test_prompts_that_never_fill_the_window_are_noted():
    lm = tiny_model("mistral")  # window 5
    with pytest.warns(UserWarning, match="prompts of 4 tokens never fill the attention window of 5"):
        check_derivatives(lm, prompt(4), [0])


# --- F33: one notion of convergence is in test_ladder.py ------------------------------------------------------------


def test_non_finite_products_stop_a_factorisation():
    lm = tiny_model()
    lm.layout.blocks[1].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match="not finite"):
        randomized_qb(corpus_operator(lm, [prompt()], 0), rank=4)
