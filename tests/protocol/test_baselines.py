"""Baselines against loops and known values, the search for layer and strength, and interventions that replace."""

import numpy as np
import pytest
import torch

from sparse_control.errors import InputError
from sparse_control.models.sites import Site, capture_sites
from sparse_control.protocol import Intervention, measure, patched
from sparse_control.protocol.grid import restricted, studies
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import read_prompts
from sparse_control.protocol.selectors import baselines
from sparse_control.protocol.selectors.baselines import Stream
from sparse_control.protocol.selectors.table import SELECTORS
from tests.support.pairs import make_pairs, plain_logits, plain_margin
from tests.support.tiny import prompt, tiny_model
from tests.support.tiny_study import small_settings

BASELINES = [name for name, row in SELECTORS.items() if row.baseline]
SITE = Site("resid", 1)


def stream(seed=0, *, sites=3, pairs=6, width=4, bound=4.0, positions=None, curve=np.tanh):
    """A made-up model: the readout is a bent sum of what is added, weighted differently at each site."""
    random = np.random.default_rng(seed)
    source = random.normal(size=(sites, pairs, width))
    target = source + random.normal(size=(1, 1, width)) + 0.5 * random.normal(size=(sites, pairs, width))
    weights, y_source, asked = random.normal(size=(sites, width)), random.normal(size=pairs), []

    def respond(selection, doses):
        asked.append((selection.support, tuple(doses)))
        pushes = np.zeros((pairs, len(doses)))
        for index, site in enumerate(selection.support):
            direction = np.tile(selection.directions[index], (pairs, 1))
            if selection.levels is not None:
                unit = selection.directions[index]
                direction = (selection.levels[index] - source[site] @ unit)[:, None] * unit
            pushes += np.outer(direction @ weights[site], np.array(doses) * selection.strengths[index])
        return y_source[:, None] + curve(pushes)

    made = Stream(
        source=source, target=target, positions=positions or (-1,) * sites, y_source=y_source,
        gap=1.0 + random.random(pairs), maximum_strength=bound, respond=respond,
    )  # fmt: skip
    return made, asked


def slow_choice(made, candidates, strengths):
    """(least squares left, support, strengths) over every candidate and strength, one after the other."""
    best = None
    for support, base, directions, levels in candidates:
        for strength in strengths:
            selection = baselines._selection(support, tuple(strength * each for each in base), directions, levels)
            change = made.respond(selection, [1.0])[:, 0] - made.y_source
            left = sum((gap - moved) ** 2 for gap, moved in zip(made.gap, change, strict=True))
            if best is None or left < best[0] - 1e-15:
                best = left, support, selection.strengths
    return best


def slow_candidates(name, made):
    for site in range(len(made.source)):
        mean = np.zeros(made.source.shape[2])
        for before, after in zip(made.source[site], made.target[site], strict=True):
            mean += (after - before) / len(made.source[site])
        if name == "diff_in_means_all":
            every = tuple(range(len(made.source)))
            yield every, (1 / len(every),) * len(every), (mean,) * len(every), None
        elif name == "ablate":
            unit = mean / np.sqrt(sum(mean**2))
            yield (site,), (1.0,), (unit,), (np.mean([row @ unit for row in made.target[site]]),)
        elif name == "diff_in_means":
            yield (site,), (1.0,), (mean,), None
        elif name == "pca":
            yield (site,), (1.0,), (slow_principal(made.target[site] - made.source[site]),), None
        else:
            yield (site,), (1.0,), (baselines.probe_direction(made.source[site], made.target[site]),), None


def slow_principal(contrasts):
    """The dominant direction of X^T X by power iteration, on the side of the mean and as long."""
    direction = np.ones(contrasts.shape[1])
    for _ in range(20_000):
        direction = contrasts.T @ (contrasts @ direction)
        direction /= np.linalg.norm(direction)
    mean = contrasts.sum(axis=0) / len(contrasts)
    return direction * np.linalg.norm(mean) * np.sign(direction @ mean)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("seed", range(3))
