"""Hooks act in every forward of their own model and thread, once each, or raise."""

import asyncio
import copy
import threading

import pytest
import torch

from sparse_control.errors import InputError, UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site, add_at_sites
from tests.support.pairs import hook_count
from tests.support.tiny import WIDTH, prompt, tiny_model

IDS = prompt(8)[None]
SITE = Site("resid", 1)
VECTOR = 3 * torch.sin(torch.arange(WIDTH))


@pytest.fixture
def lm():
    return tiny_model()


@torch.no_grad()
def logits(model, **arguments):
    return model(**({"input_ids": IDS, "use_cache": False} | arguments)).logits[:, -1]


def patching(lm, factor=1.0):
    return add_at_sites(lm, {SITE: factor * VECTOR}, length=8)


def expected(lm, factor=1.0):
    with patching(lm, factor):
        return logits(lm.model)


# --- code that passes hooks over --------------------------------------------------------------------------------------


def test_what_was_compiled_or_traced_before_is_noticed(lm):
    compiled = torch.compile(lm.model, backend="eager")
    traced = torch.jit.trace(lambda ids: lm.model(input_ids=ids, use_cache=False).logits, IDS, check_trace=False)
    logits(compiled)
    for run in (lambda: logits(compiled), lambda: traced(IDS)):
        with pytest.raises(InputError, match="no forward of the model ran"):
            with patching(lm):
                run()
    assert hook_count(lm) == 0


@pytest.mark.parametrize("where", ["whole", "wrapped", "block", "part of a block", "forward"])
def test_compiled_modules_are_refused_before_anything_runs(lm, where):
    if where == "wrapped":
        lm = LanguageModel.wrap(torch.compile(lm.model, backend="eager"))
    elif where == "forward":
        lm.layout.mlps[0].forward = torch.compile(lm.layout.mlps[0].forward, backend="eager")
    else:
        module = {"whole": lm.model, "block": lm.layout.blocks[1], "part of a block": lm.layout.mlps[2]}[where]
        module.compile(backend="eager")
    with pytest.raises(UnsupportedModel, match="is compiled, and compiled code passes hooks over; load"):
        with patching(lm):
            pass
    assert hook_count(lm) == 0


def test_compiling_within_the_context_is_right_and_leaves_nothing(lm):
    plain, want = logits(lm.model), expected(lm)
    torch._dynamo.reset()  # what it compiled of another model of the class would run, which is noticed, as above
    compiled = torch.compile(lm.model, backend="eager")
    for _ in range(2):
        with patching(lm):
            assert torch.allclose(logits(compiled), want, atol=1e-5)
        assert torch.allclose(logits(compiled), plain, atol=1e-5)
    with pytest.raises(UnsupportedModel, match="cannot be compiled or traced while it is hooked"):
        with patching(lm):
            torch.jit.trace(lambda ids: lm.model(input_ids=ids, use_cache=False).logits, IDS, check_trace=False)


# --- somebody else's forwards -----------------------------------------------------------------------------------------


def test_two_threads_are_right_or_refused_and_the_model_stays_whole(lm):
    want = {factor: expected(lm, factor) for factor in (1.0, 2.0)}
    plain, start, outcomes = logits(lm.model), threading.Barrier(2), []

    def work(factor):
        start.wait()
        for _ in range(15):
            try:
                with patching(lm, factor):
                    found = logits(lm.model)
            except InputError:
                outcomes.append("refused")
            else:
                outcomes.append("right" if torch.allclose(found, want[factor], atol=1e-5) else "wrong")

    threads = [threading.Thread(target=work, args=(factor,)) for factor in want]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 30 and "wrong" not in outcomes
    assert hook_count(lm) == 0 and torch.equal(logits(lm.model), plain)


def test_a_forward_of_another_thread_is_refused_there_and_told_here(lm):
    seen = []

    def stranger():
        try:
            logits(lm.model)
        except InputError as error:
            seen.append(str(error))

    with pytest.raises(InputError, match="another thread or asynchronous task ran the model"):
        with patching(lm):
            own = logits(lm.model)
            thread = threading.Thread(target=stranger)
            thread.start()
            thread.join()
    assert torch.equal(own, expected(lm)) and "another thread" in seen[0]


def test_asynchronous_tasks_do_not_get_each_others_patches(lm):
    want = {factor: expected(lm, factor) for factor in (1.0, 2.0)}

    async def task(factor):
        try:
            with patching(lm, factor):
                await asyncio.sleep(0)
                found = logits(lm.model)
        except InputError:
            return "refused"
        return "right" if torch.equal(found, want[factor]) else "wrong"

    async def together():
        return await asyncio.gather(*map(task, want))

    assert "wrong" not in asyncio.run(together())
    assert asyncio.run(task(2.0)) == "right" and hook_count(lm) == 0


def test_a_module_that_two_models_share_is_hooked_in_one(lm):
    other = tiny_model(seed=1)
    other.model.model.layers[1] = lm.layout.blocks[1]
    with pytest.raises(InputError, match="model.layers.1 ran outside a forward of the hooked model"):
        with patching(lm):
            logits(other.model)


def test_a_module_that_is_two_layers_is_refused():
    lm = tiny_model()
    lm.model.model.layers[2] = lm.model.model.layers[1]
    with pytest.raises(InputError, match="model.layers.1 ran twice in a forward"):
        with patching(LanguageModel.wrap(lm.model)):
            logits(lm.model)


def test_a_block_that_is_left_out_is_noticed(lm):
    lm.model.model.config.num_hidden_layers = 1
    with pytest.raises(InputError, match="model.layers.1 did not run in a forward"):
        with patching(lm):
            logits(lm.model)


def test_a_copy_made_within_the_context_is_refused_and_works_afterwards(lm):
    with patching(lm):
        twin = copy.deepcopy(lm.model)
        assert torch.equal(logits(lm.model), expected_alone(lm))
        with pytest.raises(InputError, match="a copy of the model was made while it was hooked"):
            logits(twin)
    assert torch.equal(logits(twin), logits(lm.model))


def expected_alone(lm):
    """The patched logits of an equal model."""
    return expected(tiny_model())


def test_training_mode_begun_within_the_context_is_refused(lm):
    with pytest.raises(UnsupportedModel, match="training mode"):
        with patching(lm):
            lm.layout.mlps[0].train()
            logits(lm.model)


def test_a_context_in_which_a_forward_was_refused_ends_quietly(lm):
    with patching(lm):
        with pytest.raises(ValueError, match="the patch is for forwards of 8 tokens, got one of 5"):
            logits(lm.model, input_ids=IDS[:, :5])
    assert hook_count(lm) == 0


def test_wrapped_and_embedded_forwards_are_patched(lm):
    want = expected(lm)
    with patching(lm):
        assert torch.equal(logits(torch.nn.DataParallel(lm.model)), want)
        embeddings = lm.model.get_input_embeddings()(IDS)
        assert torch.equal(logits(lm.model, input_ids=None, inputs_embeds=embeddings), want)
        assert torch.equal(lm.model.forward(input_ids=IDS, use_cache=False).logits[:, -1], want)
        lm.model.model(input_ids=IDS)
