"""What patching must do exactly: reach, undo, leave alone; and faults other tools had there (numbers of pitfalls)."""

import json

import numpy as np
import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.metrics import over_seeds
from sparse_control.metrics.reachability import rel_tar
from sparse_control.models import LanguageModel
from sparse_control.models.sites import Site, all_sites, capture_sites, parse_site, site_width
from sparse_control.models.stream import unwrap
from sparse_control.protocol import Intervention, measure, patched
from sparse_control.protocol.effects import measured_effects
from sparse_control.protocol.feedback import FeedbackPlan
from sparse_control.protocol.panels.pair import Pair
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import read_prompts
from sparse_control.protocol.readable import check_positions
from sparse_control.protocol.readouts import draw_readouts
from sparse_control.protocol.splits import Split, margins
from tests.support.pairs import hook_count, make_pair, make_pairs, plain_logits, plain_margin
from tests.support.tiny import CONFIGS, N_LAYERS, prompt, tiny_model

LAST = Site("resid", N_LAYERS - 1)
MIXED = (Site("head", 0, 2, position=4), Site("mlp", 1), Site("resid", 1, position=-2))
UNEQUAL = make_pairs(6, lengths=(9, 7, 12))


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


def drawn(lm: LanguageModel, sites, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(site_width(lm, site), generator=generator) for site in sites)


# --- reach, undo, leave alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_the_last_residual_site_reaches_the_target_on_every_architecture(name):
    lm = tiny_model(name)
    record = measure(lm, Intervention((LAST,), (1.0,)), UNEQUAL)
    evaluated, nominal = record["evaluate"], record["evaluate"]["doses"].index(1.0)
    assert rel_tar(evaluated["source"], evaluated["target"], evaluated["patched"][nominal]) <= 1e-3
    assert rel_tar(evaluated["target"], evaluated["source"], record["reversal"]["reversed"]) <= 1e-3
    assert evaluated["wrong_way"][nominal] == 0.0
    assert evaluated["patched"][evaluated["doses"].index(0.0)] == evaluated["source"], "dose 0 is the unpatched model"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_site_is_alive_on_every_architecture(name):
    lm, pair = tiny_model(name), make_pair(0)
    before = plain_logits(lm, pair.source_ids)
    for site in (Site("head", 1, lm.n_heads - 1), Site("mlp", 2), Site("resid", 0), Site("resid", 1, position=5)):
        with patched(lm, Intervention((site,), (1.0,), drawn(lm, (site,))), pair=pair):
            assert (plain_logits(lm, pair.source_ids) - before).abs().max() > 1e-4, site.name
        assert torch.equal(plain_logits(lm, pair.source_ids), before)
    assert hook_count(lm) == 0


@pytest.mark.parametrize(
    "site", [Site("head", 1, 3), Site("mlp", 0, position=4), Site("resid", 1, position=-3), LAST], ids=lambda s: s.name
)
def test_there_and_back_is_the_unpatched_model(lm, site):
    pair, vectors = make_pair(0), drawn(lm, (site,))
    before = plain_logits(lm, pair.source_ids)
    there, back = (Intervention((site,), (strength,), vectors) for strength in (1.0, -1.0))
    with patched(lm, there, pair=pair), patched(lm, back, pair=pair):
        assert torch.allclose(plain_logits(lm, pair.source_ids), before, atol=1e-5)
    assert torch.equal(plain_logits(lm, pair.source_ids), before)


