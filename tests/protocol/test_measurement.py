"""The six-axis measurement against a slow reference: one hook, one full forward per dose and pair."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sparse_control.errors import UnsupportedModel
from sparse_control.metrics.preservation import kl_divergence
from sparse_control.models.sites import Site, all_sites, site_width
from sparse_control.protocol import Intervention, measure, patched
from sparse_control.protocol.effects import effect_columns, first_order_effects, measured_effects
from sparse_control.protocol.feedback import FeedbackPlan, track_all
from sparse_control.protocol.measurement import DOSES
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import CachedPrompts, Prompts
from sparse_control.protocol.splits import Split
from tests.support.pairs import hook_count, make_pairs, plain_logits, plain_margin
from tests.support.tiny import CONFIGS, N_LAYERS, prompt, tiny_model

PAIRS, UNSEEN = make_pairs(4), make_pairs(3, first=20)
PLAN = FeedbackPlan(targets=(0.1, -0.4, 30.0), gain=0.3, tolerance=0.01, readouts=5)
LAST_SITES = (Site("head", 0, 2), Site("mlp", 1), Site("resid", 1))
EARLY_SITES = (Site("head", 0, 2, position=4), Site("resid", 1, position=-2), Site("mlp", 2))


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


@pytest.fixture(scope="module")
def panel(lm):
    return OffTargetPanel(("a", "b", "c", "d", "e"), CachedPrompts(lm, [prompt(8 + i, i).tolist() for i in range(5)]))


def intervention(lm, sites, rule: str) -> Intervention:
    generator = torch.Generator().manual_seed(0)
    vectors = tuple(torch.randn(site_width(lm, site), generator=generator) for site in sites)
    return Intervention(sites, (0.7, -1.2, 0.4), vectors if rule == "F" else None)


def reference_margins(lm, chosen, pairs, dose, side="source") -> list[float]:
    values = []
    for pair in pairs:
        with patched(lm, chosen, dose=dose, pair=pair):
            values.append(plain_margin(lm, pair, side))
    return values


@pytest.mark.parametrize("rule", ["P", "F"])
@pytest.mark.parametrize("sites", [LAST_SITES, EARLY_SITES], ids=["last", "early"])
def test_every_axis_equals_the_slow_way(lm, sites, rule):
    chosen = intervention(lm, sites, rule)
    record = measure(lm, chosen, PAIRS, UNSEEN, feedback=PLAN, refit_strengths=(1.0, 0.5, -0.3))
    evaluated = record["evaluate"]
    assert evaluated["pairs"] == [pair.id for pair in PAIRS] and evaluated["doses"] == list(DOSES)
    for side in ("source", "target"):
        assert evaluated[side] == pytest.approx([plain_margin(lm, pair, side) for pair in PAIRS], abs=1e-4)
    for dose, row in zip(DOSES, evaluated["patched"]):
        assert row == pytest.approx(reference_margins(lm, chosen, PAIRS, dose), abs=1e-4)
    assert evaluated["patched"][DOSES.index(0.0)] == evaluated["source"]
    assert record["reversal"]["reversed"] == pytest.approx(
        reference_margins(lm, chosen, PAIRS, -1.0, "target"), abs=1e-4
    )
    for endpoint, target in zip(record["feedback"]["endpoints"], PLAN.targets):
        (slow,) = track_all(
            lambda doses: [float(np.mean(reference_margins(lm, chosen, PAIRS, dose))) for dose in doses],
            replace(PLAN, targets=(target,)),
        )
        assert endpoint["readouts"] == len(slow.steps) and endpoint["stop_reason"] == slow.stop_reason
        assert endpoint["trajectory"] == [pytest.approx(step, abs=1e-3) for step in slow.steps]
        assert endpoint["trajectory"][-1] == [endpoint["terminal_dose"], endpoint["terminal_margin"]]
    refit = Intervention(sites, (1.0, 0.5, -0.3), chosen.directions)
    assert record["reuse"]["refit"] == pytest.approx(reference_margins(lm, refit, UNSEEN, 1.0), abs=1e-4)
    assert record["reuse"]["refit_strengths"] == [1.0, 0.5, -0.3]
    frozen = chosen
    if rule == "P":
        contrasts = Split.read(lm, PAIRS, sites).contrasts
        frozen = Intervention(sites, chosen.strengths, tuple(contrasts[site].double().mean(0) for site in sites))
    assert record["reuse"]["frozen"] == pytest.approx(reference_margins(lm, frozen, UNSEEN, 1.0), abs=1e-4)
    assert hook_count(lm) == 0
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("rule", ["P", "F"])
def test_plain_and_cached_paths_agree(lm, rule):
    chosen = intervention(lm, LAST_SITES, rule)
    cached, plain = (
        measure(lm, chosen, PAIRS, UNSEEN, feedback=PLAN, reader=reader) for reader in (CachedPrompts, Prompts)
    )
    for section in ("evaluate", "reversal", "reuse", "norms"):
        for name, values in cached[section].items():
            if name not in ("pairs", "doses"):
                assert np.allclose(values, plain[section][name], atol=1e-4), (section, name)


@pytest.mark.parametrize("rule", ["P", "F"])
def test_preservation_is_the_divergence_on_unrelated_prompts(lm, panel, rule):
    chosen = intervention(lm, LAST_SITES, rule)
    record = measure(lm, chosen, PAIRS, off_target=panel)
    assert record["preservation"]["prompts"] == list(panel.ids)
    for index, value in enumerate(record["preservation"]["kl"]):
        ids = tuple(panel.prompts.ids[index].tolist())
        applied = chosen
        if rule == "P":  # prompt j takes the contrast of evaluation pair j mod N
            contrasts = Split.read(lm, PAIRS[index % 4 :][:1], LAST_SITES).contrasts
            applied = Intervention(LAST_SITES, chosen.strengths, tuple(contrasts[site][0] for site in LAST_SITES))
        with patched(lm, applied):
            after = plain_logits(lm, ids)
        assert value == pytest.approx(kl_divergence(plain_logits(lm, ids).numpy(), after.numpy()), abs=1e-5)
        assert value > 0


def test_last_residual_site_is_exact(lm):
    record = measure(lm, Intervention((Site("resid", N_LAYERS - 1),), (1.0,)), PAIRS)
    evaluated = record["evaluate"]
    nominal = np.array(evaluated["patched"][DOSES.index(1.0)])
    gap = np.linalg.norm(np.subtract(evaluated["target"], evaluated["source"]))
    assert np.linalg.norm(nominal - evaluated["target"]) / gap < 1e-3
    assert np.allclose(record["reversal"]["reversed"], evaluated["source"], atol=1e-4)


def test_parts_not_asked_for_are_none(lm):
    record = measure(lm, intervention(lm, LAST_SITES, "F"), PAIRS)
    assert (record["feedback"], record["preservation"], record["reuse"]) == (None, None, None)


def test_an_intervention_without_sites_changes_nothing(lm, panel):
    record = measure(lm, Intervention((), ()), PAIRS, UNSEEN, off_target=panel, feedback=PLAN)
    assert all(row == record["evaluate"]["source"] for row in record["evaluate"]["patched"])
    assert record["preservation"]["kl"] == [0.0] * 5
    assert record["reuse"]["frozen"] == record["reuse"]["source"]


def test_zero_strengths_diverge_by_nothing(lm, panel):
    record = measure(lm, Intervention(LAST_SITES, (0.0, 0.0, 0.0)), PAIRS, off_target=panel)
    assert max(record["preservation"]["kl"]) < 1e-9


def test_norms_give_the_dose_its_unit(lm):
    chosen = intervention(lm, LAST_SITES, "P")
    norms = measure(lm, chosen, PAIRS)["norms"]
    split = Split.read(lm, PAIRS, LAST_SITES, Prompts)
    for index, site in enumerate(LAST_SITES):
        assert norms["direction"][index] == pytest.approx(float(split.contrasts[site].norm(dim=1).mean()), rel=1e-4)
        expected = float(split.source.activations[site].norm(dim=1).mean())
        assert norms["activation"][index] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evaluate": ()}, "evaluate: none given"),
        ({"evaluate": PAIRS[0]}, r"evaluate must be a sequence of pairs, got one pair; use \(pair,\)"),
        ({"evaluate": None}, "evaluate must be a sequence of pairs, such as a tuple, got NoneType"),
        ({"evaluate": iter(PAIRS)}, "evaluate must be a sequence of pairs"),
        ({"evaluate": ["text"]}, r"evaluate\[0\] must be a Pair, got str"),
        ({"reuse": PAIRS[0]}, "reuse must be a sequence of pairs, got one pair"),
        ({"doses": 1.0}, "doses must be a sequence, got 1.0"),
        ({"doses": None}, "doses must be a sequence, got None"),
        ({"doses": (0.0, 0.5)}, "doses must hold 0 and 1"),
        ({"doses": (0.0, 1.0, math.nan)}, r"doses\[2\] must be a finite number"),
        ({"doses": (0, 1, 10**400)}, r"doses\[2\] must be a finite number"),
        ({"intervention": Intervention((Site("mlp", 9),), (1.0,))}, "layer 9 is outside"),
        ({"intervention": Intervention((Site("mlp", 0),), (1.0,), (torch.ones(3),))}, "direction has width 3"),
        ({"intervention": Intervention((Site("mlp", 0, position=8),), (1.0,))}, "position 8 is outside a prompt of 7"),
    ],
)
def test_bad_calls(lm, change, message):
    good = {"intervention": intervention(lm, LAST_SITES, "P"), "evaluate": PAIRS}
    with pytest.raises(ValueError, match=message):
        measure(lm, **good | change)
    assert hook_count(lm) == 0


def test_a_readout_that_is_not_finite_names_the_pair(lm):
    huge = Intervention((Site("resid", 2),), (1.0,), (torch.full((32,), 1e38),))
    with pytest.raises(ValueError, match="pair tiny/0: the readout is not finite"):
        measure(lm, Intervention(huge.support, (1e30,), huge.directions), PAIRS)


def test_measured_effects_are_single_patches(lm):
    sites = all_sites(lm, ("head", "mlp"))
    split = Split.read(lm, PAIRS, sites)
    effects = measured_effects(split, sites)
    assert effects.shape == (4, 15)
    for column, site in list(enumerate(sites))[::4]:
        slow = np.subtract(reference_margins(lm, Intervention((site,), (1.0,)), PAIRS, 1.0), split.y_source)
        assert effects[:, column] == pytest.approx(slow, abs=1e-4)


def test_first_order_effects_are_the_slope_at_zero(lm):
    sites = all_sites(lm, ("head", "mlp"))
    split = Split.read(lm, PAIRS, sites)
    effects = first_order_effects(split, sites)
    for column, site in list(enumerate(sites))[::5]:
        up, down = (reference_margins(lm, Intervention((site,), (1.0,)), PAIRS, dose) for dose in (0.01, -0.01))
        assert effects[:, column] == pytest.approx(np.subtract(up, down) / 0.02, abs=2e-3)


def test_effects_of_the_last_block_are_linear_up_to_the_norm(lm):
    """Both kinds are compared on drawn sites, and the draw is the generator's alone."""
    sites = all_sites(lm, ("head", "mlp"))
    split = Split.read(lm, PAIRS, sites)
    for kind in ("first_order", "measured"):
        first, second = (effect_columns(split, sites, kind, 6, np.random.default_rng(5)) for _ in range(2))
        assert first.check_sites == 6 and first.check_pearson == second.check_pearson
        assert first.kind == kind and 0.5 < first.check_pearson <= 1.0
    assert effect_columns(split, sites, "measured", 99, np.random.default_rng(0)).check_sites == 15


