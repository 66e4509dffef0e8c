"""ISS against plain loops, its invariances, and its undefined cases."""

import itertools

import numpy as np
import pytest

from sparse_control.iss import internal_state_stability

FACTS, FAMILIES, QUERIES, D = 12, 4, 2, 10


def sample(seed=0, d=D, queries=QUERIES):
    rng = np.random.default_rng(seed)
    rows = [(f, t) for f in range(FACTS) for t in range(FAMILIES) for _ in range(queries)]
    shared = rng.normal(size=(FACTS, d))
    z = np.array([shared[f] + 0.7 * rng.normal(size=d) + 0.1 * f + t for f, t in rows])
    return z, [f"f{f}" for f, _ in rows], [f"r{f // 4}" for f, _ in rows], [f"t{t}" for _, t in rows]


def by_loops(z, facts, relations, families, lam_rel, width):
    """The formulas of the source document, 10.1 to 10.6, one at a time."""
    n = len(z)
    mean = sum(z) / n
    mean_of = {}
    for labels in (relations, families):
        for label in set(labels):
            rows = [z[i] for i in range(n) if labels[i] == label]
            mean_of[label] = sum(rows) / len(rows)
    zbar = np.array([z[i] - mean_of[relations[i]] - mean_of[families[i]] + mean for i in range(n)])
    centred = zbar - zbar.mean(0)
    sigma = sum(np.outer(row, row) for row in centred) / n
    values, vectors = np.linalg.eigh(sigma + lam_rel * np.trace(sigma) / width * np.eye(z.shape[1]))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    whitened = zbar @ root
    centroid = {}
    for fact, family in set(zip(facts, families)):
        rows = [whitened[i] for i in range(n) if (facts[i], families[i]) == (fact, family)]
        total = sum(rows) / len(rows)
        centroid[fact, family] = total / np.linalg.norm(total)
    relation = dict(zip(facts, relations))
    result = {}
    for fact in relation:
        own = [family for other, family in centroid if other == fact]
        plus = [centroid[fact, a] @ centroid[fact, b] for a, b in itertools.combinations(own, 2)]
        minus = [
            centroid[fact, a] @ centroid[other, b]
            for a in own
            for other, b in centroid
            if other != fact and relation[other] == relation[fact] and a != b
        ]
        s_plus, s_minus = np.mean(plus), np.mean(minus)
        result[fact] = (s_plus, s_minus, (s_plus - s_minus) / (1 - s_minus + 1e-8))
    return result


@pytest.mark.parametrize("lam_rel", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("unbalanced", [False, True])
def test_equals_plain_loops(lam_rel, unbalanced):
    z, facts, relations, families = sample()
    if unbalanced:  # drop some rows, and one family of one fact
        keep = [i for i in range(len(z)) if i % 7 and (facts[i], families[i]) != ("f2", "t1")]
        z, facts, relations, families = z[keep], *([labels[i] for i in keep] for labels in (facts, relations, families))
    table = internal_state_stability(z, facts, relations, families, lam_rel=lam_rel)
    expected = by_loops(z, facts, relations, families, lam_rel, D)
    assert list(table.columns) == ["fact", "relation", "s_plus", "s_minus", "iss", "reason"]
    assert list(table.fact) == list(dict.fromkeys(facts)) and table.reason.isna().all()
    for row in table.itertuples():
        assert np.allclose((row.s_plus, row.s_minus, row.iss), expected[row.fact], rtol=1e-10, atol=1e-12)


def test_reduced_coordinates_give_the_same_cosines():
    z, *labels = sample(d=6)
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(D, 6)))[0]
    reduced = internal_state_stability(z, *labels, lam_rel=0.1, model_width=D)
    full = internal_state_stability(z @ Q.T, *labels, lam_rel=0.1, model_width=D)
    assert np.allclose(reduced.iss, full.iss, rtol=1e-6) and np.allclose(reduced.s_minus, full.s_minus, rtol=1e-6)
    other = internal_state_stability(z, *labels, lam_rel=0.1)
    assert not np.allclose(reduced.iss, other.iss), "the penalty is per model dimension, not per coordinate"


def test_whitening_without_penalty_cancels_any_invertible_transport():
    z, *labels = sample()
    J = np.random.default_rng(2).normal(size=(D, D)) + 2 * np.eye(D)
    raw = internal_state_stability(z, *labels, lam_rel=0.0)
    transported = internal_state_stability(z @ J.T, *labels, lam_rel=0.0)
    assert np.allclose(raw.iss, transported.iss, rtol=1e-6)
    assert not np.allclose(
        internal_state_stability(z, *labels, lam_rel=1.0).iss,
        internal_state_stability(z @ J.T, *labels, lam_rel=1.0).iss,
    )