@pytest.mark.parametrize("rule", ["P", "F"])
def test_together_or_alone_gives_the_same_readouts(lm, rule):
    """Prompts of unequal length in one call and each one alone; doses together and apart."""
    chosen = Intervention(MIXED, (0.7, -1.2, 0.4), drawn(lm, MIXED) if rule == "F" else None)
    together = measure(lm, chosen, UNEQUAL)
    for place, pair in enumerate(UNEQUAL):
        alone = measure(lm, chosen, [pair], doses=(0.0, 1.0, 1.5))
        for dose, row in zip(alone["evaluate"]["doses"], alone["evaluate"]["patched"]):
            index = together["evaluate"]["doses"].index(dose)
            assert row[0] == pytest.approx(together["evaluate"]["patched"][index][place], abs=1e-4)
        assert alone["reversal"]["reversed"][0] == pytest.approx(together["reversal"]["reversed"][place], abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("site", [Site("mlp", 1), Site("resid", 0, position=-3)], ids=lambda site: site.name)
def test_padded_by_hand_agrees_on_both_sides(lm, side, site):
    """24: a batch padded by hand, with its mask, positions and hook written out here, against unpadded patches."""
    (vector,) = drawn(lm, (site,))
    ours = measure(lm, Intervention((site,), (1.5,), (vector,)), UNEQUAL)["evaluate"]
    longest = max(len(pair.source_ids) for pair in UNEQUAL)
    ids, mask, ends = [], [], []
    for pair in UNEQUAL:
        padding = [0] * (longest - len(pair.source_ids))
        real = [1] * len(pair.source_ids)
        ids.append([*padding, *pair.source_ids] if side == "left" else [*pair.source_ids, *padding])
        mask.append([*padding, *real] if side == "left" else [*real, *padding])
        ends.append(longest - 1 if side == "left" else len(real) - 1)
    mask, rows = torch.tensor(mask), torch.arange(len(UNEQUAL))

    def add(_module, _args, output):
        changed = unwrap(output).clone()
        changed[rows, torch.tensor(ends) + 1 + site.position] += 1.5 * vector
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    module = {"mlp": lm.layout.mlps, "resid": lm.layout.blocks}[site.component][site.layer]
    handle = module.register_forward_hook(add)
    try:
        with torch.no_grad():
            logits = lm.model(
                input_ids=torch.tensor(ids), attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
            ).logits[rows, torch.tensor(ends)]
    finally:
        handle.remove()
    assert ours["patched"][ours["doses"].index(1.0)] == pytest.approx(margins(logits[:, None], UNEQUAL)[:, 0], abs=1e-4)


def test_a_steering_vector_of_ones_own_goes_through_every_axis(lm):
    """A residual-stream vector at a middle layer, as `measure` takes it from anyone, against patches one by one."""
    site, pairs, unseen = Site("resid", 1), make_pairs(4), make_pairs(3, first=20)
    vector = torch.sin(torch.arange(lm.width) * 0.7)
    steering = Intervention((site,), (2.0,), (vector,))
    panel = OffTargetPanel(("a", "b"), read_prompts(lm, [prompt(8).tolist(), prompt(11).tolist()], (site,)))
    plan = FeedbackPlan(targets=(0.5, 1.0), gain=0.5, tolerance=0.05)
    record = measure(lm, steering, pairs, unseen, feedback=plan, off_target=panel)
    for dose, row in zip(record["evaluate"]["doses"], record["evaluate"]["patched"]):
        for pair, value in zip(pairs, row):
            with patched(lm, steering, dose=dose):
                assert value == pytest.approx(plain_margin(lm, pair), abs=1e-4)
    evaluated = record["evaluate"]
    scored = over_seeds.reachability(
        [(evaluated["source"], evaluated["target"], evaluated["patched"][evaluated["doses"].index(1.0)])]
    )
    assert scored["rel_tar_mean"] > 0 and min(record["preservation"]["kl"]) > 0
    assert record["norms"]["direction"] == pytest.approx([float(vector.norm())])
    assert len(record["feedback"]["endpoints"]) == 2 and len(record["reuse"]["frozen"]) == 3
    assert record["reuse"]["frozen"] == record["reuse"]["refit"], "one vector for all, strengths not refitted"
    json.dumps(record, allow_nan=False)


def test_effects_beside_a_support_are_measured_from_there(lm):
    pairs, sites = make_pairs(4), all_sites(lm, ("mlp", "resid"))
    split = Split.read(lm, pairs, sites)
    support, strengths = (Site("mlp", 0), Site("resid", 1)), (0.7, -0.4)
    columns = measured_effects(split, sites, support, strengths)
    for column, site in enumerate(sites):
        for row, pair in enumerate(pairs):
            more = dict(zip(support, strengths))
            with patched(lm, Intervention(support, strengths), pair=pair):
                base = plain_margin(lm, pair)
            more[site] = more.get(site, 0.0) + 1.0
            with patched(lm, Intervention(tuple(more), tuple(more.values())), pair=pair):
                assert columns[row, column] == pytest.approx(plain_margin(lm, pair) - base, abs=1e-4)


def test_draws_together_are_the_draws_one_by_one(lm):
    """Draws of other sites, and of the same sites with directions of their own."""
    split = Split.read(lm, UNEQUAL, all_sites(lm, ("head", "mlp")))
    supports = ((Site("head", 0, 1), Site("mlp", 2)), (Site("mlp", 2),), (Site("head", 1, 0), Site("head", 1, 3)))
    other = split.with_contrasts({supports[1][0]: -2.0 * split.contrasts[supports[1][0]]})
    draws = [
        (Intervention(supports[0], (1.0, -0.5)), split),
        (Intervention(supports[1], (0.7,)), other),
        (Intervention(supports[2], (1.0, 2.0), drawn(lm, supports[2])), split),
    ]
    for found, (chosen, own) in zip(draw_readouts(draws), draws, strict=True):
        alone = measure(lm, chosen, own)
        nominal = alone["evaluate"]["patched"][alone["evaluate"]["doses"].index(1.0)]
        assert found["patched"] == pytest.approx(nominal, abs=1e-4)
        assert found["reversed"] == pytest.approx(alone["reversal"]["reversed"], abs=1e-4)
        assert found["support"] == [site.name for site in chosen.support]
    nothing = draw_readouts([(Intervention((), ()), split)] * 2)
    assert nothing[1]["patched"] == split.y_source.tolist() and draw_readouts([]) == []


# --- mistakes: one line each, and no hook left ------------------------------------------------------------------------

WORDS = {"task": "tiny", "split": "fit", "orientation": "none", "source": "", "target": "",
         "source_answers": ("a",), "target_answers": ("b",)}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lm: parse_site("L01.attention@-1"), "unknown site 'L01.attention@-1'; sites are named like"),
        (lambda lm: Site("attention", 1), "component must be one of head, mlp, resid, got 'attention'"),
        (lambda lm: Site("mlp", -1), "layer must be an integer in 0..2147483647, got -1"),
        (lambda lm: measure(lm, Intervention((Site("mlp", 3),), (1.0,)), UNEQUAL), "layer 3 is outside 0..2"),
        (lambda lm: measure(lm, Intervention((Site("head", 0, 4),), (1.0,)), UNEQUAL), "head 4 is outside 0..3"),
        (
            lambda lm: measure(lm, Intervention((Site("mlp", 0, position=8),), (1.0,)), UNEQUAL),
            "L00.mlp@8: position 8 is outside a prompt of 7 tokens",
        ),
        (
            lambda lm: measure(lm, Intervention((Site("mlp", 0),), (1.0,), (torch.ones(31),)), UNEQUAL),
            "L00.mlp@-1: direction has width 31, the site has 32",
        ),
        (lambda lm: Intervention((LAST,), (float("nan"),)), r"strengths\[0\] must be a finite number, got nan"),
        (
            lambda lm: measure(lm, Intervention((Site("mlp", 0), Site("mlp", 0, position=6)), (1.0, 1.0)), UNEQUAL),
            "sites L00.mlp@-1 and L00.mlp@6 are the same in a prompt of 7 tokens; name it once",
        ),
        (
            lambda lm: measure(lm, Intervention((Site("mlp", 0, position=1),), (1.0,)), UNEQUAL),
            "support L00.mlp@1: the prompts of every pair agree up to there",
        ),
        (
            lambda lm: Pair(id="p", source_ids=(1, 2, 3), target_ids=(1, 4), source_answer_ids=(5,),
                            target_answer_ids=(6,), positions=(1,), **WORDS),
            "pair p: source has 3 tokens and target 2",
        ),
        (lambda lm: measure(lm, Intervention((LAST,), (1.0,)), []), "evaluate: none given; every pair was dropped"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_no_hook(lm, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(lm)
    assert "\n" not in str(caught.value)
    assert hook_count(lm) == 0


def test_one_site_has_one_name():
    check_positions((Site("mlp", 0), Site("mlp", 0, position=6), Site("mlp", 1, position=8)), [9, 12])
    check_positions((Site("head", 0, 0), Site("head", 0, 1, position=8)), [9])
    with pytest.raises(ValueError, match="sites L00.mlp@8 and L00.mlp@-1 are the same in a prompt of 9 tokens"):
        check_positions((Site("mlp", 0, position=8), Site("mlp", 0)), [12, 9])


@pytest.mark.parametrize("with_pair", [True, False])
def test_two_names_of_one_site_are_refused_where_they_are_applied(lm, with_pair):
    pair, sites = make_pair(0), (Site("mlp", 0), Site("mlp", 0, position=8))
    with pytest.raises(ValueError, match="are the same in a prompt of 9 tokens"):
        with patched(lm, Intervention(sites, (1.0, 1.0), drawn(lm, sites)), pair=pair if with_pair else None):
            plain_logits(lm, pair.source_ids)
    assert hook_count(lm) == 0


# --- faults of other tools --------------------------------------------------------------------------------------------


def test_nested_patches_end_one_by_one(lm):
    """4: leaving an inner context takes its own hooks alone."""
    pair, sites = make_pair(0), (Site("mlp", 0), Site("resid", 1))
    outer, inner = (Intervention((site,), (1.0,), drawn(lm, (site,))) for site in sites)
    with patched(lm, outer, pair=pair):
        alone, hooks = plain_logits(lm, pair.source_ids), hook_count(lm)
        with patched(lm, inner, pair=pair):
            assert not torch.equal(plain_logits(lm, pair.source_ids), alone)
        assert torch.equal(plain_logits(lm, pair.source_ids), alone) and hook_count(lm) == hooks
    assert hook_count(lm) == 0


def test_two_models_do_not_know_of_each_other(lm):
    """7: no state outside the model that is patched."""
    other, pair = tiny_model(seed=1), make_pair(0)
    before = plain_logits(other, pair.source_ids)
    with patched(lm, Intervention((LAST,), (1.0,), drawn(lm, (LAST,))), pair=pair):
        assert torch.equal(plain_logits(other, pair.source_ids), before)
        assert not torch.equal(plain_logits(lm, pair.source_ids), plain_logits(tiny_model(), pair.source_ids))


def test_edits_of_one_module_all_count(lm):
    """10: a second edit of a module does not drop the first."""
    pair = make_pair(0)
    sites = (Site("head", 0, 0), Site("head", 0, 3), Site("head", 0, 3, position=5))
    vectors = drawn(lm, sites)
    ids = torch.tensor([pair.source_ids])
    before = capture_sites(lm, ids, sites)
    with patched(lm, Intervention(sites, (1.0, 2.0, 3.0), vectors), pair=pair):
        after = capture_sites(lm, ids, sites)
    for number, (site, vector) in enumerate(zip(sites, vectors), start=1):
        assert torch.allclose(after[site][0] - before[site][0], number * vector, atol=1e-5)


def test_modules_stay_the_same_objects(lm):
    """11 and 18: hooks alone; modules, dtype, mode and configuration are left as they were."""
    modules, config = dict(lm.model.named_modules()), json.dumps(lm.model.config.to_dict(), default=str)
    measure(lm, Intervention(MIXED, (1.0, 1.0, 1.0)), UNEQUAL)
    assert all(module is modules[name] for name, module in lm.model.named_modules())
    assert not lm.model.training and lm.model.dtype == torch.float32
    assert json.dumps(lm.model.config.to_dict(), default=str) == config


def test_the_last_site_is_the_last_block_and_not_the_last_hidden_state():
    """16: `hidden_states[-1]` has been through the final norm."""
    lm, ids = tiny_model(), prompt(9)[None]  # a model of its own: asking for hidden states leaves the library's hooks
    (captured,) = capture_sites(lm, ids, [LAST]).values()
    with torch.no_grad():
        states = lm.model(input_ids=ids, output_hidden_states=True).hidden_states
        assert not torch.allclose(captured, states[-1][:, -1], atol=1e-3)
        assert torch.allclose(lm.layout.final_norm(captured), states[-1][:, -1], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_cast_where_they_are_added(dtype):
    """17: means and readouts in float64, the addition in the activation's own type."""
    lm = tiny_model(dtype=dtype)
    split = Split.read(lm, UNEQUAL, MIXED)
    directions = tuple(split.contrasts[site].double().mean(0) for site in MIXED)
    record = measure(lm, Intervention(MIXED, (0.5, 0.5, 0.5), directions), UNEQUAL)
    values = np.array(record["evaluate"]["patched"])
    assert values.dtype == np.float64 and np.isfinite(values).all()
    assert values[record["evaluate"]["doses"].index(1.0)] != pytest.approx(record["evaluate"]["source"])


def test_what_was_read_before_a_patch_stays_what_it_was(lm):
    """19: captured activations are copies, and patches never write in place."""
    pair = make_pair(0)
    ids = torch.tensor([pair.source_ids])
    before = capture_sites(lm, ids, MIXED)
    copies = {site: value.clone() for site, value in before.items()}
    with patched(lm, Intervention(MIXED, (1.0, 1.0, 1.0), drawn(lm, MIXED)), pair=pair):
        plain_logits(lm, pair.source_ids)
    assert all(torch.equal(before[site], copies[site]) for site in MIXED)


def test_the_readout_is_linear_in_dose_where_the_model_is(lm):
    """20: a patch counts once. At the last block the residual moves by exactly dose times strength times direction."""
    pair, (vector,) = make_pair(0), drawn(lm, (LAST,))
    ids = torch.tensor([pair.source_ids])
    before = capture_sites(lm, ids, [LAST])[LAST]
    for dose in (-1.0, 0.25, 2.0):
        with patched(lm, Intervention((LAST,), (3.0,), (vector,)), dose=dose, pair=pair):
            assert torch.allclose(capture_sites(lm, ids, [LAST])[LAST] - before, dose * 3.0 * vector, atol=1e-4)


def test_without_an_intervention_nothing_diverges(lm):
    """33: no divergence where nothing is patched, bit for bit."""
    panel = OffTargetPanel(("a",), read_prompts(lm, [prompt(8).tolist()], MIXED))
    record = measure(lm, Intervention((), ()), UNEQUAL, off_target=panel)
    assert record["preservation"]["kl"] == [0.0]
    nothing = measure(lm, Intervention(MIXED, (0.0, 0.0, 0.0)), UNEQUAL, off_target=panel)
    assert nothing["preservation"]["kl"][0] < 1e-9


def test_readouts_that_are_not_finite_are_one_line(lm):
    """35: no NaN goes into a record."""
    site = Site("resid", 0)
    with pytest.raises(InputError, match="pair tiny/0: the readout is not finite; use a smaller dose"):
        measure(lm, Intervention((site,), (1e38,), (torch.full((lm.width,), 1e30),)), UNEQUAL)
    assert hook_count(lm) == 0
