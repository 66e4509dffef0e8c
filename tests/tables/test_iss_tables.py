"""Tables of ISS against numbers worked out by hand from the made-up root."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from sparse_control.iss.uncertainty import relation_bootstrap
from sparse_control.records.read import Records, read_records
from sparse_control.tables.parts import Part, all_tables
from sparse_control.tables.registry import TABLES
from sparse_control.tables.shown import shown
from tests.support.measured_iss import FACTS, RELATIONS, SWEEP
from tests.support.measured_root import MEDIUM, MODEL
from tests.support.tables import of_model, only, rows

PROJECT = Path(__file__).parent.parent.parent
PER_LAYER = [
    *("official_iss", "robustness", "lam_rel_sweep", "uncertainty", "estimator_validation", "ladder", "rank_curve"),
    *("corpus_convergence", "corpus_halves", "seed_stability", "alternatives", "alternatives_curve"),
]


@pytest.fixture(scope="module")
def models(built_whole_root):
    """The toy model, which has nulls, and the medium one."""
    return {model.name: model for model in read_records(built_whole_root, PROJECT).models}


@pytest.fixture(scope="module")
def toy(models):
    return models[MODEL]


@pytest.fixture(scope="module")
def frames(toy):
    """Of the toy model alone."""
    return all_tables(Records(models=(toy,)))


@pytest.fixture(scope="module")
def both(toy, models):
    return Records(models=(toy, models[MEDIUM]))


def printed(name, records):
    return shown(TABLES[name], TABLES[name].frame(records), Part(records=records))


def facts_of(model, metric, *layers):
    """Fact -> mean over layers, by a loop."""
    found = {}
    for _, fact in FACTS:
        values = [r.iss for r in model.iss.fact_layers if (r.metric, r.fact) == (metric, fact) and r.layer in layers]
        found[fact] = sum(values) / len(layers)
    return found


# --- unresolved layers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PER_LAYER)
def test_an_unresolved_layer_stands_in_every_table_and_says_so(frames, name):
    found = rows(frames[name], layer=8) or rows(frames[name], layer="8")
    assert found and {row["status"] for row in found} == {"unresolved"}
    for column in ("iss", "difference", "iss_calibration_sigma"):
        if name in ("official_iss", "robustness", "lam_rel_sweep", "uncertainty") and column in found[0]:
            assert all(row[column] is None for row in found), column


def test_an_unresolved_layer_never_enters_an_official_mean(frames, toy):
    official = statistics.fmean(facts_of(toy, "ISS", 2, 5).values())
    assert only(frames["official_iss"], layer="validated layers")["iss"] == pytest.approx(official, rel=1e-12)
    assert only(frames["uncertainty"], layer="validated layers")["iss"] == pytest.approx(official, rel=1e-12)
    own = only(frames["robustness"], layer="validated layers", variant="own lam_rel")
    assert own["iss"] == pytest.approx(official, rel=1e-12)
    assert own["raw_iss"] == pytest.approx(statistics.fmean(facts_of(toy, "Raw-ISS", 2, 5).values()), rel=1e-12)
    assert only(frames["nulls"], layers="validated in each", lam="own lam_rel")["official_iss"] == own["iss"]


def test_without_a_validated_layer_nothing_is_official(toy, frames):
    unresolved = [row.model_copy(update={"status": "unresolved", "iss": None}) for row in toy.iss.summary.per_layer]
    sweep = [row.model_copy(update={"iss": None}) for row in toy.iss.summary.sweep]
    update = {"validated_layers": [], "unresolved_layers": [2, 5, 8], "ISS": None, "per_layer": unresolved}
    summary = toy.iss.summary.model_copy(update=update | {"sweep": sweep})
    frames = all_tables(of_model(iss=replace(toy.iss, summary=summary, fact_layers=(), facts=())))
    for name in ("official_iss", "robustness", "lam_rel_sweep"):
        assert all(row["iss"] is None for row in frames[name].to_dict("records")), name
    assert only(frames["findings"], finding="ISS")["value"] is None


# --- benchmark ------------------------------------------------------------------------------------------------------


def test_sweep_subtracts_over_the_same_layers(frames, toy):
    official, raw = (statistics.fmean(facts_of(toy, metric, 2, 5).values()) for metric in ("ISS", "Raw-ISS"))
    for lam_rel, step in SWEEP.items():
        row = only(frames["lam_rel_sweep"], layer="validated layers", lam_rel=lam_rel)
        assert row["iss"] == pytest.approx(official + step) and row["raw_iss"] == pytest.approx(raw + 2 * step)
        assert row["difference"] == pytest.approx(official - raw - step)
    official, raw = (statistics.fmean(facts_of(toy, metric, 5).values()) for metric in ("ISS", "Raw-ISS"))
    assert only(frames["lam_rel_sweep"], layer="5", lam_rel=1.0)["difference"] == pytest.approx(official - raw - 0.2)


def test_robustness_has_each_variant_of_both(frames):
    layer = {row["variant"]: row for row in rows(frames["robustness"], layer="5")}
    assert layer["lam_rel of ISS"]["raw_iss"] == 0.45
    assert layer["Sigma of the calibration rows"]["difference"] == pytest.approx(0.35 - 0.3)
    assert only(frames["official_iss"], layer="5")["iss_calibration_sigma"] == 0.35


def test_the_interval_of_a_difference_is_paired(frames, toy):
    official, raw = (facts_of(toy, metric, 2, 5) for metric in ("ISS", "Raw-ISS"))
    expected = relation_bootstrap([official[f] - raw[f] for _, f in FACTS], [r for r, _ in FACTS], 500)
    row = only(frames["robustness"], layer="validated layers", variant="own lam_rel")
    assert (row["difference_bca_low"], row["difference_bca_high"]) == pytest.approx(expected["bca"], rel=1e-12)
    assert row["difference"] == pytest.approx(expected["mean"], rel=1e-12)
    assert only(frames["robustness"], layer="5", variant="lam_rel of ISS")["difference_bca_low"] is None


def test_relations_have_mean_and_spread_over_their_facts(frames, toy):
    values = [value for fact, value in facts_of(toy, "ISS", 2, 5).items() if fact.startswith("language/")]
    row = only(frames["per_relation"], relation="language")
    assert row["iss"] == pytest.approx(statistics.fmean(values))
    assert row["iss_sd"] == pytest.approx(statistics.stdev(values))
    assert row["difference"] == pytest.approx(row["iss"] - row["raw_iss"]) and row["n_facts"] == 3


def test_answers_by_family_and_relation(frames):
    assert [(row["by"], row["name"], row["share"]) for row in frames["answer_accuracy"].to_dict("records")] == [
        ("all", "all prompts", 0.5),
        ("family", "cloze", 0.25),
        ("family", "question", 0.75),
        ("relation", "capital", 0.75),
        ("relation", "continent", 0.25),
        ("relation", "language", 0.5),
    ]


# --- uncertainty ----------------------------------------------------------------------------------------------------


def test_five_sources_stand_apart(frames, toy):
    row = only(frames["uncertainty"], layer="5")
    assert (row["corpus_n"], row["corpus_iss_difference"], row["halves_iss_difference"]) == (32, 0.003, 0.004)
    assert (row["rank_2k_iss_difference"], row["rank_exact_iss_difference"]) == (0.004, 0.125)
    assert (row["seeds"], row["seed_iss_sd"]) == (3, 0.002)
    values = facts_of(toy, "ISS", 5)
    expected = relation_bootstrap([values[fact] for _, fact in FACTS], [relation for relation, _ in FACTS], 500)
    assert (row["percentile_low"], row["percentile_high"]) == pytest.approx(expected["percentile"], rel=1e-12)
    assert (row["bca_low"], row["bca_high"]) == pytest.approx(expected["bca"], rel=1e-12)
    means = [statistics.fmean(values[fact] for name, fact in FACTS if name == relation) for relation in RELATIONS]
    assert row["relation_sd"] == pytest.approx(statistics.stdev(means)) and row["relations"] == 3
    assert row["relation_range"] == pytest.approx(max(means) - min(means))


def test_of_the_whole_calibration_sources_are_means_over_validated_layers(frames, toy):
    row = only(frames["uncertainty"], layer="validated layers")
    assert row["seed_iss_sd"] == pytest.approx((0.0005 + 0.002) / 2) and row["seeds"] is None
    assert [row["percentile_low"], row["percentile_high"]] == pytest.approx(toy.iss.summary.ISS.percentile)
    assert [row["bca_low"], row["bca_high"]] == pytest.approx(toy.iss.summary.ISS.bca)


def test_no_column_mixes_sources(toy):
    """Taking one source away empties its own columns and no other."""
    without = {
        "corpus_convergence": ("corpus_n", "corpus_iss_difference"),
        "comparison": ("halves_iss_difference", "rank_exact_iss_difference"),
        "fact_layers": ("iss", "percentile_low", "bca_high", "relation_sd"),
    }
    whole = only(TABLES["uncertainty"].frame(of_model(iss=toy.iss)), layer="2")
    for field, columns in without.items():
        lost = () if isinstance(getattr(toy.iss, field), tuple) else None
        row = only(TABLES["uncertainty"].frame(of_model(iss=replace(toy.iss, **{field: lost}))), layer="2")
        assert all(row[name] is None for name in columns), field
        kept = set(whole) - {name for names in without.values() for name in names} - {"percentile_high", "bca_low"}
        kept -= {"relation_min", "relation_max", "relation_range", "relations"}
        assert {name: row[name] for name in kept} == {name: whole[name] for name in kept}, field


def test_the_corpus_difference_is_of_the_estimator_s_own_size(toy):
    larger = [row.model_copy(update={"corpus_size": 64}) if row.layer == 2 else row for row in toy.iss.actions]
    row = only(TABLES["uncertainty"].frame(of_model(iss=replace(toy.iss, actions=tuple(larger)))), layer="2")
    assert row["corpus_n"] == 32  # the largest n has no 2n
    smaller = [row.model_copy(update={"corpus_size": 16}) if row.layer == 2 else row for row in toy.iss.actions]
    row = only(TABLES["uncertainty"].frame(of_model(iss=replace(toy.iss, actions=tuple(smaller)))), layer="2")
    assert (row["corpus_n"], row["corpus_iss_difference"]) == (16, 0.02)


# --- estimator ------------------------------------------------------------------------------------------------------


def test_the_ladder_has_every_attempt_and_prints_the_end_of_each_step(frames, toy):
    assert [(row["layer"], row["attempt"], row["k"], row["passed"]) for row in rows(frames["ladder"])] == [
        *((2, 1, 32, False), (2, 2, 64, True), (5, 1, 32, False), (5, 2, 64, True)),
        *((8, 1, 32, False), (8, 2, 64, False)),
    ]
    ends = printed("ladder", Records(models=(toy,))).rows
    assert [row[:3] for row in ends] == [("2", "validated", "2"), ("5", "validated", "2"), ("8", "unresolved", "2")]
    assert [row[-1] for row in ends] == ["none", "none", "cosine, error"]


def test_the_validation_table_says_how_and_why(frames, toy):
    row = only(frames["estimator_validation"], layer=5)
    assert (row["k"], row["k_over_d"], row["step"], row["reporting"]) == (64, 0.25, "rank", "mean of seeds")
    assert only(frames["estimator_validation"], layer=8)["reason"].startswith("median cosine 0.95 < 0.99")
    assert printed("estimator_validation", Records(models=(toy,))).rows[2][-1] == "cosine, error"


def test_corpus_sizes_show_the_rule_s_choice(frames):
    found = [(row["n"], row["converged"], row["chosen"]) for row in rows(frames["corpus_convergence"], layer=2)]
    assert found == [(16, False, False), (32, True, True), (64, False, False)]
    assert rows(frames["corpus_convergence"], layer=2, n=64)[0]["cosine_to_2n"] is None


def test_halves_are_of_half_the_corpus(frames):
    row = only(frames["corpus_halves"], layer=2)
    assert (row["n"], row["E_vec"], row["E_vec_centred"], row["E_ISS"]) == (32, 0.02, 0.03, 0.004)


def test_rank_curve_prints_the_window_and_rademacher_beside_gaussian(toy):
    outside = [row.model_copy(update={"layer": 7}) for row in toy.iss.comparison.rows if row.layer == 5]
    comparison = toy.iss.comparison.model_copy(update={"rows": [*toy.iss.comparison.rows, *outside]})
    more = of_model(iss=replace(toy.iss, comparison=comparison))
    frame = TABLES["rank_curve"].frame(more)
    assert {row["status"] for row in rows(frame, layer=7)} == {"not in the window"}
    table = printed("rank_curve", more)
    column = table.headings.index("Rad.\nE_vec")
    assert {row[0] for row in table.rows} == {"2", "5", "8"}
    assert {(row[2], row[column]) for row in table.rows} == {("32", "0.094"), ("64", "0.047")}  # 3/k


def test_alternatives_stand_beside_plain_qb(frames):
    found = {row["estimator"]: row for row in rows(frames["alternatives"], layer=5)}
    assert list(found) == ["qb", "qb_deflated", "output_sketch", "svd"]
    assert {name: (row["passes"], row["smallest_k"]) for name, row in found.items()} == {
        "qb": ("yes", 64),
        "qb_deflated": ("yes", 32),
        "output_sketch": ("none", None),
        "svd": ("yes", 64),
    }
    assert {row["common_k"] for row in found.values()} == {64}
    assert found["qb"]["E_vec"] == pytest.approx(4 / 64 + 0.01)  # mean over the three seeds
    assert found["qb_deflated"]["E_vec_over_qb"] == pytest.approx((2 / 64) / (4 / 64 + 0.01))
    assert found["qb_deflated"]["qb_fails_at_smallest_k"] is True and found["svd"]["qb_fails_at_smallest_k"] is False
    assert found["qb_deflated"]["k_over_d"] == 0.125 and found["output_sketch"]["E_vec"] is None
    assert rows(frames["alternatives"], layer=8, estimator="qb")[0]["passes"] == "none"


def test_a_power_that_the_ladder_never_reached_is_not_tried(toy):
    more = [row.model_copy(update={"power_iterations": 1}) for row in toy.iss.alternatives if row.probe]
    iss = replace(toy.iss, alternatives=(*toy.iss.alternatives, *more))
    frame = TABLES["alternatives"].frame(of_model(iss=iss))
    assert only(frame, layer=5, estimator="qb", q=1)["passes"] == "not tried"
    assert only(frame, layer=5, estimator="qb_deflated", q=1)["qb_fails_at_smallest_k"] is None


# --- nulls and the medium model -------------------------------------------------------------------------------------


def test_nulls_are_compared_where_all_are_validated(frames, toy):
    row = only(frames["nulls"], layers="validated in all", lam="own lam_rel")
    assert row["official_layers"] == row["shuffled_tokens_layers"] == row["redrawn_weights_layers"] == "2"
    for name, iss in (("official", toy.iss), ("shuffled_tokens", toy.nulls["shuffled_tokens"])):
        summary = {layer.layer: layer for layer in iss.summary.per_layer}[2]
        assert row[f"{name}_iss"] == summary.iss and row[f"{name}_raw_iss"] == summary.raw_iss
        assert row[f"{name}_difference"] == summary.iss - summary.raw_iss
    matched = only(frames["nulls"], layers="validated in all", lam="lam_rel of ISS")
    assert matched["redrawn_weights_raw_iss"] == 0.45
    assert len(rows(frames["nulls"], layers="validated in all", lam="swept")) == len(SWEEP)
    single = only(frames["nulls"], layers="5", lam="own lam_rel")
    assert single["shuffled_tokens_iss"] is None and single["shuffled_tokens_raw_iss"] is not None
    assert single["redrawn_weights_iss"] is not None


def test_one_null_is_shown_without_the_other(toy):
    part = {"shuffled_tokens": toy.nulls["shuffled_tokens"]}
    row = only(TABLES["nulls"].frame(of_model(iss=toy.iss, nulls=part)), layers="validated in all", lam="own lam_rel")
    assert row["shuffled_tokens_iss"] is not None and row["redrawn_weights_iss"] is None
    assert len(TABLES["nulls"].frame(of_model(iss=toy.iss))) == 0


def test_a_null_has_the_tables_of_its_own_study(frames, toy):
    for null, iss in toy.nulls.items():
        study = all_tables(of_model(iss=iss))
        for name, table in TABLES.items():
            if table.of_a_study:
                assert frames[f"nulls/{null}/{name}"].equals(study[name]), name
    assert only(frames["nulls/shuffled_tokens/official_iss"], layer="5")["status"] == "unresolved"
    absent = ("setup", "nulls", "rank_transfer", "findings", "summary", "published")
    assert not [name for name in frames if name.startswith("nulls/") and name.rpartition("/")[2] in absent]


def test_the_small_rank_at_the_medium_model(both):
    first, second, third = rows(TABLES["rank_transfer"].frame(both))
    assert (first["small_model"], first["medium_model"]) == (MODEL, MEDIUM)
    assert (first["small_k"], first["small_k_over_d"], first["medium_k"]) == (64, 0.25, 128)
    assert first["medium_at_small_k_E_vec"] == pytest.approx(4 / 64 + 0.01)
    assert first["medium_at_small_k_median_cosine"] == 0.9 and first["transfers"] is False
    assert first["reason"].startswith("median cosine 0.9 < 0.99")
    assert third["small_status"] == "unresolved" and third["transfers"] is None
    assert third["reason"] == "no rank passes on the small model" and second["depth"] == 2


def test_the_small_model_is_the_first_with_a_full_comparison(both, toy, models):
    without = replace(toy, name="none", iss=replace(toy.iss, comparison=None))
    frame = TABLES["rank_transfer"].frame(Records(models=(without, *both.models)))
    pairs = [(row["small_model"], row["medium_model"]) for row in rows(frame, depth=1)]
    assert pairs == [(MODEL, "none"), (MODEL, MEDIUM)]
    assert set(rows(frame, medium_model="none", depth=1)[0].items()) >= {("transfers", True), ("medium_k", 64)}
    assert len(TABLES["rank_transfer"].frame(of_model(iss=toy.iss))) == 0


def test_a_rank_that_was_not_tried_does_not_count_as_transferred(toy, models):
    medium = models[MEDIUM]
    untried = replace(medium.iss, actions=tuple(row for row in medium.iss.actions if row.k != 64))
    frame = TABLES["rank_transfer"].frame(Records(models=(toy, replace(medium, iss=untried))))
    row = only(frame, depth=1)
    assert row["transfers"] is None and "whose ladder ended at k = 128" in row["reason"]


def findings_of(records, model=MODEL):
    found = rows(TABLES["findings"].frame(records), model=model)
    assert len({row["finding"] for row in found}) == len(found)
    return {row["finding"]: row["value"] for row in found}


def test_findings_count_what_the_tables_show(both, frames):
    found = findings_of(both)
    assert (found["layers of the window"], found["validated layers"], found["unresolved layers"]) == (3, 2, "8")
    assert found["layers where the corpus rule holds"] == 3 and found["largest E_vec between halves"] == 0.02
    assert found["validated layers with an error below that of the halves"] == 0  # 0.03 against 0.02
    assert found["where the ladder ended"] == "k = 64 with q = 0 at layers 2, 5"
    assert found["qb_deflated: layers that pass where qb fails"] == 3  # at k = 32
    assert found["svd: layers that pass where qb fails"] == 1  # at k = 64 of the unresolved layer
    swept = [row["difference"] for row in rows(frames["lam_rel_sweep"], layer="validated layers")]
    assert found["swept lam_rel"] == 3
    assert found["swept lam_rel with ISS above Raw-ISS"] == sum(value > 0 for value in swept) < 3
    assert found["smallest ISS - Raw-ISS in the sweep"] == min(swept)
    assert found["layers validated in official and nulls"] == 1
    assert found["depths where the small rank was tried on the medium model"] == 2
    assert found["smallest k, medium model"] == "128, 128, none"


def test_findings_are_of_frozen_studies_and_name_every_further_medium_model(both, toy):
    third = replace(toy, name="third")
    unfrozen = replace(toy, name="unfrozen", iss=replace(toy.iss, freeze=None))
    records = Records(models=(*both.models, third, unfrozen))
    assert set(TABLES["findings"].frame(records)["model"]) == {MODEL, MEDIUM, "third"}
    found = findings_of(records)
    assert found["smallest k, medium model"] == "128, 128, none"
    assert found["third: smallest k, medium model"] == found["unfrozen: smallest k, medium model"] == "64, 64, none"
    assert findings_of(records, "third")["validated layers"] == 2 and "depths compared" not in findings_of(
        records, "third"
    )


def test_findings_by_layer_rest_on_intervals(frames, toy):
    found = findings_of(Records(models=(toy,)))
    own = {row["layer"]: row for row in rows(frames["robustness"], variant="own lam_rel") if row["layer"] in ("2", "5")}
    differences = {layer: row["difference"] for layer, row in own.items()}
    assert found["smallest ISS - Raw-ISS of a layer"] == min(differences.values())
    assert differences[found["layer of the largest ISS - Raw-ISS"]] == max(differences.values())
    above = [layer for layer, row in own.items() if row["difference_bca_low"] > 0]
    assert found["layers with an interval above zero"] == (", ".join(above) or "none")


def test_findings_of_the_nulls_at_the_layer_of_the_largest_difference(frames, toy):
    found = findings_of(Records(models=(toy,)))
    layers = [row for row in rows(frames["nulls"], lam="lam_rel of ISS") if row["layers"] in ("2", "5")]
    largest = max(layers, key=lambda row: abs(row["official_difference"]))
    assert found["layer of the largest official difference"] == largest["layers"] == "5"
    assert found["shuffled_tokens: ISS - Raw-ISS at that layer"] is None  # unresolved there
    share = largest["redrawn_weights_difference"] / largest["official_difference"]
    assert found["redrawn_weights: share of the official difference at that layer"] == share