def test_effects_work_at_any_position(lm):
    sites = (Site("mlp", 0, position=4), Site("resid", 1, position=-2))
    split = Split.read(lm, PAIRS, sites)
    slow = np.subtract(reference_margins(lm, Intervention(sites[:1], (1.0,)), PAIRS, 1.0), split.y_source)
    assert measured_effects(split, sites)[:, 0] == pytest.approx(slow, abs=1e-4)
    assert first_order_effects(split, sites).shape == (4, 2)


@pytest.mark.parametrize("part", ["", "transformer.h.1.attn.resid_dropout"])
def test_a_model_in_training_mode_is_refused(part):
    lm = tiny_model("gpt2")
    chosen = Intervention((LAST_SITES[1],), (1.0,), (torch.ones(32),))
    lm.model.get_submodule(part).train()
    with pytest.raises(UnsupportedModel, match="training mode; call model.eval()"):
        measure(lm, chosen, PAIRS)
    with pytest.raises(UnsupportedModel, match="training mode"), patched(lm, chosen):
        pass
    lm.model.eval()
    assert measure(lm, chosen, PAIRS)["evaluate"]["source"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_ids": (3, 4, 100), "target_ids": (3, 5, 100)}, r"source_ids must hold ids in 0..99, got 3..100"),
        ({"source_ids": (3, 4, 7), "target_ids": (3, 100, 7)}, r"target_ids must hold ids in 0..99"),
        ({"source_answer_ids": (100,)}, r"source_answer_ids must be an integer in 0..99, got 100"),
    ],
)
def test_pairs_of_another_vocabulary_are_refused_before_any_forward(lm, change, message):
    pair = replace(PAIRS[0], source_ids=(3, 4, 7), target_ids=(3, 5, 7), positions=(1,))
    chosen = Intervention((Site("mlp", 1),), (1.0,))
    assert measure(lm, chosen, [pair])["evaluate"]["pairs"] == [pair.id]
    foreign = replace(pair, **change)
    calls = []
    handle = lm.model.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        for run in (lambda: measure(lm, chosen, [foreign]), lambda: measure(lm, chosen, [pair], [foreign])):
            with pytest.raises(ValueError, match=f"pair tiny/0: .*{message}"):
                run()
        with pytest.raises(ValueError, match=f"pair tiny/0: .*{message}"), patched(lm, chosen, pair=foreign):
            pass
    finally:
        handle.remove()
    assert calls == []