def test_layer_and_strength_are_the_best_of_the_grid(name, seed):
    made, asked = stream(seed)
    (found,) = SELECTORS[name].select(made)
    strengths = (1.0,) if name == "ablate" else baselines.STRENGTHS
    left, support, chosen = slow_choice(made, slow_candidates(name, made), strengths)
    assert found.support == support and found.strengths == pytest.approx(chosen)
    assert found.path == (pytest.approx(1 - left / (made.gap @ made.gap)),)
    assert len(found.directions) == len(support) and found.stop_reason == "grid" and found.predicted == ()
    assert (found.levels is not None) is SELECTORS[name].replaces
    again = SELECTORS[name].select(made)[0]
    assert (again.support, again.strengths) == (found.support, found.strengths)
    assert all(doses == tuple(strengths) for _, doses in asked if len(doses) > 1)


def test_the_first_of_equals_is_taken_and_the_bound_is_kept():
    made, _ = stream(curve=np.zeros_like)
    (found,) = SELECTORS["diff_in_means"].select(made)
    assert (found.support, found.strengths) == ((0,), (0.5,))
    made, asked = stream(bound=1.2)
    assert SELECTORS["pca"].select(made)[0].strengths[0] in (0.5, 1.0)
    assert {doses for _, doses in asked} == {(0.5, 1.0)}
    assert baselines.strengths_within(0.2) == (0.2,)


def test_the_direction_of_one_layer_stays_at_its_position():
    made, _ = stream(sites=4, positions=(-2, -2, -1, -1))
    (found,) = SELECTORS["diff_in_means_all"].select(made)
    assert found.support in ((0, 1), (2, 3)) and set(found.strengths) == {found.strengths[0]}
    assert all((each == found.directions[0]).all() for each in found.directions)


def test_refitted_strengths_keep_layer_and_direction():
    made, _ = stream(0)
    other, asked = stream(1)
    for name in BASELINES:
        (chosen,) = SELECTORS[name].select(made)
        asked.clear()
        strengths = SELECTORS[name].refit(Stream(**{**vars(other), "chosen": chosen}))
        if name == "ablate":
            assert strengths.tolist() == [1.0] and not asked
            continue
        base = (1 / len(chosen.support),) * len(chosen.support)
        kept = [(chosen.support, base, chosen.directions, None)]
        assert strengths.tolist() == pytest.approx(slow_choice(other, kept, baselines.STRENGTHS)[2])


def test_first_principal_direction():
    known = np.array([[3.0, 0.0], [5.0, 0.0], [-4.0, 1.0], [0.0, -1.0]])
    found = baselines.principal_direction(known)
    assert found[0] > 0 and np.linalg.norm(found) == pytest.approx(1.0) and abs(found[1]) < 0.2  # the mean is (1, 0)
    assert baselines.principal_direction(-known) == pytest.approx(-found)
    contrasts = np.random.default_rng(0).normal(size=(9, 5)) + 0.3
    assert baselines.principal_direction(contrasts) == pytest.approx(slow_principal(contrasts), abs=1e-8)


def test_the_probe_is_where_its_gradient_is_zero():
    random = np.random.default_rng(0)
    source, target = 7.0 * random.normal(size=(8, 5)), 7.0 * random.normal(size=(8, 5)) + 4.0
    found = baselines.probe_direction(source, target)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm((target - source).mean(axis=0)))
    rows = np.concatenate([source, target])
    rows -= rows.mean(axis=0)
    rows /= np.sqrt(sum(row @ row for row in rows) / len(rows))
    sides, unit = np.repeat([-1.0, 1.0], 8), found / np.linalg.norm(found)

    def gradient(parameters):
        length, bias = parameters
        pull = np.array([-side / (1 + np.exp(side * (length * unit @ row + bias))) for side, row in zip(sides, rows)])
        return length * unit + pull @ rows, pull.sum()

    low, high = 0.0, 100.0  # the length at which the gradient along the direction is zero, by bisection
    for _ in range(100):
        length = (low + high) / 2
        left, right = -50.0, 50.0
        for _ in range(100):
            left, right = ((left + right) / 2, right) if gradient((length, (left + right) / 2))[1] < 0 else (
                left, (left + right) / 2,
            )  # fmt: skip
        along = gradient((length, left))[0] @ unit
        low, high = (length, high) if along < 0 else (low, length)
    assert np.abs(gradient((length, left))[0]).max() < 1e-5, "of the whole gradient, across the direction as well"


# --- interventions that replace -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm():
    return tiny_model()


def replacing(lm, level=3.0):
    vector = torch.randn(lm.width, generator=torch.Generator().manual_seed(3))
    return Intervention((SITE,), (1.0,), (2.5 * vector,), levels=(level,))


