"""params.yaml: presets, and one line for every mistake."""

import pytest
import yaml

from sparse_control.errors import InputError
from sparse_control.project import project_folder
from sparse_control.records.jacobian_iss.freeze import FrozenIssSettings
from sparse_control.records.six_axis import Endpoint
from sparse_control.settings import load_settings
from sparse_control.settings.schema import FeedbackSettings, IssSettings, source_layers

PARAMS = project_folder() / "params.yaml"


def edited(tmp_path, **changes):
    """The project's params.yaml with dotted keys changed; None deletes."""
    content = yaml.safe_load(PARAMS.read_text())
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = content
        for step in path:
            section = section[step]
        if value is None:
            del section[last]
        else:
            section[last] = value
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


EVERY = ("iss", "estimator", "alternatives", "nulls")


@pytest.mark.parametrize("preset", ["smoke", "medium", "paper", "qwen-0.5b", "qwen-1.5b"])
@pytest.mark.parametrize(("n_layers", "width"), [(30, 576), (24, 896), (28, 1536), (80, 8192)])
def test_the_shipped_presets_fit_every_model(preset, n_layers, width):
    settings = load_settings(PARAMS, preset)
    assert settings.preset == preset
    of_model = settings.for_model(n_layers=n_layers, width=width, uses=EVERY)
    for name in ("iss", "alternatives", "nulls"):
        layers = getattr(of_model, name).layers
        assert all(type(layer) is int and 0 <= layer < n_layers for layer in layers) and layers == sorted(set(layers))
        assert len(layers) == len(getattr(settings, name).layers)
    again = of_model.for_model(n_layers=n_layers, width=width, uses=EVERY)
    assert again == of_model, "what is resolved stays as it is"


@pytest.mark.parametrize(
    ("preset", "n_layers", "layers"),
    [
        ("smoke", 30, [6, 15, 24]),
        ("paper", 30, [2, 6, 10, 15, 20, 24, 28]),
        ("medium", 24, [5, 12, 19]),
        ("smoke", 28, [6, 14, 22]),
    ],
)
def test_depths_are_the_layers_that_were_measured(preset, n_layers, layers):
    of_model = load_settings(PARAMS, preset).for_model(n_layers=n_layers, width=896)
    assert of_model.iss.layers == layers
    assert of_model.alternatives.layers == of_model.nulls.layers == [round(t * n_layers) for t in (0.2, 0.5, 0.8)]


@pytest.mark.parametrize(
    ("given", "n_layers", "layers"),
    [
        ([0.0, 0.999], 30, [0, 29]),
        ([0.2, 0.5, 0.8], 2, [0, 1]),
        ([0, 0.5, 28], 30, [0, 15, 28]),
        ([28, 6], 24, [6, 28]),
        ([0.1], 5, [0]),
    ],
)
def test_depths_and_layers(given, n_layers, layers):
    assert source_layers(given, n_layers) == layers


def test_ranks_of_the_width_and_more_are_left_out_and_told():
    settings = load_settings(PARAMS, "medium")
    assert settings.for_model(n_layers=30, width=576).estimator.ranks == [32, 64, 128, 256, 512]
    assert settings.ranks_left_out(512) == [
        "estimator.ranks: 512, 768 left out, not below the width 512",
        "alternatives.ranks: 512 left out, not below the width 512",
    ]
    assert settings.ranks_left_out(4096) == []


def test_a_preset_lies_over_the_base_key_by_key():
    smoke, paper = load_settings(PARAMS, "smoke"), load_settings(PARAMS, "paper")
    assert smoke.iss.facts_per_relation == 16 and paper.iss.facts_per_relation == 24
    assert smoke.iss.lam_rel_sweep == paper.iss.lam_rel_sweep


def test_a_task_has_its_own_seeds_where_it_names_some():
    protocol = load_settings(PARAMS, "paper").protocol
    assert len(protocol.seeds_of("ioi")) == 10 and protocol.seeds_of("refusal") == protocol.seeds == list(range(8))