def test_prompts_longer_than_learned_positions_are_refused():
    gpt2, llama = tiny_model("gpt2"), tiny_model("llama")
    chosen = Intervention((Site("mlp", 1),), (1.0,))
    assert measure(gpt2, chosen, make_pairs(1, (64,)))["evaluate"]["source"]
    with pytest.raises(ValueError, match="pair tiny/0: source_ids: 65 tokens, beyond the 64 positions it has"):
        measure(gpt2, chosen, make_pairs(1, (65,)))
    assert measure(llama, chosen, make_pairs(1, (65,)))["evaluate"]["source"]  # rotary


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_but_gpt2_has_rotary_positions(name):
    rotary = getattr(CONFIGS[name]().get_text_config(), "rope_parameters", None) is not None
    assert rotary == (name != "gpt2")


def test_an_unrelated_prompt_beyond_learned_positions_is_named():
    words = SimpleNamespace(id="long", text="a " * 65)
    lm = replace(tiny_model("gpt2"), tokenizer=lambda text: {"input_ids": [5] * len(text.split())})
    with pytest.raises(ValueError, match="prompt long: 65 tokens, beyond the 64 positions it has"):
        OffTargetPanel.read(lm, [words])
    assert OffTargetPanel.read(lm, [SimpleNamespace(id="short", text="a " * 64)]).ids == ("short",)