@pytest.mark.parametrize("dose", [0.0, 0.5, 1.0, -1.0])
def test_the_component_along_the_direction_is_replaced(lm, dose):
    chosen, ids = replacing(lm), prompt(9)[None]
    unit = chosen.directions[0] / chosen.directions[0].norm()
    before = capture_sites(lm, ids, (SITE,))[SITE][0].double()
    with patched(lm, chosen, dose=dose):
        after = capture_sites(lm, ids, (SITE,))[SITE][0].double()
    wanted = before + dose * (3.0 - before @ unit) * unit
    assert torch.allclose(after, wanted, atol=1e-5)
    if dose == 0:
        assert torch.equal(after, before)


def test_every_axis_of_a_replacement_equals_the_slow_way(lm):
    chosen, pairs, unseen = replacing(lm), make_pairs(4), make_pairs(3, first=20)
    panel = OffTargetPanel(("a", "b"), read_prompts(lm, [prompt(8 + i, i).tolist() for i in range(2)], (SITE,)))
    record = measure(lm, chosen, pairs, unseen, off_target=panel)

    def slow(pairs, dose, side="source"):
        values = []
        for pair in pairs:
            with patched(lm, chosen, dose=dose, pair=pair):
                values.append(plain_margin(lm, pair, side))
        return pytest.approx(values, abs=1e-4)

    for dose, row in zip(record["evaluate"]["doses"], record["evaluate"]["patched"], strict=True):
        assert row == slow(pairs, dose)
    assert record["evaluate"]["patched"][2] == record["evaluate"]["source"]
    assert record["reversal"]["reversed"] == slow(pairs, -1.0, "target")
    assert record["reuse"]["refit"] == record["reuse"]["frozen"] == slow(unseen, 1.0)
    unit = chosen.directions[0] / chosen.directions[0].norm()
    sizes = [
        abs(3.0 - float(capture_sites(lm, torch.tensor([pair.source_ids]), (SITE,))[SITE][0].double() @ unit))
        for pair in pairs
    ]
    assert record["norms"]["direction"] == [pytest.approx(np.mean(sizes), abs=1e-5)]
    for index, ids in enumerate(panel.prompts.ids):
        plain = plain_logits(lm, tuple(ids.tolist()))
        with patched(lm, chosen):
            after = plain_logits(lm, tuple(ids.tolist()))
        p, q = plain.double().log_softmax(-1), after.double().log_softmax(-1)
        assert record["preservation"]["kl"][index] == pytest.approx(float((p.exp() * (p - q)).sum()), abs=1e-5)


def test_what_cannot_be_replaced_is_refused(lm):
    one = torch.ones(lm.width)
    for arguments, message in (
        (((SITE, Site("resid", 2)), (1.0, 1.0), (one, one), False, (1.0,)), "support has 2 sites; give one of each"),
        (((SITE,), (1.0,), (one,), False, (1.0, 2.0)), "levels has length 2"),
        (((SITE,), (1.0,), None, False, (1.0,)), "levels go with directions of the intervention's own"),
        (((SITE,), (1.0,), (one,), True, (1.0,)), "levels go with directions of the intervention's own"),
        (((SITE,), (1.0,), (0 * one,), False, (1.0,)), "is zero: nothing lies along it to replace"),
        (((SITE,), (1.0,), (one,), False, (float("nan"),)), r"levels\[0\] must be a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            Intervention(*arguments)
    unread = OffTargetPanel(("a",), read_prompts(lm, [prompt(8).tolist()]))
    with pytest.raises(ValueError, match=r"site L01.resid@-1: the prompts were not read there"):
        measure(lm, replacing(lm), make_pairs(2), off_target=unread)


def test_baselines_are_measured_under_f_alone():
    settings = small_settings(tasks=["ioi", "sentiment"], selectors=["driver_omp", "pca"], conditions=["P", "F", "O"])
    assert studies(settings.protocol) == [
        *(("ioi", "driver_omp", condition) for condition in "PFO"),
        ("ioi", "pca", "F"),
        *(("sentiment", "driver_omp", condition) for condition in "PF"),
        ("sentiment", "pca", "F"),
    ]
    with pytest.raises(InputError, match="condition P of probe: baselines have directions of the fitting split; use F"):
        restricted(settings, selectors=["probe"], conditions=["P"])