def test_model_argument_replaces_the_file():
    assert load_settings(PARAMS, model="other").model == "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator__rank": [1]}, r"estimator.rank: unknown key; did you mean 'ranks'\?"),
        ({"estimator__ranks": None, "estimator__rank": [1]}, r"estimator.rank: unknown key; did you mean 'ranks'\?"),
        ({"colour": 1}, "colour: unknown key; known keys: "),
        ({"threads": None}, "threads: is missing; add it"),
        ({"threads": "two"}, "threads: .*got 'two'"),
        ({"threads": True}, "threads: .*got True"),
        ({"threads": 0}, "threads: .*got 0"),
        ({"validation__median_cosine": float("nan")}, "validation.median_cosine: .*got nan"),
        ({"validation__median_cosine": 1.5}, "validation.median_cosine: .*got 1.5"),
        ({"estimator__ranks": [64, 32]}, "estimator: .*ranks must be ascending"),
        ({"estimator__sketch_seeds": [0, 1]}, "estimator.sketch_seeds: .*at least 3"),
        ({"estimator__sketch_seeds": [0, 1, 1]}, "sketch_seeds must be without repeats"),
        ({"estimator__probe": "uniform"}, "estimator.probe: .*'gaussian' or 'rademacher'"),
        ({"protocol__doses": [0.5, 1]}, "doses must contain 0"),
        ({"protocol__feedback__targets": {"ioi": 8}}, "feedback.targets has no entry for task 'sentiment'"),
        ({"protocol__seeds": [0, 0]}, "seeds must be without repeats"),
        ({"protocol__task_seeds": {"ioi": [1, 1]}}, r"task_seeds.ioi must be without repeats, got \[1, 1\]"),
        ({"protocol__positions": [-1, -1]}, "positions must be without repeats"),
        ({"protocol__positions": [True]}, "protocol.positions.0: .*got True"),
        ({"protocol__components": ["attention"]}, "protocol.components.0: .*got 'attention'"),
        ({"protocol__random_supports": 0}, "protocol.random_supports: .*got 0"),
        ({"iss__layers": [6, 6]}, "layers must be without repeats"),
        ({"iss__layers": [1.0]}, r"iss.layers.0: must be a layer .* or a depth .*, got '1.0'"),
        ({"iss__layers": [-0.1]}, "iss.layers.0: must be a layer .*, got '-0.1'"),
        ({"iss__layers": [-1]}, "iss.layers.0: must be a layer .*, got '-1'"),
        ({"iss__layers": ["0.2"]}, "iss.layers.0: must be a layer .*, got '0.2'"),
        ({"iss__layers": [True]}, "iss.layers.0: must be a layer .*, got 'True'"),
        ({"iss__layers": [float("nan")]}, "iss.layers.0: must be a layer .*, got 'nan'"),
        ({"iss__lam_rel_sweep": [0]}, "iss.lam_rel_sweep.0: .*greater than or equal to 0.000000000001, got 0"),
        ({"iss__lam_rel_sweep": [1e300]}, "iss.lam_rel_sweep.0: .*less than or equal"),
        (
            {"iss__bootstrap_resamples": 10**12},
            "iss.bootstrap_resamples: .*less than or equal to 1000000, got 1000000000000",
        ),
        ({"iss__bootstrap_seed": 2**63}, "iss.bootstrap_seed: .*less than 9223372036854775808"),
        ({"corpus__seed": 10**400}, "corpus.seed: "),
        ({"protocol__seeds": [2**64]}, "protocol.seeds.0: .*less than 9223372036854775808"),
        ({"protocol__task_seeds": {"ioi": [-1]}}, "protocol.task_seeds.ioi.0: .*greater than or equal to 0"),
        ({"protocol__feedback__readouts": 10**9}, "protocol.feedback.readouts: .*less than or equal to 1000"),
        ({"protocol__random_supports": 10**9}, "protocol.random_supports: .*less than or equal to 1000000"),
        ({"estimator__power_iterations": [0, 10**9]}, "estimator.power_iterations.1: .*less than or equal to 100"),
        ({"estimator__reference": 1}, "estimator.reference: .*valid boolean, got 1"),
        ({"estimator__reference": "true"}, "estimator.reference: .*valid boolean, got 'true'"),
        ({"validation__median_cosine": True}, "validation.median_cosine: .*valid number, got True"),
        ({"validation__median_cosine": "0.99"}, "validation.median_cosine: .*valid number, got '0.99'"),
        ({"validation__activations": 64.0}, "validation.activations: .*got 64.0"),
        ({"protocol__doses": [0, 1, True]}, "protocol.doses.2: .*valid number, got True"),
        ({"protocol__minimum_gap": "1"}, "protocol.minimum_gap: .*valid number, got '1'"),
        (
            {"protocol__feedback__tolerance": {"ioi": "0.3"}},
            "protocol.feedback.tolerance.ioi: .*valid number, got '0.3'",
        ),
        ({"protocol__feedback__dose_limits": [1, 2]}, "dose_limits must be one negative and one positive"),
        ({"protocol__minimum_pairs": 13}, "minimum_pairs is more than a split has, got 13"),
        ({"iss": 3}, "iss: .*got 3"),
        ({"presets__smoke": 3}, "presets.smoke: expected a mapping"),
        ({"presets__smoke": {"over": "papr"}}, "presets.smoke.over: no preset 'papr'; there are: medium, paper"),
        ({"presets__smoke": {"over": None}}, "presets.smoke.over: no preset None"),
        (
            {"presets__smoke": {"over": "medium"}, "presets__medium": {"over": "smoke"}},
            "presets.medium.over: smoke lies over medium already",
        ),
    ],
)
def test_mistakes_name_the_field_and_the_value(tmp_path, changes, message):
    file = edited(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_settings(file)
    assert str(caught.value).startswith(f"{file}: ") and "\n" not in str(caught.value)


def test_a_preset_over_another_changes_what_it_names_and_nothing_else():
    paper, over = load_settings(PARAMS, "paper"), load_settings(PARAMS, "qwen-0.5b")
    assert over.protocol.tasks == ["ioi", "sentiment", "refusal"] and over.model.startswith("qwen")
    assert over.protocol.pairs == paper.protocol.pairs
    assert over.iss == paper.iss and over.estimator.ranks == paper.estimator.ranks


def test_unknown_preset():
    with pytest.raises(InputError, match="no preset 'full'; there are: smoke, medium, paper"):
        load_settings(PARAMS, "full")


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "\x00", "a: &a [*a]", "a: !!python/object/apply:os.system ['true']"]
)
def test_not_a_settings_file(tmp_path, text):
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match="params.yaml: ") as caught:
        load_settings(file)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="absent.yaml: cannot be read"):
        load_settings(tmp_path / "absent.yaml")