def test_scale_and_rotation_do_not_matter():
    z, *labels = sample()
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))[0]
    base = internal_state_stability(z, *labels, lam_rel=0.1).iss
    assert np.allclose(internal_state_stability(1e3 * z @ rotation.T + 5, *labels, lam_rel=0.1).iss, base)


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_extreme_scales(scale):
    z, *labels = sample()
    assert np.allclose(internal_state_stability(scale * z, *labels).iss, internal_state_stability(z, *labels).iss)


def test_tiny_penalty_with_few_rows_drives_iss_to_zero():
    z, *labels = sample(d=400)
    values = [internal_state_stability(z, *labels, lam_rel=lam).iss.mean() for lam in (1e-6, 1.0, 100.0)]
    assert abs(values[0]) < 0.01 < values[1] < values[2]


def test_rows_may_come_in_any_order():
    z, facts, relations, families = sample()
    order = np.random.default_rng(4).permutation(len(z))
    shuffled = internal_state_stability(
        z[order], *([labels[i] for i in order] for labels in (facts, relations, families))
    )
    base = internal_state_stability(z, facts, relations, families)
    assert np.allclose(shuffled.set_index("fact").iss.loc[base.fact], base.iss)


def undefined(keep=lambda fact, family: True, relation=lambda fact: None, change=None):
    z, facts, relations, families = sample()
    rows = [i for i in range(len(z)) if keep(facts[i], families[i])]
    z = z[rows].copy()
    facts, families = [facts[i] for i in rows], [families[i] for i in rows]
    relations = [relation(fact) or relations[i] for fact, i in zip(facts, rows)]
    if change is not None:
        change(z, facts, families)
    return internal_state_stability(z, facts, relations, families, lam_rel=0.1).set_index("fact")


def test_a_fact_with_one_family():
    table = undefined(keep=lambda fact, family: fact != "f3" or family == "t0")
    assert table.reason["f3"] == "fact has one family" and np.isnan(table.iss["f3"])
    assert table.drop("f3").iss.notna().all()


def test_a_relation_with_one_fact():
    table = undefined(relation=lambda fact: "alone" if fact == "f5" else None)
    assert table.reason["f5"] == "relation has one fact" and np.isnan(table.iss["f5"])
    assert table.drop("f5").iss.notna().all()


def test_zero_centroids():
    z, facts, relations, families = sample()
    table = internal_state_stability(np.ones_like(z), facts, relations, families)
    assert set(table.reason) == {"zero centroid"} and table.iss.isna().all()
    explained = np.array([[hash_free(r), hash_free(t)] for r, t in zip(relations, families)])
    table = internal_state_stability(explained, facts, relations, families)
    assert set(table.reason) == {"zero centroid"}, "relation and family effects alone leave nothing"


def hash_free(label):
    return float(label[1:]) * 3 + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": np.zeros((0, 3)), "facts": [], "relations": [], "families": []}, "z must be"),
        ({"z": np.zeros(4)}, "z must be"),
        ({"facts": ["a"]}, r"facts must have the length of z \(96\), got 1"),
        ({"families": ["a"]}, "families must have"),
        ({"lam_rel": -1.0}, "lam_rel must be finite and not negative, got -1.0"),
        ({"lam_rel": float("nan")}, "lam_rel must be"),
        ({"model_width": 0}, "model_width must be an integer at least 1"),
    ],
)
def test_bad_arguments(change, message):
    z, facts, relations, families = sample()
    arguments = {"z": z, "facts": facts, "relations": relations, "families": families} | change
    with pytest.raises(ValueError, match=message):
        internal_state_stability(**arguments)


def test_non_finite_rows_are_named():
    z, *labels = sample()
    z[7, 2] = np.nan
    with pytest.raises(ValueError, match=r"z\[7\]\[2\] must be finite, got nan"):
        internal_state_stability(z, *labels)


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_missing_labels_are_named(missing, which):
    z, *labels = sample()
    labels[which][3] = missing
    with pytest.raises(
        ValueError, match=rf"{('facts', 'relations', 'families')[which]}\[3\] must be a whole number or a string"
    ):
        internal_state_stability(z, *labels)


def test_no_penalty_on_a_singular_covariance():
    z, *labels = sample(d=200)
    with pytest.raises(ValueError, match="covariance is singular; use lam_rel > 0"):
        internal_state_stability(z, *labels, lam_rel=0.0)


def test_a_fact_under_two_relations():
    z, facts, relations, families = sample()
    relations[0] = "r2"
    with pytest.raises(ValueError, match="'f0' is under more than one relation"):
        internal_state_stability(z, facts, relations, families)
