"""Modes and models in which derivatives would be others than they are said to be: refused in one line, everywhere."""

from contextlib import contextmanager

import pytest
import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.jacobian import corpus_operator, exact_jacobian
from sparse_control.jacobian.exact import jacobian_sum
from sparse_control.jacobian.future_sum import future_sum_jacobian
from sparse_control.jacobian.operator import nested_actions
from sparse_control.jacobian.preflight import check_derivatives
from tests.support.jacobian_reference import full_sequence_jacobian, relative
from tests.support.tiny import WIDTH, prompt, tiny_model

VECTORS = torch.randn(WIDTH, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def entries(lm):
    """Every way to a derivative, by name."""
    op = corpus_operator(lm, [prompt(), prompt(shift=3)], 0)
    ids = prompt()
    return {
        "exact_jacobian": lambda: exact_jacobian(lm, ids),
        "corpus_operator": lambda: corpus_operator(lm, [ids], 0).matmat(VECTORS),
        "matmat": lambda: op.matmat(VECTORS),
        "rmatmat": lambda: op.rmatmat(VECTORS),
        "nested_actions": lambda: nested_actions(lm, [ids], 0, VECTORS.T, [1])[1],
        "future_sum_jacobian": lambda: future_sum_jacobian(lm, ids),
        "jacobian_sum": lambda: jacobian_sum(lm, [ids], [0, 2], start=0, stop=1),
        "check_derivatives": lambda: check_derivatives(lm, ids, [0, 2]),
    }


@contextmanager
def switched(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def default_dtype(dtype):
    return switched(torch.get_default_dtype, torch.set_default_dtype, dtype)


def matmul_precision(name):
    return switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, name)


@contextmanager
def mkldnn_in_bf16():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"


REFUSED_MODES = {
    "autocast bfloat16": (lambda: torch.autocast("cpu", torch.bfloat16), "autocast to bfloat16 is on for cpu; leave"),
    "autocast float16": (lambda: torch.autocast("cpu", torch.float16), "autocast to float16 is on for cpu; leave"),
    "products in bf16": (lambda: matmul_precision("medium"), "float32 products are taken in bf16; set torch.backends"),
    "products in tf32": (lambda: matmul_precision("high"), "float32 products are taken in tf32; set torch.backends"),
    "products of one backend": (mkldnn_in_bf16, "float32 products are taken in bf16"),
    "inference mode": (torch.inference_mode, "zero under torch.inference_mode; leave it first"),
    "anomaly detection": (torch.autograd.detect_anomaly, "fail under anomaly detection; switch it off first"),
    "a dual level": (torch.autograd.forward_ad.dual_level, "inside torch.func or forward-mode differentiation"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("mode", REFUSED_MODES)
def test_modes_that_change_derivatives_are_refused_by_every_entry(mode):
    switch, message = REFUSED_MODES[mode]
    for name, entry in entries(tiny_model()).items():
        with switch(), pytest.raises(UnsupportedModel, match=message) as caught:
            entry()
        assert "\n" not in str(caught.value), name


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_function_transforms_are_refused_by_every_entry(transform):
    for entry in entries(tiny_model()).values():

        def inside(x, entry=entry):
            entry()
            return x.sum()

        with pytest.raises(UnsupportedModel, match="inside torch.func or forward-mode differentiation"):
            if transform == "jvp":
                torch.func.jvp(inside, (torch.ones(2),), (torch.ones(2),))
            else:
                getattr(torch.func, transform)(inside)(torch.ones(2))


@contextmanager
def gradients_on(lm):
    lm.model.requires_grad_(True)
    yield
    assert all(parameter.grad is None for parameter in lm.model.parameters())


HARMLESS = {
    "float64 by default": lambda lm: default_dtype(torch.float64),
    "bfloat16 by default": lambda lm: default_dtype(torch.bfloat16),
    "no device by default": lambda lm: torch.device("meta"),
    "deterministic": lambda lm: switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "parameters that require gradients": gradients_on,
    "no_grad": lambda lm: torch.no_grad(),
    "one autograd thread": lambda lm: torch.autograd.set_multithreading_enabled(False),
    "saved on the CPU": lambda lm: torch.autograd.graph.save_on_cpu(),
    "autocast that is off": lambda lm: torch.autocast("cpu", torch.bfloat16, enabled=False),
}


@pytest.mark.parametrize("mode", HARMLESS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_modes_that_change_nothing_change_no_bit(name, mode):
    lm = tiny_model(name)
    calls = entries(lm)
    expected = {entry: call() for entry, call in calls.items()}
    with HARMLESS[mode](lm):
        found = {entry: call() for entry, call in calls.items()}
    for entry, value in found.items():
        if value is not None:
            assert torch.equal(value, expected[entry]) and not value.requires_grad, entry


# --- the model ------------------------------------------------------------------------------------------------------


def compiled_forward(module):
    module.forward = torch.compile(module.forward, backend="eager")


COMPILED = {
    "model": lambda lm: lm.model.compile(backend="eager"),
    "blocks": lambda lm: [block.compile(backend="eager") for block in lm.layout.blocks],
    "forward of one MLP": lambda lm: compiled_forward(lm.layout.mlps[1]),
}


@pytest.mark.parametrize("what", COMPILED)
def test_compiled_models_are_refused_by_every_entry(what):
    lm = tiny_model()
    calls = entries(lm)
    COMPILED[what](lm)
    for entry in calls.values():
        with pytest.raises(UnsupportedModel, match=r"submodule '[\w.]+' is compiled.*without torch.compile"):
            entry()


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_backward_hooks_are_refused_by_every_entry(kind, everywhere):
    """One that doubles gradients changes a Jacobian by half, and no forward shows it."""
    lm = tiny_model()
    calls = entries(lm)
    if everywhere:
        handle = getattr(torch.nn.modules.module, kind.replace("register", "register_module"))(lambda *_: None)
    else:
        handle = getattr(lm.layout.mlps[1], kind)(lambda *_: None)
    try:
        for entry in calls.values():
            with pytest.raises(UnsupportedModel, match="backward hook.* can change derivatives; remove it"):
                entry()
    finally:
        handle.remove()
    for entry in calls.values():
        entry()


FORWARD_HOOKS = {
    "observes": lambda _module, _args, _output: None,
    "doubles": lambda _module, _args, output: 2 * output,
    "detaches": lambda _module, _args, output: output.detach(),
    "adds to every token": lambda _module, _args, output: output + 1,
    "adds to one token": lambda _module, _args, output: torch.cat(
        [output[:, :5], output[:, 5:6] + 30, output[:, 6:]], dim=1
    ),
}


@pytest.mark.parametrize("kind", FORWARD_HOOKS)
def test_forward_hooks_of_others_are_part_of_the_function(kind):
    lm = tiny_model()
    lm.layout.mlps[1].register_forward_hook(FORWARD_HOOKS[kind])
    expected = full_sequence_jacobian(lm, prompt())
    assert relative(exact_jacobian(lm, prompt()) - expected, expected) < 1e-5
    found = corpus_operator(lm, [prompt()], 0).matmat(VECTORS)
    assert relative(found - expected[0].double() @ VECTORS, found) < 1e-5
    check_derivatives(lm, prompt(), [0])


COUNTING = {
    "last token": lambda _module, _args, output: torch.cat([output[:, :-1], output[:, -1:] + 3], dim=1),
    "mean of tokens": lambda _module, _args, output: output + output.mean(1, keepdim=True),
}


@pytest.mark.parametrize("kind", COUNTING)
def test_hooks_that_count_positions_are_refused_where_one_token_stands_for_the_prompt(kind):
    lm = tiny_model()
    lm.layout.mlps[1].register_forward_hook(COUNTING[kind])
    message = r"h\^\d of the last token alone is not that of the whole prompt of 24 tokens; hooks on it may count"
    for call in (
        lambda: exact_jacobian(lm, prompt()),
        lambda: corpus_operator(lm, [prompt()], 0).matmat(VECTORS),
        lambda: check_derivatives(lm, prompt(), [0]),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            call()


def test_the_sum_over_positions_holds_under_hooks_that_mix_them():
    """By its definition: with V = 4..T-2, one output coordinate at a time over the whole prompt."""
    from sparse_control.models.stream import first_input_as_leaf, full_stream

    lm, skip = tiny_model(), 4
    lm.layout.mlps[1].register_forward_hook(COUNTING["mean of tokens"])
    found = future_sum_jacobian(lm, prompt(), [0], skip_first=skip)[0]
    with torch.enable_grad(), first_input_as_leaf(lm):
        stream = full_stream(lm, prompt()[None])
    for row in range(0, WIDTH, 7):
        target = stream[-1][0, skip:-1, row].sum()
        (gradient,) = torch.autograd.grad(target, stream[0], retain_graph=True)
        expected = gradient[0, skip:-1].mean(0)
        assert relative(found[row] - expected, expected) < 1e-4


def test_threads_take_turns_on_a_model():
    """Hooks of one would see the forwards of the other."""
    from concurrent.futures import ThreadPoolExecutor

    lm = tiny_model()
    prompts = [prompt(shift=shift) for shift in range(4)]
    calls = [
        call
        for ids in prompts
        for call in (
            lambda ids=ids: exact_jacobian(lm, ids),
            lambda ids=ids: future_sum_jacobian(lm, ids),
            lambda ids=ids: corpus_operator(lm, [ids], 1).rmatmat(VECTORS),
        )
    ]
    expected = [call() for call in calls]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda call: call(), calls))
    for one, other in zip(found, expected):
        assert torch.equal(one, other)


def test_prompts_beyond_the_models_positions_are_refused_by_name():
    lm = tiny_model("gpt2")  # 64 learned positions
    short, long = prompt(64), prompt(65)
    assert exact_jacobian(lm, short, [2]).shape == (1, WIDTH, WIDTH)
    for call, name in (
        (lambda: exact_jacobian(lm, long), "input_ids"),
        (lambda: future_sum_jacobian(lm, long), "input_ids"),
        (lambda: check_derivatives(lm, long, [0]), "input_ids"),
        (lambda: corpus_operator(lm, [short, long], 0), r"corpus_ids\[1\]"),
        (lambda: nested_actions(lm, [short, long], 0, VECTORS.T, [2]), r"corpus_ids\[1\]"),
        (lambda: jacobian_sum(lm, [short, long], [0], start=1, stop=2), "corpus prompt 1: input_ids"),
    ):
        with pytest.raises(ValueError, match=f"^{name}.*65 tokens, beyond the 64"):
            call()