def test_ranks_and_layers_that_do_not_fit_the_model(tmp_path):
    explicit = load_settings(edited(tmp_path, iss__layers=[0.5, 24], alternatives__ranks=[1024]))
    with pytest.raises(InputError, match="iss.layers: 24 is not a source layer .* use 0..23, or depths"):
        explicit.for_model(n_layers=24, width=576, uses=("iss",))
    with pytest.raises(InputError, match="alternatives.ranks: none is below the width 512 .* add one of 1..511"):
        explicit.for_model(n_layers=30, width=512, uses=("alternatives",))
    assert explicit.for_model(n_layers=24, width=512).iss.layers == [12, 24], (
        "a section that is not in use stops nothing"
    )


def test_alternatives_need_references_of_their_layers(tmp_path):
    settings = load_settings(edited(tmp_path, alternatives__layers=[0.1, 0.2]))
    with pytest.raises(InputError, match=r"alternatives.layers: \[3\] must be among iss.layers"):
        settings.for_model(n_layers=30, width=576, uses=EVERY)
    settings.for_model(n_layers=30, width=576, uses=("iss", "estimator"))


def test_writer_and_readers_have_one_bound():
    """What the settings allow is what records of it may hold."""
    for record, settings, field in (
        (FrozenIssSettings, IssSettings, "bootstrap_resamples"),
        (FrozenIssSettings, IssSettings, "bootstrap_seed"),
        (Endpoint, FeedbackSettings, "readouts"),
    ):
        assert record.model_fields[field].metadata == settings.model_fields[field].metadata


def test_all_mistakes_are_told_together(tmp_path):
    file = edited(tmp_path, threads="two", estimator__ranks=None, estimator__rank=[1], validation__activations=0)
    with pytest.raises(InputError) as error:
        load_settings(file)
    told = str(error.value).removeprefix(f"{file}: ").split("; ")
    assert told[:2] == ["estimator.rank: unknown key", "did you mean 'ranks'?"]
    assert [one.partition(":")[0] for one in told[2:]] == ["threads", "validation.activations"]
    with pytest.raises(InputError, match="; and .* more$"):
        load_settings(edited(tmp_path, **{f"colour{n}": n for n in range(20)}))


@pytest.mark.parametrize("name", ["", "  "])
def test_a_model_without_a_name_is_refused(tmp_path, name):
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(PARAMS.read_text()) | {"model": name}))
    with pytest.raises(InputError, match=r"params\.yaml: model: "):
        load_settings(file)
